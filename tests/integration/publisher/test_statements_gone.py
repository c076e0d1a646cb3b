"""Prepared statements that are gone from the relay's session are made anew, wherever they are met.

The driver deallocates all of a session when a transaction is rolled back on it: a lock of the lanes was not to be had
in time, or a partition was dropped while several groups were polled. Schedules: what comes next is a poll of several
groups or a record of several steps, each in a transaction, which the error of a missing statement aborts: nothing of
it has happened, and all of it is done again. Polls of partitions that have changed meanwhile are forgotten: nothing of
them is left to be deallocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.partitions import Partition
from outbox_relay.publisher.session import Session
from tests.support.plain_inserts import connect
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.settled_relay import SettledRelay, make_own_barriers


@pytest.fixture
def relay(database: str, bootstrap_servers: str, make_topic: MakeTopic) -> Iterator[SettledRelay]:
    topic = make_topic()
    with connect(database) as producer:
        make_own_barriers(producer)
        with relay_session(database, bootstrap_servers, clean=False) as session:
            yield SettledRelay(session, producer, topic)


def roll_back(session: Session) -> None:
    """Roll a transaction back on the loop's connection, as when a lock of the lanes is not to be had in time."""
    with suppress(psycopg.errors.DivisionByZero), session._conn.transaction():
        session._conn.execute("SELECT 1 / 0")


def divide_the_group(session: Session) -> None:
    """Let the lanes be in two groups, both level, as after lanes were taken over with another progress."""
    (group,) = session._groups
    lanes = sorted(group.lanes)
    group.lanes = set(lanes[:3])
    session._groups.append(Group(set(lanes[3:]), group.progress))


def name_a_partition_that_is_gone(session: Session) -> None:
    live = session._partitions.live
    live.insert(0, Partition("message_gone", -1000, live[0].lower))


def is_published(relay: SettledRelay) -> None:
    before = relay.session.counts.recorded
    relay.send(10)
    turn_until(relay.session, lambda: relay.session.counts.recorded >= before + 10, "all are recorded")


def test_several_groups_are_polled_although_a_transaction_was_rolled_back(relay: SettledRelay) -> None:
    divide_the_group(relay.session)
    relay.turn()
    roll_back(relay.session)
    divide_the_group(relay.session)
    is_published(relay)


def test_several_groups_are_polled_although_a_partition_was_dropped(relay: SettledRelay) -> None:
    divide_the_group(relay.session)
    name_a_partition_that_is_gone(relay.session)
    is_published(relay)


def test_partitions_change_although_a_transaction_was_rolled_back(relay: SettledRelay) -> None:
    roll_back(relay.session)
    name_a_partition_that_is_gone(relay.session)
    is_published(relay)


def test_lanes_that_go_on_are_recorded_although_a_transaction_was_rolled_back(relay: SettledRelay) -> None:
    session = relay.session
    lane = min(session._lease.lanes)
    session._recorder.resume(lane)
    roll_back(session)
    session._recorder.resumed([lane])
    assert not session._recorder.resuming
    is_published(relay)


def has_polled_with_a_rider(relay: SettledRelay) -> None:
    relay.send(1)
    relay.turn()
    relay.acknowledge()
    relay.send(1)
    relay.turn()
    relay.acknowledge()


@pytest.mark.parametrize("gone", ["the poll", "the record"])
def test_either_of_two_that_travel_together_is_made_anew(relay: SettledRelay, gone: str) -> None:
    """The other one was made anew by itself: a record in a settling, or a poll of other partitions."""
    session = relay.session
    names = session._recorder.statements._names
    has_polled_with_a_rider(relay)
    names_gone = [
        name
        for statement, name in names.items()
        if statement.text.startswith(b"INSERT") == (gone == "the record")
    ]
    for name in names_gone:
        session._conn.execute(f"DEALLOCATE {name.decode()}")
    relay.send(1)
    relay.barriers = 0
    relay.turn()
    assert relay.barriers == 1, "the record was not behind the poll"
    is_published(relay)


def test_nothing_is_made_anew_in_another_session(relay: SettledRelay) -> None:
    """A pooler's reset takes the settings as well, on which the barrier rests."""
    has_polled_with_a_rider(relay)
    relay.session._conn.execute("DISCARD ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        relay.turn()
