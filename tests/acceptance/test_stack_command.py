"""`outbox up`, `env` and `down`, run as a user runs them, against real servers."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.stack_command import StackCommand
from tests.support.waiting import wait_until

# One process runs them all: they share a stack.
pytestmark = pytest.mark.xdist_group("stack command")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackCommand]:
    """A stack that runs, for tests that leave it running."""
    command = StackCommand(tmp_path_factory.mktemp("stack") / ".outbox")
    command.told = command.succeed("up")
    yield command
    command.succeed("down", "--wipe")


@pytest.fixture
def new(tmp_path: Path) -> Iterator[StackCommand]:
    """A stack that does not run yet."""
    command = StackCommand(tmp_path / ".outbox")
    yield command
    command.run("down", "--wipe")


def test_env_prints_exports_that_a_shell_takes(up: StackCommand) -> None:
    script = (
        f'eval "$({shlex.join(up.words("env"))})"; printf "%s\n" "$OUTBOX_DSN" "$OUTBOX_BOOTSTRAP_SERVERS"'
    )
    told = subprocess.run(
        ["sh", "-c", script], env=up.environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == list(up.addresses().values())


def test_both_servers_serve_on_loopback_only(up: StackCommand) -> None:
    state = up.state()
    assert up.query("select current_database(), current_setting('wal_level')") == [("outbox", "logical")]
    broker = AdminClient({"bootstrap.servers": up.addresses()["OUTBOX_BOOTSTRAP_SERVERS"]})
    assert len(broker.list_topics(timeout=10).brokers) == 1
    listening = _listening_addresses()
    for port in (*state.postgres.ports, *state.kafka.ports):
        assert listening[port] == {"127.0.0.1"}


def test_database_asks_for_its_password(up: StackCommand) -> None:
    secret = up.state().postgres.password
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(up.addresses()["OUTBOX_DSN"].replace(secret, "wrong"))


def test_second_up_says_that_the_stack_runs_and_changes_nothing(up: StackCommand) -> None:
    before = up.state()
    assert "already running" in up.succeed("up")
    assert json.loads(up.succeed("up", "--json"))["started"] is False
    assert up.state() == before


def test_up_in_a_shell_that_has_eval_ed_env_finds_its_own_stack(up: StackCommand) -> None:
    before = up.state()
    assert "already running" in up.succeed("up", **up.addresses())
    assert up.state() == before


def test_output_names_origin_and_reason_and_no_secret(up: StackCommand) -> None:
    told = up.told
    assert "PostgreSQL from machine: embedded servers are demanded; PostgreSQL" in told or "wheel" in told
    assert "Kafka from " in told
    assert up.state().postgres.password not in told


def test_down_keeps_the_data_and_up_brings_it_back_on_the_same_ports(new: StackCommand) -> None:
    new.succeed("up")
    before = new.addresses()
    new.query("create table kept as select 42 as answer")
    assert "The stack is down" in new.succeed("down")
    assert new.processes() == []
    failed = new.run("env")
    assert failed.returncode != 0
    assert "outbox up" in failed.stderr
    new.succeed("up", **before)  # the exports of the old shell name this very stack, not somebody else's
    assert new.addresses() == before
    assert new.query("select answer from kept") == [(42,)]


def test_up_finds_other_ports_when_its_own_are_taken(new: StackCommand) -> None:
    new.succeed("up")
    new.query("create table kept as select 42 as answer")
    before = new.state()
    new.succeed("down")
    taken = [socket.create_server(("127.0.0.1", port)) for port in before.postgres.ports + before.kafka.ports]
    new.succeed("up")
    for server in taken:
        server.close()
    after = new.state()
    assert not set(after.postgres.ports + after.kafka.ports) & set(before.postgres.ports + before.kafka.ports)
    assert new.query("select answer from kept") == [(42,)]
    broker = AdminClient({"bootstrap.servers": new.addresses()["OUTBOX_BOOTSTRAP_SERVERS"]})
    assert len(broker.list_topics(timeout=10).brokers) == 1


def test_wipe_removes_everything_the_stack_made(new: StackCommand) -> None:
    new.succeed("up")
    scratch = new.state().scratch
    new.succeed("down", "--wipe")
    assert not new.directory.exists()
    assert not scratch or not Path(scratch).exists()
    again = new.run("down")
    assert again.returncode == 1
    assert f"no stack was started in {new.directory}" in again.stderr


def test_given_servers_are_used_and_never_stopped(up: StackCommand, new: StackCommand) -> None:
    given = up.addresses()
    told = new.succeed("up", **given)
    assert "PostgreSQL from given: a DSN is given" in told
    assert new.addresses() == given
    new.succeed("down")
    assert up.query("select 1") == [(1,)]
    assert up.state().running()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (
            ("--dsn", "postgresql://u:s3cret@127.0.0.1:1/x"),
            "the given PostgreSQL (--dsn, OUTBOX_DSN) does not answer",
        ),
        (("--dsn", "nonsense s3cret"), "the given PostgreSQL (--dsn, OUTBOX_DSN) does not answer"),
        (("--bootstrap-servers", "127.0.0.1:1,[::1]:1"), "none of the given Kafka brokers"),
        (("--bootstrap-servers", "127.0.0.1:port"), "'127.0.0.1:port': the port must be a number"),
    ],
)
def test_given_server_that_does_not_answer_is_refused(
    new: StackCommand, option: tuple[str, str], problem: str
) -> None:
    refused = new.run("up", *option)
    assert refused.returncode == 1
    assert problem in refused.stderr
    assert "s3cret" not in refused.stdout + refused.stderr
    assert new.processes() == []


def test_two_ups_at_once_start_one_stack(new: StackCommand) -> None:
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda _: json.loads(new.succeed("up", "--json"))["started"], range(2)))
    assert sorted(told) == [False, True]
    assert new.state().running()


def test_removing_the_directory_ends_the_servers(new: StackCommand) -> None:
    new.succeed("up")
    processes, scratch = new.processes(), new.state().scratch
    assert len(processes) > 2
    shutil.rmtree(new.directory)
    wait_until(lambda: not any(process.alive() for process in processes), "the servers have ended")
    shutil.rmtree(scratch or new.directory, ignore_errors=True)  # nobody knows of it any more


def test_help_shows_the_order_of_choice_line_by_line(new: StackCommand) -> None:
    lines = [line.strip() for line in new.succeed("up", "--help").splitlines()]
    assert "2. a container, when a Docker engine responds" in lines
    assert 'eval "$(outbox env)"' in lines


def test_unknown_origin_is_refused(new: StackCommand) -> None:
    refused = new.run("up", "--from", "heaven")
    assert refused.returncode == 2
    assert "'heaven' is not one of" in refused.stderr


def _listening_addresses() -> dict[int, set[str]]:
    """The IPv4 and IPv6 addresses on which something listens, by port, as the kernel tells."""
    found: dict[int, set[str]] = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, port = local.split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                text = socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:")
                found.setdefault(int(port, 16), set()).add(text)
    return found
