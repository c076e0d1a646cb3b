"""A topic with a backlog is read apart by a whole relay: what is recorded meanwhile; stops, failures, successors.

The tests act between two turns of a session, while a part of the backlog is published and the rest is on its list.
"""

from __future__ import annotations

import pytest

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import Findings, compare, read_topic
from tests.support.plain_inserts import Connection, insert, insert_numbered, numbered
from tests.support.relay_session import loop_of, relay_session, turn_until
from tests.support.servers import MakeTopic

PAGE = 100
BACKLOG = 3_000
PENDING = "SELECT count(*) FROM outbox.message_status WHERE status = 'COMMITTED' AND waiting IS NULL"
PARTIAL = """
    SELECT coalesce((SELECT b.is_partial FROM outbox.publication b ORDER BY b.epoch DESC, b.batch DESC LIMIT 1), false)
"""


def value(conn: Connection, query: str, *values: object) -> int:
    row = conn.execute(query, values).fetchone()
    assert row is not None
    return int(row[0])


def read_apart(session: Session, conn: Connection, topic: str) -> None:
    """Let a relay that is caught up meet a backlog, and take turns until a part of it is recorded."""
    insert(conn, topic, "first", "first:0")
    turn_until(session, lambda: not value(conn, PENDING), "the relay has caught up")
    insert_numbered(conn, topic, BACKLOG)
    turn_until(session, lambda: bool(value(conn, PARTIAL)), "a part of the backlog is recorded")
    assert value(conn, PENDING), "the rest is still to be published"


def finish(session: Session, conn: Connection) -> None:
    turn_until(session, lambda: not value(conn, PENDING), "everything is published")


def found(bootstrap_servers: str, topic: str) -> Findings:
    records = read_topic(bootstrap_servers, topic)
    return compare(records, [("first", 0), *numbered(BACKLOG)])


@pytest.mark.feature("H-12")
def test_a_message_is_published_before_the_older_backlog_of_another_topic(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection
) -> None:
    many, one = make_topic(), make_topic()
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        read_apart(session, conn, many)
        message = insert(conn, one, "k", b"")
        status = "SELECT count(*) FROM outbox.message_status WHERE message_id = %s AND status = 'PUBLISHED'"
        turn_until(session, lambda: bool(value(conn, status, message)), "the message is published")
        assert value(conn, PENDING) > BACKLOG / 2, "the backlog did not come first"
        insert(conn, many, "k0", f"k0:{BACKLOG}")
        finish(session, conn)
    records = read_topic(bootstrap_servers, many)
    findings = compare(records, [("first", 0), *numbered(BACKLOG), ("k0", BACKLOG)])
    assert not findings.broken
    assert not findings.duplicate_records


@pytest.mark.feature("H-12")
def test_a_failed_delivery_beside_a_backlog_loses_and_reorders_nothing(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        read_apart(session, conn, topic)
        recorded = session.counts.recorded
        core = loop_of(session).core
        core.lost(core.streams.main)
        finish(session, conn)
    findings = found(bootstrap_servers, topic)
    assert not findings.broken
    assert findings.duplicate_records <= BACKLOG - recorded, "what was recorded did not come again"


def test_lanes_that_another_relay_takes_beside_a_backlog_repeat_nothing(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as first:
        read_apart(first, conn, topic)
        with relay_session(database, bootstrap_servers, page=PAGE) as second:

            def has_lanes() -> bool:
                first.run_once(0.005)
                return bool(second.lanes)

            conn.execute("UPDATE outbox.lease SET is_draining = true WHERE epoch = %s", [first.epoch])
            turn_until(second, has_lanes, "the second relay takes the lanes")
            assert value(conn, PENDING), "the rest is still to be published"
            turn_until(second, lambda: not value(conn, PENDING), "it publishes the rest")
            assert second.counts.published
    findings = found(bootstrap_servers, topic)
    assert not findings.broken
    assert not findings.duplicate_records


@pytest.mark.feature("H-12")
@pytest.mark.parametrize("clean", [True, False], ids=["stops", "dies"])
def test_a_successor_goes_on_with_the_rest_of_a_backlog(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, *, clean: bool
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE, clean=clean) as session:
        read_apart(session, conn, topic)
    left = value(conn, PENDING)
    assert left
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        finish(session, conn)
        published = session.counts.published
    findings = found(bootstrap_servers, topic)
    assert not findings.broken
    assert published == left, "what has a publication is not read again"
    assert findings.duplicate_records == 0 if clean else findings.duplicate_records <= left
