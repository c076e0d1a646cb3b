"""Records that travel with a poll: each is the barrier of what that poll finds, and of nothing else.

Schedules. The record is executed behind the poll, never in front of it: its xid was not given out when the poll took
its snapshot. The poll is made again, because it did not name all partitions: the record does not count for the second
one. The statements are gone from the session: both are executed anew, in their order. The check of ownership is old, or
finds another epoch: a barrier is made by itself, or nothing is published.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher import loop
from outbox_relay.publisher.finder import Finder
from outbox_relay.publisher.hands import reads
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes
from tests.support.publications import value
from tests.support.relay_session import relay_session, turn_until
from tests.support.settled_relay import POLL_WITH_RECORD, Cost, SettledRelay, make_own_barriers
from tests.support.waiting import wait_until

NEWEST = "SELECT xid::text::bigint FROM outbox.publication ORDER BY xid DESC LIMIT 1"


class Watched(SettledRelay):
    """It has had a message acknowledged, which is to be recorded now, and has another one to find."""

    def __init__(self, session: Any, producer: Connection, topic: str) -> None:
        super().__init__(session, producer, topic)
        self.let_acknowledge(1)
        self.send(1)
        self.record_soon(is_time=True)

    @property
    def xmax(self) -> int:
        """Where the snapshot of the last poll ends."""
        return self.loop.core.sources.tail.snapshot.xmax


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


@pytest.fixture
def relay(database: str, conn: Connection, bootstrap_servers: str, topic: str) -> Iterator[Watched]:
    make_own_barriers(conn)
    with relay_session(database, bootstrap_servers, clean=False) as session:
        yield Watched(session, conn, topic)


def newest_xid(conn: Connection) -> int:
    return int(value(conn, NEWEST))


def take_lanes(conn: Connection, condition: str = "true") -> None:
    """Let another relay have lanes."""
    conn.execute(f"UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another' WHERE {condition}".encode())


def test_a_record_is_executed_behind_the_poll_that_it_travels_with(relay: Watched, conn: Connection) -> None:
    assert relay.turn() == POLL_WITH_RECORD
    assert newest_xid(conn) >= relay.xmax, "the poll's snapshot was there first"
    assert relay.sent == 1


def test_a_record_is_no_barrier_for_a_poll_that_is_made_again(
    relay: Watched, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = relay.loop.reads.partitions
    partitions.live, partitions.top = partitions.live[-1:], 0
    poll = Finder.poll

    def taken_behind(*given: Any) -> Any:
        answer = poll(*given)
        if newest_xid(conn) < answer.snapshot.xmax:  # the second poll, behind the record
            assert not answer.needs_no_barrier
            take_lanes(conn)
        return answer

    monkeypatch.setattr(Finder, "poll", taken_behind)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_statements_that_were_deallocated_are_prepared_again_and_keep_their_order(
    relay: Watched, conn: Connection
) -> None:
    relay.session._conn.execute("DEALLOCATE ALL")
    relay.turn()
    assert newest_xid(conn) >= relay.xmax
    assert relay.sent == 1
    turn_until(relay.session, lambda: relay.is_settled, "the rest is recorded")


def test_a_barrier_is_made_again_when_the_check_of_ownership_is_old(
    relay: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "FRESH_S", 0.0)
    assert relay.turn() == Cost(round_trips=2, executed=3, parsed=0)
    assert relay.sent == 1


def test_nothing_is_published_when_the_record_finds_another_epoch(relay: Watched, conn: Connection) -> None:
    before = newest_xid(conn)
    take_lanes(conn)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert newest_xid(conn) == before
    assert relay.sent == 0


def test_the_check_of_ownership_is_as_old_as_the_poll_that_took_it_along(
    relay: Watched, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is paused for a lease while the answer of the poll is there and not read yet."""
    now = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(reads, "time", clock)
    poll = Finder.poll

    def paused(*given: Any) -> Any:
        answer = poll(*given)
        assert answer.needs_no_barrier
        now[0] += 60.0
        take_lanes(conn)
        return answer

    monkeypatch.setattr(Finder, "poll", paused)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_nothing_is_published_when_only_lanes_without_a_record_were_lost(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    """Paused for a lease, a relay may lose some of its lanes; the record is of the others."""
    (key,) = keys_of_lanes(conn, topic, 3)
    with relay_session(database, bootstrap_servers, clean=False) as session:
        relay = SettledRelay(session, conn, topic)
        relay.record_soon(is_time=False)
        for body in ("1", "2"):
            insert(conn, topic, key, body)
            if body == "1":
                relay.turn()
                relay.acknowledge()
        relay.record_soon(is_time=True)
        before = newest_xid(conn)
        take_lanes(conn, "lane <> 3")
        with pytest.raises(LeaseLostError):
            relay.turn()
        assert newest_xid(conn) == before
        assert relay.sent == 0


@pytest.mark.parametrize("table", ["message", "publication"])
def test_a_session_that_is_terminated_while_both_are_on_the_way_ends(
    relay: Watched, conn: Connection, database: str, table: str
) -> None:
    pid = relay.session._conn.info.backend_pid
    errors: list[BaseException] = []

    def turn() -> None:
        try:
            relay.turn()
        except BaseException as error:  # noqa: BLE001  (the test asks for it)
            errors.append(error)

    with connect(database) as other, other.transaction():
        other.execute(f"LOCK TABLE outbox.{table} IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=turn)
        thread.start()
        waits = "SELECT FROM pg_catalog.pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: conn.execute(waits, [pid]).fetchone() is not None, "it waits for the lock")
        conn.execute("SELECT pg_catalog.pg_terminate_backend(%s)", [pid])
        thread.join(30)
    (error,) = errors
    assert isinstance(error, psycopg.OperationalError), error
    assert relay.sent == 0


def test_a_session_that_was_terminated_before_ends(relay: Watched, conn: Connection) -> None:
    pid = relay.session._conn.info.backend_pid
    conn.execute("SELECT pg_catalog.pg_terminate_backend(%s, 10000)", [pid])
    with pytest.raises(psycopg.OperationalError):
        relay.turn()
