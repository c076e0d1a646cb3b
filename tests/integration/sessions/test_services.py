"""Relay, checker and consumers do their work in a database whose settings are hostile, and pass no hidden row."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support import hostile
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.kafka_records import read_topic
from tests.support.logins import Logins, logins
from tests.support.plain_inserts import connect
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

__all__ = ["logins"]
HOSTILE = hostile.EVERYTHING | {"lock_timeout": "1ms"}
pytestmark = pytest.mark.usefixtures("without_pgoptions")


@pytest.fixture
def plain(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection from before the settings of its database."""
    with connect(database) as conn:
        yield conn


@pytest.fixture
def inbox(database: str, bootstrap_servers: str) -> Iterator[InboxStage]:
    """A consumer group, whose observer's connection is from before the settings of its database."""
    stage = InboxStage(database, bootstrap_servers)
    yield stage
    stage.close()


def send(dsn: str, *messages: Message) -> None:
    with psycopg.connect(dsn, client_encoding="UTF8") as conn:
        Outbox().send_many(conn, messages)


def test_a_relay_publishes_headers_that_the_databases_encoding_lacks(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    hostile.set_for_database(database, HOSTILE)
    send(
        database,
        Message(topic, key="1", body="值", headers={"名": "值"}, tags=["支付"]),
        Message(topic, key="2", body="b"),
    )
    with RelayProcess(database, bootstrap_servers, variables={"PGCLIENTENCODING": "LATIN1"}):
        wait_until(lambda: len(read_topic(bootstrap_servers, topic)) == 2, "both are published")
    [found] = [record for record in read_topic(bootstrap_servers, topic) if record.key == b"1"]
    assert (found.value, found.header("名"), found.header("outbox-tags")) == ("值".encode(), "值", "支付")


def test_a_checker_decides_whatever_the_styles_of_its_database_are(
    database: str, plain: psycopg.Connection[tuple[object, ...]], groups: Groups
) -> None:
    groups.register("g", {"kind": "sql", "query": "SELECT true"})
    with plain.transaction():
        half = Outbox(producer_group="g").prepare(plain, Message("t", key="k", body="half"))
    hostile.set_for_database(database, HOSTILE)

    def state() -> object:
        found = plain.execute("SELECT state FROM outbox.message WHERE id = %s", [half.id]).fetchone()
        return found and found[0]

    with CheckerProcess(database):
        wait_until(lambda: state() == "COMMITTED", "the checker has asked and decided")


def test_a_slow_listener_is_called_once_whatever_time_outs_its_role_has(
    inbox: InboxStage, topic: str
) -> None:
    hostile.set_for_database(inbox.dsn, hostile.TIMEOUTS)
    calls: list[str] = []
    waits = threading.Event()

    def slow(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        calls.append(str(message.message_id))
        if message.key == b"slow":
            waits.wait(3.0)  # longer than each of the role's time-outs
        return apply(conn, message)

    inbox.produce(topic, "slow", "1", partition=0)
    inbox.produce(topic, "innocent", "2", partition=1)
    inbox.flush()
    with inbox.consumer(topic, slow, timeout=60.0):
        inbox.wait_applied(2)
    assert len(calls) == 2, "no message came again"


def test_rows_that_a_policy_hides_are_an_error_and_published_afterwards(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, logins: Logins
) -> None:
    topic = make_topic(1)
    relay = logins.make("outbox_relay")
    with connect(database) as owner:
        found = owner.execute("SELECT name::text FROM outbox.partition ORDER BY lower LIMIT 1").fetchone()
        assert found is not None
        partition = sql.SQL(found[0])
        with RelayProcess(relay, bootstrap_servers) as process:
            send(database, Message(topic, key="k", body="1"))
            wait_until(lambda: len(read_topic(bootstrap_servers, topic)) == 1, "the first is published")
            owner.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(partition))
            send(database, Message(topic, key="k", body="2"))
            told = wait_until(
                lambda: next((line for line in process.lines if "DISABLE ROW LEVEL SECURITY" in line), None),
                "the relay names what hides its rows, and the repair",
            )
            assert found[0].removeprefix("outbox.") in told
            owner.execute(sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(partition))
            send(database, Message(topic, key="k", body="3"), Message(topic, key="innocent", body="4"))
            wait_until(lambda: len(read_topic(bootstrap_servers, topic)) >= 4, "all four are published")
    bodies = [record.value for record in read_topic(bootstrap_servers, topic)]
    assert set(bodies) == {b"1", b"2", b"3", b"4"}
    assert [body for body in dict.fromkeys(bodies) if body != b"4"] == [b"1", b"2", b"3"]
