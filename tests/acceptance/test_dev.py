"""`outbox dev`, run as a developer runs it: what it starts, what it says, and that nothing outlives it."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException

from outbox import Message, Outbox
from outbox_local.dev.servers import serving
from outbox_local.stack.api import Stack
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.process import Identity
from tests.support.dev_session import DevSession, dev_session
from tests.support.kafka_records import read_topic
from tests.support.servers import MakeDatabase
from tests.support.stack_command import StackCommand, emptied_stack, kill
from tests.support.topics import Topics
from tests.support.waiting import wait_until

OWN = pytest.mark.xdist_group("dev command")
"""Tests whose sessions start servers: one at a time."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackCommand]:
    """A directory without a stack."""
    with emptied_stack(tmp_path / ".outbox") as command:
        yield command


@pytest.fixture
def given(make_database: MakeDatabase, bootstrap_servers: str) -> tuple[str, ...]:
    """The options that name the servers of the tests, with a database that has no schema."""
    return ("--dsn", make_database(migrated=False), "--bootstrap-servers", bootstrap_servers)


@pytest.fixture
def topic() -> str:
    return Topics.new_name()


def send(dsn: str, topic: str, body: str) -> None:
    """Do what a service does."""
    with psycopg.connect(dsn) as conn:
        Outbox().send(conn, Message(topic, key="o-1", body=body))


def arrived(exports: dict[str, str], topic: str) -> list[bytes | None] | None:
    """Return what is in Kafka; None while its partitions have no leader, as after a start of the broker."""
    try:
        return [record.value for record in read_topic(exports["OUTBOX_BOOTSTRAP_SERVERS"], topic)]
    except KafkaException:
        return None


def test_what_a_service_sends_is_published(
    stack: StackCommand, tmp_path: Path, given: tuple[str, ...], topic: str
) -> None:
    with dev_session(stack, tmp_path / "lines", "--topic", topic, *given) as session:
        send(session.exports["OUTBOX_DSN"], topic, "paid")
        wait_until(lambda: arrived(session.exports, topic) == [b"paid"], "the message is in Kafka")
        session.wait_until_shown("relay   | ")
        session.wait_until_shown("checker | ")
        session.wait_until_shown("console | the console of ")
        [address] = re.findall(r"^console \| .*: (http://127\.0\.0\.1:\d+/)$", session.shown, re.MULTILINE)
        with urllib.request.urlopen(address, timeout=60) as page:
            assert "Relays and lanes" in page.read().decode()
        assert f"topic: {topic}, 12 partitions" in session.shown
        assert session.end() == 0
    assert session.shown.endswith("dev     | stopped\n")


def test_second_session_of_a_directory_says_what_runs(
    stack: StackCommand, tmp_path: Path, given: tuple[str, ...]
) -> None:
    with dev_session(stack, tmp_path / "lines", *given) as session:
        again = stack.run("dev", *given)
        assert again.returncode == 0
        assert f"runs already in {stack.directory}, as process {session.process.pid}" in again.stdout
        assert [f"export {name}={value}" for name, value in session.exports.items()] == [
            line for line in again.stdout.splitlines() if line.startswith("export ")
        ]
        refused = stack.run("dev", "--topic", "more", *given)
        assert refused.returncode == 1
        assert [line.partition(":")[0] for line in refused.stderr.splitlines()] == [
            "Error",
            "make a topic next to it",
            "other options",
        ]
        assert "outbox topic create NAME" in refused.stderr
        assert session.end() == 0
    assert not (stack.directory / "dev.json").exists()


def test_killed_relay_is_started_again_and_given_servers_stay(
    stack: StackCommand, tmp_path: Path, given: tuple[str, ...], topic: str
) -> None:
    with dev_session(stack, tmp_path / "lines", "--topic", topic, *given) as session:
        first = wait_until(lambda: session.child("relay"), "the relay runs")
        kill(first)
        wait_until(lambda: session.child("relay") not in (None, first), "a relay runs again")
        wait_until(
            lambda: "the relay was ended by SIGKILL: starting it again" in session.shown, "it states that"
        )
        send(session.exports["OUTBOX_DSN"], topic, "after")
        wait_until(lambda: arrived(session.exports, topic) == [b"after"], "the message is in Kafka")
        assert session.end(signal.SIGTERM) == 0
    with psycopg.connect(session.exports["OUTBOX_DSN"]) as conn:
        assert conn.execute("select count(*) from outbox.message").fetchone() == (1,)


def test_relay_that_fails_ends_the_session(
    stack: StackCommand, tmp_path: Path, given: tuple[str, ...]
) -> None:
    stack.environment["OUTBOX_RELAY_RUN_PAGE"] = "none"  # (the console refuses settings of Kafka's, too)
    session = DevSession(stack, tmp_path / "lines", *given)
    assert session.process.wait(120) == 1
    assert "the relay ended with exit code 2; its reason is in its lines above" in session.shown
    assert "--page" in session.shown
    assert session.child("checker") is None


def test_json_lines_name_their_process(stack: StackCommand, tmp_path: Path, given: tuple[str, ...]) -> None:
    session = DevSession(stack, tmp_path / "lines", "--json", *given)
    try:
        wait_until(
            lambda: {"dev", "relay", "checker"} <= {line["process"] for line in session.objects},
            "all three have printed a line",
        )
        wait_until(
            lambda: any("environment" in line for line in session.objects), "the addresses are printed"
        )
    finally:
        assert session.end() == 0
    (ready,) = (line for line in session.objects if "environment" in line)
    assert ready["environment"] == {"OUTBOX_DSN": given[1], "OUTBOX_BOOTSTRAP_SERVERS": given[3]}
    assert all("level" in line for line in session.objects if line["process"] != "dev")


