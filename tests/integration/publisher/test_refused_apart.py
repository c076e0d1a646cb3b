"""Kafka refuses a message while a backlog is read apart: only the topic of that message goes one message at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.pq import TransactionStatus

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.errors import DeliveryError
from outbox_relay.publisher.lane_groups import Group
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
PARTIAL = "SELECT count(*) FROM outbox.publication WHERE is_partial"
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


class Careful:
    """Counts the pages of one message that a session publishes."""

    def __init__(self, session: Session) -> None:
        self.pages = 0
        note = session._note_published

        def counted(group: Group, batch: Batch) -> None:
            self.pages += group.careful is not None
            note(group, batch)

        session._note_published = counted  # type: ignore[method-assign]


def finish(session: Session, conn: Connection) -> None:
    turn_until(session, lambda: not value(conn, PENDING), "everything is published")
    assert not any(group.care or group.split for group in session._groups), "the topics are one again"


def test_a_message_that_is_refused_next_to_a_backlog_does_not_slow_it_down(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    many, few = make_topic(), make_topic(partitions=1, cleanup_policy="compact")
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        careful = Careful(session)
        first = [insert(conn, many, "first", "first:0"), insert(conn, few, "k", "k:0", lane=LANE)]
        turn_until(session, lambda: all(value(conn, STATUS, one) for one in first), "both are known")
        insert_numbered(conn, many, BACKLOG)
        turn_until(session, lambda: bool(value(conn, PARTIAL)), "a part of the backlog is recorded")
        with conn.transaction():
            insert(conn, few, "k", "k:1", lane=LANE)
            insert(conn, few, None, b"no key", lane=LANE)
            insert(conn, few, "k", "k:2", lane=LANE)
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        assert value(conn, PENDING) > BACKLOG / 4, "the backlog did not come first"
        assert any(group.split and group.lanes == {LANE} for group in session._groups)
        finish(session, conn)
    assert careful.pages < 10, "only what was next to the message went one by one"
    findings = compare(read_topic(bootstrap_servers, many), [("first", 0), *numbered(BACKLOG)])
    assert not findings.broken
    assert not compare(read_topic(bootstrap_servers, few), [("k", 0), ("k", 1), ("k", 2)]).broken


def test_a_message_that_is_refused_inside_a_backlog_repeats_no_recorded_one(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    topic = make_topic(cleanup_policy="compact")
    half = BACKLOG // 2
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        careful = Careful(session)
        first = insert(conn, topic, "first", "first:0")
        turn_until(session, lambda: bool(value(conn, STATUS, first)), "the topic is known")
        with conn.transaction():
            insert_numbered(conn, topic, half)
            insert(conn, topic, None, b"no key", lane=LANE)
            insert_numbered(conn, topic, half, start=half)
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        finish(session, conn)
    assert careful.pages < 2 * PAGE, "what was recorded of the lane was not read again"
    findings = compare(read_topic(bootstrap_servers, topic), [("first", 0), *numbered(BACKLOG)])
    assert not findings.broken
    assert findings.duplicate_records < half, "what was recorded did not come again"


def test_what_commits_late_in_front_of_a_refused_message_goes_in_pages(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    """It is committed when the message has been refused, with lower positions; its lane has no backlog and no floor."""
    topic, other = make_topic(partitions=1, cleanup_policy="compact"), make_topic(partitions=1)
    late = 4 * PAGE
    with relay_session(database, bootstrap_servers, page=PAGE) as session, connect(database) as slow:
        careful = Careful(session)
        first = [insert(conn, topic, "k", "k:0", lane=LANE), insert(conn, other, "k", "k:0", lane=LANE)]
        turn_until(session, lambda: all(value(conn, STATUS, one) for one in first), "both are known")
        start_over = session._start_over

        def commit_first(error: DeliveryError) -> None:
            if slow.info.transaction_status == TransactionStatus.INTRANS:
                slow.execute("COMMIT")
            start_over(error)

        slow.execute("BEGIN")
        for name in (topic, other):
            for version in range(late):
                insert(slow, name, "late", f"late:{version}", lane=LANE)
        with conn.transaction():
            insert(conn, topic, "k", "k:1", lane=LANE)
            insert(conn, topic, None, b"no key", lane=LANE)
            insert(conn, topic, "k", "k:2", lane=LANE)
        session._start_over = commit_first
        turn_until(session, lambda: bool(value(conn, PARKED, LANE)), "the message parks itself")
        finish(session, conn)
        assert not session.stopped
    assert careful.pages < 10, "only what was on the wire went one by one"
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


def test_what_has_expired_in_front_of_a_refused_message_costs_no_turn_each(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    topic = make_topic(partitions=1, cleanup_policy="compact")
    with relay_session(database, bootstrap_servers) as session:
        careful = Careful(session)
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
        assert not session.stopped
    assert careful.pages < 30, "a page of one by one ends at a message that is published"
    assert not compare(read_topic(bootstrap_servers, topic), [("k", 0), ("k", 1), ("k", 2)]).broken
