"""What is acknowledged next to polls that need no barrier waits for its record, unless a barrier is made.

On servers of this process, as test_secured_polls.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_local.stack.api import Stack
from tests.support.background_flushes import no_background_flushes
from tests.support.plain_inserts import Connection, connect
from tests.support.publications import value
from tests.support.settled_relay import SettledRelay, on_the_wire, watched_relay


@pytest.fixture
def conn(private_database: str) -> Iterator[Connection]:
    with connect(private_database) as conn:
        yield conn


@pytest.fixture
def relay(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> Iterator[SettledRelay]:
    with watched_relay(private_stack, private_database, private_topic, conn) as relay:
        yield relay


def acknowledged(relay: SettledRelay) -> None:
    """Have a message acknowledged whose record waits for more, by a relay whose last poll found all flushed."""
    relay.send(1)
    relay.turn()
    relay.acknowledge()
    relay.record_soon(is_time=False)
    relay.session._finder.found_flushed = True
    relay.barriers = 0


def test_what_is_flushed_is_published_without_the_record_of_what_was_before(
    relay: SettledRelay, conn: Connection
) -> None:
    acknowledged(relay)
    with no_background_flushes(conn):
        relay.send(1)
        before = value(conn, "SELECT pg_current_wal_insert_lsn()")
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (2, 0)
        assert value(conn, "SELECT pg_current_wal_insert_lsn()") == before, "nothing was written before"
        assert relay.session._finder.found_flushed


def test_a_barrier_that_is_needed_is_the_record_of_what_was_before(
    relay: SettledRelay, conn: Connection
) -> None:
    acknowledged(relay)
    with no_background_flushes(conn):
        conn.execute("SET synchronous_commit = off")
        relay.send(1)
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 1)
        assert relay.session._finder.found_flushed, "one alone says little of the next"
        relay.acknowledge()
        relay.send(1)
        relay.turn()
        assert not relay.session._finder.found_flushed


def test_a_barrier_for_another_reason_is_the_record_of_what_was_before(
    relay: SettledRelay, conn: Connection, private_topic: str
) -> None:
    acknowledged(relay)
    with no_background_flushes(conn):
        relay.send(1)
        del relay.session._publisher.topics._topics[private_topic]
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 1)
        assert relay.session._finder.found_flushed
