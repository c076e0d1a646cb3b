"""Records that travel with a poll: each is the barrier of what that poll finds, and of nothing else.

Schedules. The record is executed behind the poll, never in front of it: its xid was not given out when the poll took
its snapshot. The poll is made again, because it did not name all partitions: the record does not count for the second
one. The statements are gone from the session: both are executed anew, in their order. The check of ownership is old, or
finds another epoch: a barrier is made by itself, or nothing is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox_relay.publisher import barriers
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.plain_inserts import Connection, connect
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.settled_relay import SettledRelay

NEWEST = "SELECT xid::text::bigint FROM outbox.publication ORDER BY xid DESC LIMIT 1"


class Watched(SettledRelay):
    """It counts the barriers that are made by themselves, and has a message acknowledged and another one to find."""

    def __init__(self, session: Any, producer: Connection, topic: str) -> None:
        super().__init__(session, producer, topic)
        self.barriers = 0
        commit = session._recorder.commit

        def counted(*given: Any, barrier: bool = False) -> int:
            self.barriers += barrier
            messages: int = commit(*given, barrier=barrier)
            return messages

        session._recorder.commit = counted
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
