"""What a turn of the relay costs: statements and round trips, read off the wire, whatever machine it is.

A turn pays for waking up twice for each round trip, and on a busy machine that is what a message waits for. What runs
by the clock (renewals, shares, delayed messages, partitions) is put off here; it is no part of a turn.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.plain_inserts import connect
from tests.support.relay_session import relay_session, turn_until
from tests.support.settled_relay import (
    POLL,
    POLL_AND_BARRIER,
    POLL_WITH_RECORD,
    SettledRelay,
    make_own_barriers,
)
from tests.support.waiting import wait_until


@pytest.fixture
def running(database: str, bootstrap_servers: str, topic: str) -> Iterator[SettledRelay]:
    with connect(database) as producer, relay_session(database, bootstrap_servers) as session:
        yield SettledRelay(session, producer, topic)


def test_a_turn_that_finds_nothing_is_one_statement(running: SettledRelay) -> None:
    assert running.turn() == POLL


@pytest.mark.parametrize("messages", [1, 300])
def test_what_was_acknowledged_is_recorded_with_the_poll_that_finds_more(
    running: SettledRelay, messages: int
) -> None:
    """The record is the barrier of what is on the wire then."""
    running.let_acknowledge(messages)
    running.record_soon(is_time=True)
    running.send(messages)
    assert running.turn() == POLL_WITH_RECORD
    assert (running.sent, running.session.unsettled) == (messages, messages)


def test_what_was_acknowledged_is_recorded_with_the_poll_that_finds_nothing(running: SettledRelay) -> None:
    running.let_acknowledge(1)
    running.record_soon(is_time=True)
    assert running.turn() == POLL_WITH_RECORD
    assert not running.session.unsettled


def test_a_turn_right_behind_a_record_is_one_statement_and_records_nothing(running: SettledRelay) -> None:
    running.let_acknowledge(1)
    assert running.turn() == POLL
    assert running.session.unsettled == 1


def test_a_message_that_comes_alone_and_is_flushed_is_one_statement(running: SettledRelay) -> None:
    """Other tests write to this server, too: a message among what is not flushed yet costs a barrier."""

    def is_found_flushed() -> bool:
        turn_until(running.session, lambda: running.is_settled, "what was before is recorded")
        running.send(1)
        cost = running.turn()
        assert cost in (POLL, POLL_AND_BARRIER)
        assert running.sent == 1
        return cost == POLL

    wait_until(is_found_flushed, "a poll to find that its message is flushed")


def test_a_message_that_comes_alone_waits_for_a_barrier_where_polls_do_not_ask(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as producer:
        make_own_barriers(producer)
        with relay_session(database, bootstrap_servers) as session:
            relay = SettledRelay(session, producer, topic)
            relay.send(1)
            assert relay.turn() == POLL_AND_BARRIER
            assert relay.sent == 1
