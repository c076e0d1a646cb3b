"""Records that travel with a poll: each is the barrier of what that poll finds, and of nothing else.

Schedules. The record is executed behind the poll, never in front of it: its xid was not given out when the poll took
its snapshot. The poll is made again, because it did not name all partitions: the record does not count for the second
one. The statements are gone from the session: both are executed anew, in their order. The check of ownership is old, or
finds another epoch: a barrier is made by itself, or nothing is published.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher import barriers
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.plain_inserts import Connection, connect
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.settled_relay import SettledRelay, make_own_barriers
from tests.support.waiting import wait_until

NEWEST = "SELECT xid::text::bigint FROM outbox.publication ORDER BY xid DESC LIMIT 1"


class Watched(SettledRelay):
    """It has had a message acknowledged, and has another one to find."""

    def __init__(self, session: Any, producer: Connection, topic: str) -> None:
        super().__init__(session, producer, topic)
        self.send(1)
        self.turn()
        self.acknowledge()
        self.send(1)
        self.barriers = 0

    @property
    def xmax(self) -> int:
        """Where the snapshot of the last poll ends."""
        (group,) = self.session._groups
        return group.progress.snapshot.xmax


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


@pytest.fixture
def relay(
    database: str, conn: Connection, bootstrap_servers: str, make_topic: MakeTopic
) -> Iterator[Watched]:
    topic = make_topic()
    make_own_barriers(conn)
    with relay_session(database, bootstrap_servers, clean=False) as session:
        yield Watched(session, conn, topic)


def newest_xid(conn: Connection) -> int:
    row = conn.execute(NEWEST).fetchone()
    assert row is not None
    return int(row[0])


def test_a_record_is_executed_behind_the_poll_that_it_travels_with(relay: Watched, conn: Connection) -> None:
    relay.turn()
    assert newest_xid(conn) >= relay.xmax, "the poll's snapshot was there first"
    assert relay.barriers == 0
    assert len(relay.session._publisher.in_flight) == 1


def test_a_record_is_no_barrier_for_a_poll_that_is_made_again(relay: Watched, conn: Connection) -> None:
    partitions = relay.session._partitions
    partitions.live, partitions.top = partitions.live[-1:], 0
    relay.turn()
    assert newest_xid(conn) < relay.xmax, "the second poll was behind the record"
    assert relay.barriers == 1
    assert len(relay.session._publisher.in_flight) == 1


def test_statements_that_were_deallocated_are_prepared_again_and_keep_their_order(
    relay: Watched, conn: Connection
) -> None:
    relay.session._conn.execute("DEALLOCATE ALL")
    relay.turn()
    assert newest_xid(conn) >= relay.xmax
    assert len(relay.session._publisher.in_flight) == 1
    turn_until(relay.session, lambda: relay.is_settled, "the rest is recorded")


def test_a_barrier_is_made_again_when_the_check_of_ownership_is_old(
    relay: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barriers, "FRESH_S", 0.0)
    relay.turn()
    assert relay.barriers == 1
    assert len(relay.session._publisher.in_flight) == 1


def test_nothing_is_published_when_the_record_finds_another_epoch(relay: Watched, conn: Connection) -> None:
    before = newest_xid(conn)
    conn.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another'")
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert newest_xid(conn) == before
    assert not relay.session._publisher.in_flight


def test_the_check_of_ownership_is_as_old_as_the_poll_that_took_it_along(
    relay: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is paused for a lease while the answer of the poll is there and not read yet."""
    now = [1_000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(barriers, "time", clock)
    poll = relay.session._finder.poll

    def paused(*given: Any) -> Any:
        answer = poll(*given)
        now[0] += 60.0
        return answer

    monkeypatch.setattr(relay.session._finder, "poll", paused)
    relay.turn()
    assert relay.barriers == 1
    assert len(relay.session._publisher.in_flight) == 1


def test_nothing_is_published_when_only_lanes_without_a_record_were_lost(
    relay: Watched, conn: Connection
) -> None:
    """Paused for a lease, a relay may lose some of its lanes; the record is of the others."""
    session = relay.session
    (batch,) = session._publisher.in_flight
    (lane,) = set(batch.row_lanes)
    batch.lanes = (lane,)
    before = newest_xid(conn)
    conn.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another' WHERE lane <> %s", [lane])
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert newest_xid(conn) == before
    assert not session._publisher.in_flight


@pytest.mark.parametrize("table", ["message", "publication"])
def test_a_session_that_is_terminated_while_both_are_on_the_way_ends(
    relay: Watched, conn: Connection, database: str, table: str
) -> None:
    pid = relay.session._conn.info.backend_pid
    errors: list[BaseException] = []

    def turn() -> None:
        try:
            relay.turn()
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            errors.append(error)

    with connect(database) as other, other.transaction():
        other.execute(f"LOCK TABLE outbox.{table} IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(target=turn)
        thread.start()
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: conn.execute(waits, [pid]).fetchone() is not None, "it waits for the lock")
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])
        thread.join(30)
    (error,) = errors
    assert isinstance(error, psycopg.OperationalError), error


def test_a_session_that_was_terminated_before_ends(relay: Watched, conn: Connection) -> None:
    pid = relay.session._conn.info.backend_pid
    conn.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    with pytest.raises(psycopg.OperationalError):
        relay.turn()
