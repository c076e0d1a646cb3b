"""Prepared statements that are gone from the relay's session are made anew, wherever they are met.

The driver deallocates all of a session when a transaction is rolled back on it: a lock of the lanes was not to be had
in time, or a partition was dropped while topics with backlogs were polled. Schedules: what comes next is polls of
several topics or a write of several statements, each in a transaction, which the error of a missing statement aborts:
nothing of it has happened, and all of it is done again. Polls of partitions that have changed meanwhile are forgotten:
nothing of them is left to be deallocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import psycopg
import pytest

from outbox.partitioning.lanes import lane_of
from outbox_relay.publisher.partitions import Partition
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, numbered
from tests.support.relay_session import loop_of, relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.settled_relay import SettledRelay, make_own_barriers

Change = Callable[[Session], None]
LIMIT = 10_000
HOLDS = "SELECT (SELECT count(*) FROM outbox.waiting), (SELECT count(*) FROM outbox.parked_key)"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


@pytest.fixture
def relay(database: str, bootstrap_servers: str, topic: str, conn: Connection) -> Iterator[SettledRelay]:
    make_own_barriers(conn)
    with relay_session(database, bootstrap_servers, clean=False) as session:
        yield SettledRelay(session, conn, topic)


def roll_back(session: Session) -> None:
    """Roll a transaction back on the loop's connection, as when a lock of the lanes is not to be had in time."""
    with suppress(psycopg.errors.DivisionByZero), session._conn.transaction():
        session._conn.execute("SELECT 1 / 0")


def name_a_partition_that_is_gone(session: Session) -> None:
    live = loop_of(session).reads.partitions.live
    live.insert(0, Partition("message_gone", -1000, live[0].lower))


def is_published(relay: SettledRelay) -> None:
    before = relay.session.counts.recorded
    relay.send(10)
    turn_until(relay.session, lambda: relay.session.counts.recorded >= before + 10, "all are recorded")


@pytest.mark.parametrize("change", [roll_back, name_a_partition_that_is_gone])
def test_topics_with_backlogs_are_read_although_statements_are_gone(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, conn: Connection, change: Change
) -> None:
    """They are read from lists, and polled beside the others, in one transaction, when their lists have ended."""
    topics = [make_topic() for _ in range(3)]
    turns = count()

    def is_recorded(session: Session, messages: int) -> bool:
        if next(turns) % 3 == 0:
            change(session)
        return session.counts.recorded >= messages

    with relay_session(database, bootstrap_servers, page=20) as session:
        for start in range(0, 200, 50):
            for topic in topics:
                insert_numbered(conn, topic, 50, start=start)
            turn_until(session, lambda start=start: is_recorded(session, 3 * start + 60), "some are recorded")  # type: ignore[misc]
        turn_until(session, lambda: is_recorded(session, 600), "all are recorded")
    for topic in topics:
        found = compare(read_topic(bootstrap_servers, topic), numbered(200))
        assert not found.broken
        assert found.duplicate_records == 0


def test_partitions_change_although_a_transaction_was_rolled_back(relay: SettledRelay) -> None:
    roll_back(relay.session)
    name_a_partition_that_is_gone(relay.session)
    is_published(relay)


def test_a_key_is_held_and_published_although_transactions_are_rolled_back(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    conn.execute(
        "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, 4, %s)", [topic, LIMIT]
    )
    with relay_session(database, bootstrap_servers) as session:

        def is_so(waiting: int, holds: int) -> bool:
            roll_back(session)
            return conn.execute(HOLDS).fetchone() == (waiting, holds)

        lane = lane_of(topic, None, b"k")  # the table trusts a stated lane
        insert(conn, topic, "k", "k:0", lane=lane, headers='{"much": "%s"}' % ("x" * LIMIT))
        insert(conn, topic, "k", "k:1")
        turn_until(session, lambda: is_so(2, 1), "the key is held")
        conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000000 WHERE name = %s", [topic])
        conn.execute("UPDATE outbox.parked_key SET requested_at = pg_catalog.clock_timestamp()")
        turn_until(session, lambda: is_so(0, 0), "it is held no more")
    found = compare(read_topic(bootstrap_servers, topic), [("k", 0), ("k", 1)])
    assert not found.broken
    assert found.duplicate_records == 0


def poll_with_a_record(relay: SettledRelay) -> None:
    relay.let_acknowledge(1)
    relay.record_soon(is_time=True)
    relay.send(1)
    relay.turn()
    relay.acknowledge()
    relay.record_soon(is_time=True)


@pytest.mark.parametrize("gone", ["the poll", "the record"])
def test_either_of_two_that_travel_together_is_made_anew(relay: SettledRelay, gone: str) -> None:
    """The other one was made anew by itself: a record in a settling, or a poll of other partitions."""
    session = relay.session
    poll_with_a_record(relay)
    names = "SELECT name FROM pg_catalog.pg_prepared_statements WHERE (statement LIKE 'INSERT%%') = %s"
    for (name,) in session._conn.execute(names, [gone == "the record"]).fetchall():
        session._conn.execute(f'DEALLOCATE "{name}"'.encode())
    relay.send(1)
    before = session.counts.recorded
    relay.turn()
    assert (relay.sent, session.counts.recorded) == (1, before + 1)
    is_published(relay)


def test_nothing_is_made_anew_in_another_session(relay: SettledRelay) -> None:
    """A pooler's reset takes the settings as well, on which the barrier rests."""
    poll_with_a_record(relay)
    relay.session._conn.execute("DISCARD ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        relay.turn()
