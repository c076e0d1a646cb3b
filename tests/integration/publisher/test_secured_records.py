"""What is acknowledged next to polls that need no barrier waits for its record, unless a barrier is made.

On servers of this process, as test_secured_polls.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_local.stack.api import Stack
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import value
from tests.support.servers import MakeTopic
from tests.support.settled_relay import POLL, POLL_AND_BARRIER, SettledRelay, watched_relay

RECORDED = "SELECT coalesce(sum(pg_catalog.cardinality(positions)), 0)::bigint FROM outbox.publication"
INSERTED = "SELECT pg_catalog.pg_current_wal_insert_lsn()"


@pytest.fixture
def conn(private_database: str) -> Iterator[Connection]:
    with connect(private_database) as conn:
        yield conn


@pytest.fixture
def relay(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> Iterator[SettledRelay]:
    with watched_relay(private_stack, private_database, private_topic, conn) as relay:
        relay.let_acknowledge(1)
        yield relay


def test_what_is_flushed_is_published_without_the_record_of_what_was_before(
    relay: SettledRelay, conn: Connection
) -> None:
    relay.send(1)
    before = value(conn, INSERTED)
    assert relay.turn() == POLL
    assert relay.sent == 1
    assert value(conn, INSERTED) == before, "nothing was written before"
    assert relay.session.unsettled == 2


def test_a_barrier_that_is_needed_is_the_record_of_what_was_before(
    relay: SettledRelay, conn: Connection
) -> None:
    before = value(conn, RECORDED)
    conn.execute("SET synchronous_commit = off")
    relay.send(1)
    assert relay.turn() == POLL_AND_BARRIER
    assert (relay.sent, relay.session.unsettled) == (1, 1)
    assert value(conn, RECORDED) == before + 1


def test_a_barrier_for_another_reason_is_the_record_of_what_was_before(
    relay: SettledRelay, conn: Connection, make_private_topic: MakeTopic
) -> None:
    """A topic is read."""
    before = value(conn, RECORDED)
    insert(conn, make_private_topic(), "k", "1")
    relay.turn()
    assert (relay.sent, relay.session.unsettled) == (1, 1)
    assert value(conn, RECORDED) == before + 1
