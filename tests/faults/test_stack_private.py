"""A private stack obeys its test: servers die, stop, freeze and come back on their ports with their data."""

from __future__ import annotations

import socket
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from psycopg.conninfo import conninfo_to_dict

from outbox_local.stack.api import Stack
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.ports import listens
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.process import family
from outbox_relay.downloads.errors import StackError

# One process runs them all: they share a stack.


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def postgres_port(stack: Stack) -> int:
    return int(str(conninfo_to_dict(stack.dsn)["port"]))


def test_killed_postgres_comes_back_with_what_was_committed(
    private_stack: Stack, private_database: str
) -> None:
    with psycopg.connect(private_database) as open_session:
        open_session.execute("create table kept as select 42 as answer")
        open_session.commit()
        open_session.execute("insert into kept values (43)")
        private_stack.kill_postgres()
        assert not listens(postgres_port(private_stack))
        with pytest.raises(psycopg.OperationalError):
            open_session.execute("select 1")
    private_stack.start_postgres()
    with psycopg.connect(private_database) as session:
        assert session.execute("select answer from kept").fetchall() == [(42,)]


def test_kill_takes_every_backend_along(private_stack: Stack, private_database: str) -> None:
    with psycopg.connect(private_database, autocommit=True) as session:
        row = session.execute("select pg_backend_pid()").fetchone()
        assert row is not None
        postmaster = private_stack.process("postgres")
        assert postmaster is not None
        backends = family(postmaster.pid)
        assert row[0] in {backend.pid for backend in backends}
        private_stack.kill_postgres()
        assert not [backend for backend in backends if backend.alive()]


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_broker_comes_back_with_its_messages(private_stack: Stack, private_topic: str, way: str) -> None:
    servers = {"bootstrap.servers": private_stack.bootstrap_servers}
    producer = Producer(servers)
    producer.produce(private_topic, b"kept", partition=0)
    assert producer.flush(30) == 0
    private_stack.kill_kafka() if way == "kill" else private_stack.stop_kafka()
    assert not listens(port_of(private_stack.bootstrap_servers))
    private_stack.start_kafka()
    consumer = Consumer({**servers, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(private_topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"kept"


def test_stopped_postgres_keeps_its_port_for_itself(private_stack: Stack) -> None:
    private_stack.stop_postgres()
    given_out = [socket.create_server(("127.0.0.1", 0)) for _ in range(100)]
    assert postgres_port(private_stack) not in {server.getsockname()[1] for server in given_out}
    for server in given_out:
        server.close()
    private_stack.start_postgres()
    assert listens(postgres_port(private_stack))


def test_paused_postgres_answers_when_it_is_resumed(private_stack: Stack, private_database: str) -> None:
    with psycopg.connect(private_database) as session, ThreadPoolExecutor(1) as pool:
        session.execute("select 1")
        private_stack.pause_postgres()
        answer = pool.submit(session.execute, "select 1")
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.3)
        private_stack.resume_postgres()
        assert answer.result(timeout=30).fetchall() == [(1,)]


def test_paused_postgres_can_be_stopped(private_stack: Stack) -> None:
    private_stack.pause_postgres()
    private_stack.stop_postgres()
    assert private_stack.process("postgres") is None


def test_server_started_from_a_thread_outlives_the_thread(private_stack: Stack) -> None:
    private_stack.kill_postgres()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(private_stack.start_postgres).result()
    with psycopg.connect(private_stack.dsn) as session:
        assert session.execute("select 1").fetchall() == [(1,)]


def test_starting_a_running_server_changes_nothing(private_stack: Stack) -> None:
    before = private_stack.process("postgres"), private_stack.process("kafka")
    private_stack.start_postgres()
    private_stack.start_kafka()
    assert (private_stack.process("postgres"), private_stack.process("kafka")) == before


def test_given_server_cannot_be_killed(private_stack: Stack) -> None:
    options = StackOptions(private_stack.dsn, private_stack.bootstrap_servers, AllowedOrigins.EMBEDDED)
    with (
        Stack.start(options=options) as borrowed,
        pytest.raises(StackError, match="cannot kill postgres: it is given, and only embedded servers"),
    ):
        borrowed.kill_postgres()
    assert listens(postgres_port(private_stack))