def test_fresh_refuses_given_servers(stack: StackCommand, given: tuple[str, ...]) -> None:
    refused = stack.run("dev", "--fresh", *given)
    assert refused.returncode == 1
    assert "--fresh removes the data of local servers, and one is given" in refused.stderr


def test_topic_that_kafka_would_not_take_is_refused_before_anything_starts(stack: StackCommand) -> None:
    refused = stack.run("dev", "--topic", "orders", "--topic", "a b")
    assert refused.returncode == 2
    assert "'a b' is not a legal Kafka topic name" in refused.stderr
    assert not stack.directory.exists()


@OWN
def test_ctrl_c_keeps_the_data_and_fresh_begins_without_at_the_same_addresses(
    stack: StackCommand, tmp_path: Path
) -> None:
    with dev_session(stack, tmp_path / "first", "--topic", "orders") as session:
        exports = session.exports
        send(exports["OUTBOX_DSN"], "orders", "kept")
        wait_until(lambda: arrived(exports, "orders") == [b"kept"], "the message is in Kafka")
        assert session.end() == 0
    assert stack.processes() == []

    busy = socket.create_server(("127.0.0.1", stack.state().kafka.ports[0]))
    with busy:
        refused = stack.run("dev")
        assert refused.returncode == 1
        assert f"port {busy.getsockname()[1]}, on which Kafka is to serve, is taken" in refused.stderr
        assert "outbox dev --kafka-port PORT" in refused.stderr
    assert stack.processes() == []

    with dev_session(stack, tmp_path / "second") as session:
        assert session.exports == exports
        wait_until(lambda: arrived(exports, "orders") == [b"kept"], "the topic can be read")
        assert session.end() == 0
    with dev_session(stack, tmp_path / "third", "--fresh", "--topic", "orders") as session:
        assert session.exports == exports
        wait_until(lambda: arrived(exports, "orders") == [], "the topic is empty")
        assert stack.query("select count(*) from outbox.message") == [(0,)]
        assert session.end() == 0


@OWN
def test_ctrl_c_while_servers_start_is_reported_before_they_are_stopped(
    stack: StackCommand, tmp_path: Path
) -> None:
    session = DevSession(stack, tmp_path / "lines")
    session.wait_until_shown("PostgreSQL serves on")
    session.end()
    assert "dev     | stopping\n" in session.shown
    assert stack.processes() == []


@OWN
def test_ctrl_c_right_after_the_servers_have_started_stops_them_in_order(
    stack: StackCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the signal comes while the servers are handed over to their supervisor."""
    detach, lines = Stack.detach, list[str]()

    def detach_and_interrupt(self: Stack, owner: Identity | None = None) -> None:
        detach(self, owner)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "detach", detach_and_interrupt)
    with (
        pytest.raises(KeyboardInterrupt),
        serving(stack.directory, StackOptions(origins=AllowedOrigins.EMBEDDED), report=lines.append),
    ):
        pass
    assert lines.count("stopping") == 1
    assert stack.processes() == []


@OWN
def test_killed_session_leaves_no_process_and_the_next_one_runs(stack: StackCommand, tmp_path: Path) -> None:
    """Kill -9 of the session: relay and checker die by the kernel, the servers by their supervisor."""
    with dev_session(stack, tmp_path / "first", "--topic", "orders") as session:
        send(session.exports["OUTBOX_DSN"], "orders", "before")
        wait_until(lambda: arrived(session.exports, "orders") == [b"before"], "the message is in Kafka")
        state = stack.state()
        owned = [session.child("relay"), session.child("checker"), state.supervisor]
        owned += [server.process for server in state.servers.values()]
        left: list[Identity] = [each for each in owned if each is not None]
        assert len(left) == 5
        session.process.kill()
        session.process.wait()
        wait_until(lambda: not any(each.alive() for each in left), "all have ended")
    assert (stack.directory / "dev.json").exists()
    with dev_session(stack, tmp_path / "second") as session:
        send(session.exports["OUTBOX_DSN"], "orders", "after")
        wait_until(lambda: arrived(session.exports, "orders") == [b"before", b"after"], "both are in Kafka")
        session.process.kill()
        session.process.wait()
    stack.succeed("down", "--wipe")
    assert not stack.directory.exists()


@OWN
def test_running_stack_is_used_and_stays_and_its_end_ends_the_session(
    stack: StackCommand, tmp_path: Path
) -> None:
    stack.succeed("up")
    with dev_session(stack, tmp_path / "first") as session:
        assert json.loads(stack.succeed("env", "--json")) == session.exports
        refused = StackCommand(stack.directory).run("dev", "--fresh")
        assert refused.returncode == 1
        assert session.end() == 0
    assert stack.state().running()

    refused = stack.run("dev", "--fresh")
    assert refused.returncode == 1
    assert "end it first, with its data: outbox down --wipe" in refused.stderr
    moved = stack.run("dev", "--kafka-port", "1024")
    assert moved.returncode == 1
    assert "serves on port" in moved.stderr
    assert stack.state().running()

    with dev_session(stack, tmp_path / "second") as session:
        stack.succeed("down")
        assert session.process.wait(120) == 1
        assert f"the stack in {stack.directory} is down" in session.shown
