"""What a held snapshot keeps of rows that are done makes no later message dearer: a dump, a long report."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, parked_rows
from outbox.rocketmq.consumer import ClientConfiguration, FilterExpression, SimpleConsumerBuilder
from tests.support.inbox_stage import InboxStage, apply
from tests.support.plain_inserts import Connection
from tests.support.waiting import wait_until

MANY = 400
MOST = 100
"""Entries of an index that may be read for a message; by searches from its beginning it is half of all of them, and two
searches are made for each."""
MOST_RECEIVED = 30
"""The same where two messages are received by one search."""
ENTRIES = """
    SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'outbox' AND indexrelname = %s
"""
SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = pg_catalog.current_database() AND pid NOT IN (%s, pg_catalog.pg_backend_pid())
"""


def entries(conn: Connection, held: Connection, index: str) -> int:
    """How many entries of an index sessions have read that have ended."""
    others = [held.info.backend_pid]
    wait_until(
        lambda: conn.execute(SESSIONS, others).fetchone() == (0,), "the sessions have ended, and counted"
    )
    row = conn.execute(ENTRIES, [index]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture(autouse=True)
def _searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search but the first begin at the beginning: how many do is a matter of time."""
    monkeypatch.setattr(parked_rows, "SEARCHED_FROM_S", 3600.0)


@pytest.fixture
def held(database: str) -> Any:
    """A snapshot that is held to the end of the test."""
    with psycopg.connect(database) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.execute("SELECT 1 FROM outbox.inbox_parked")
        yield conn


def test_a_held_key_is_drained_by_a_look_at_each_of_its_messages(
    inbox: InboxStage, topic: str, held: Connection
) -> None:
    is_mended = False

    def listener(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
        return apply(conn, message) if is_mended or message.key == b"k1" else ConsumeResult.RECONSUME_LATER

    inbox.produce_numbered(topic, MANY, keys=1)
    inbox.produce(topic, "k1", "0")
    inbox.flush()
    with inbox.consumer(topic, listener, orderly=True, delays=DelaySchedule.of([0.1] * 1_000)):
        wait_until(lambda: inbox.count("outbox.inbox_parked") == MANY, "all of the key are parked")
        inbox.wait_applied(1)
        is_mended = True
        inbox.wait_applied(MANY + 1)
    assert inbox.by_key()["k0"] == [*range(MANY)]
    for index in ("inbox_parked_key", "inbox_parked_due"):
        assert entries(inbox.conn, held, index) < MOST * MANY


def test_messages_are_received_by_a_look_at_each_of_them(
    inbox: InboxStage, topic: str, held: Connection
) -> None:
    inbox.produce_numbered(topic, MANY, keys=MANY)
    inbox.flush()
    builder = (
        SimpleConsumerBuilder(inbox.dsn)
        .set_client_configuration(ClientConfiguration(inbox.bootstrap_servers))
        .set_consumer_group(inbox.group)
        .set_subscription_expressions({topic: FilterExpression("*")})
        .set_consume_from(FIRST)
        .set_await_duration(10.0)
    )
    received = 0
    with builder.build() as consumer:
        while received < MANY:
            for view in consumer.receive(2, 60.0):
                consumer.ack(view)
                received += 1
    assert inbox.count("outbox.inbox_parked") == 0
    assert entries(inbox.conn, held, "inbox_parked_due") < MOST_RECEIVED * MANY
