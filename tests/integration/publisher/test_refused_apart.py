"""Kafka refuses a message while a backlog is read apart: only the topic of that message goes one message at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest
from psycopg.pq import TransactionStatus

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.streams import Producer
from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, numbered
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic

pytestmark = pytest.mark.usefixtures("may_not_describe_configs")

PAGE = 100
BACKLOG = 4_000
LANE = 5
PENDING = "SELECT count(*) FROM outbox.message_status WHERE status = 'COMMITTED' AND waiting IS NULL"
PARKED = "SELECT count(*) FROM outbox.parked_key WHERE lane = %s AND error LIKE 'INVALID_RECORD:%%'"
STATUS = "SELECT count(*) FROM outbox.message_status WHERE message_id = %s AND status = 'PUBLISHED'"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def value(conn: Connection, query: str, *values: object) -> int:
    row = conn.execute(query.encode(), values).fetchone()
    assert row is not None
    return int(row[0])


def finish(session: Session, conn: Connection) -> None:
    turn_until(session, lambda: not value(conn, PENDING), "everything is published")


def test_a_message_that_is_refused_next_to_a_backlog_does_not_slow_it_down(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    many, few = make_topic(), make_topic(partitions=1, cleanup_policy="compact")
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        first = [insert(conn, many, "first", "first:0"), insert(conn, few, "k", "k:0", lane=LANE)]
        turn_until(session, lambda: all(value(conn, STATUS, one) for one in first), "both are known")
        insert_numbered(conn, many, BACKLOG)
        turn_until(session, lambda: value(conn, PENDING) < BACKLOG, "a part of the backlog is recorded")
        with conn.transaction():
            insert(conn, few, "k", "k:1", lane=LANE)
            insert(conn, few, None, b"no key", lane=LANE)
            insert(conn, few, "k", "k:2", lane=LANE)
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        assert value(conn, PENDING) > BACKLOG / 4, "the backlog did not come first"
        finish(session, conn)
    findings = compare(read_topic(bootstrap_servers, many), [("first", 0), *numbered(BACKLOG)])
    assert not findings.broken
    assert findings.duplicate_records < BACKLOG / 4, "what was recorded did not come again"
    assert not compare(read_topic(bootstrap_servers, few), [("k", 0), ("k", 1), ("k", 2)]).broken


def test_a_message_that_is_refused_inside_a_backlog_repeats_no_recorded_one(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    topic = make_topic(cleanup_policy="compact")
    half = BACKLOG // 2
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        first = insert(conn, topic, "first", "first:0")
        turn_until(session, lambda: bool(value(conn, STATUS, first)), "the topic is known")
        with conn.transaction():
            insert_numbered(conn, topic, half)
            insert(conn, topic, None, b"no key", lane=LANE)
            insert_numbered(conn, topic, half, start=half)
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        finish(session, conn)
    findings = compare(read_topic(bootstrap_servers, topic), [("first", 0), *numbered(BACKLOG)])
    assert not findings.broken
    assert findings.duplicate_records < half, "what was recorded did not come again"


def test_what_commits_late_in_front_of_a_refused_message_keeps_its_order(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is committed when the message has been refused, with lower positions."""
    topic, other = make_topic(partitions=1, cleanup_policy="compact"), make_topic(partitions=1)
    late = 4 * PAGE
    with relay_session(database, bootstrap_servers, page=PAGE) as session, connect(database) as slow:
        first = [insert(conn, topic, "k", "k:0", lane=LANE), insert(conn, other, "k", "k:0", lane=LANE)]
        turn_until(session, lambda: all(value(conn, STATUS, one) for one in first), "both are known")
        refused = Core.refused

        def commit_first(core: Core, items: Collection[Item], producer: Producer) -> None:
            if slow.info.transaction_status == TransactionStatus.INTRANS:
                slow.execute("COMMIT")
            refused(core, items, producer)

        monkeypatch.setattr(Core, "refused", commit_first)
        slow.execute("BEGIN")
        for name in (topic, other):
            for version in range(late):
                insert(slow, name, "late", f"late:{version}", lane=LANE)
        with conn.transaction():
            insert(conn, topic, "k", "k:1", lane=LANE)
            insert(conn, topic, None, b"no key", lane=LANE)
            insert(conn, topic, "k", "k:2", lane=LANE)
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        finish(session, conn)
    late_ones = [("late", version) for version in range(late)]
    expected = [("k", 0), ("k", 1), ("k", 2), *late_ones]
    found = compare(read_topic(bootstrap_servers, topic), expected)
    assert not found.broken
    found = compare(read_topic(bootstrap_servers, other), [("k", 0), *late_ones])
    assert not found.broken
    assert found.duplicate_records == 0


EXPIRED = "SELECT count(*) FROM outbox.waiting WHERE reason = 'expired'"
SEND_EXPIRED = """
    INSERT INTO outbox.message (topic, key, body, lane, deliver_before)
    SELECT %s, 'k', 'late', %s, '2001-01-01' FROM generate_series(1, %s)
"""


def test_what_has_expired_in_front_of_a_refused_message_is_claimed(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    topic = make_topic(partitions=1, cleanup_policy="compact")
    with relay_session(database, bootstrap_servers) as session:
        with conn.transaction():
            insert(conn, topic, "k", "k:0", lane=LANE)
            conn.execute(SEND_EXPIRED, [topic, LANE, 300])
            insert(conn, topic, "k", "k:1", lane=LANE)
            conn.execute(SEND_EXPIRED, [topic, LANE, 300])
            insert(conn, topic, None, b"no key", lane=LANE)
            insert(conn, topic, "k", "k:2", lane=LANE)
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        finish(session, conn)
        assert value(conn, EXPIRED) == 600
    assert not compare(read_topic(bootstrap_servers, topic), [("k", 0), ("k", 1), ("k", 2)]).broken
