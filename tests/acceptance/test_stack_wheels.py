"""A machine without PostgreSQL and without Java still gets real servers: out of wheels, downloaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from outbox_local.stack.users import postgres_user, reaches
from tests.support.stack_command import StackCommand
from tests.support.topics import Topics


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[StackCommand]:
    """A user whose PATH leads to nothing."""
    command = StackCommand(
        tmp_path / ".outbox", OUTBOX_STACK_FROM="wheels", PATH="/nonexistent", JAVA_HOME="/nonexistent"
    )
    yield command
    command.run("down", "--wipe")


def test_servers_out_of_wheels_serve(bare: StackCommand) -> None:
    told = bare.succeed("up")
    assert "PostgreSQL from wheel: wheels are demanded: PostgreSQL 18.4" in told
    assert "Kafka from wheel: wheels are demanded: Java 21" in told
    assert bare.query("select split_part(version(), ' ', 2)") == [("18.4",)]
    servers = {"bootstrap.servers": bare.addresses()["OUTBOX_BOOTSTRAP_SERVERS"]}
    topic = Topics(servers["bootstrap.servers"]).make()
    producer = Producer({**servers, "acks": "all"})
    producer.produce(topic, b"body")
    assert producer.flush(30) == 0


def test_programs_and_data_are_put_where_the_server_user_can_reach_them(
    bare: StackCommand, tmp_path: Path
) -> None:
    """As for root with a closed home directory: what is closed stays closed, and the servers run all the same."""
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    stack = StackCommand(closed / ".outbox", **bare.environment | {"OUTBOX_STATE": str(closed / ".outbox")})
    stack.succeed("up")
    modes = [oct(path.stat().st_mode & 0o777) for path in (closed, *tmp_path.parents[:2])]
    assert set(modes) == {"0o700"}
    data = Path(stack.state().postgres.data)
    assert reaches(postgres_user(), data, "w")
    assert reaches(postgres_user(), Path(stack.state().postgres.program) / "postgres")
    assert stack.query("select 1") == [(1,)]
    stack.succeed("down", "--wipe")
    assert not data.exists()
