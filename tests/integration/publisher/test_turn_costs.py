"""What a turn of the relay costs: statements and round trips, read off the wire, whatever machine it is.

A turn pays for waking up twice for each round trip, and on a busy machine that is what a message waits for. What runs
by the clock (renewals, shares, delayed messages, partitions) is put off here; it is no part of a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import pytest

from outbox_relay.publisher.session import Session
from tests.support.plain_inserts import Connection, connect, insert_numbered
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until
from tests.support.wire_trace import sent, traced, waits


class Cost(NamedTuple):
    """What was said in a turn."""

    round_trips: int
    executed: int
    parsed: int


class Running:
    """A relay that has published before, so that all its statements are prepared, with nothing on the wire."""

    def __init__(self, session: Session, producer: Connection, topic: str) -> None:
        self.session = session
        self._producer, self._topic = producer, topic
        for _ in range(3):
            self.send(1)
            turn_until(session, lambda: self.is_settled, "it is published and recorded")
        session._balance_at = session._retire_at = session._delayed._look_at = inf

    @property
    def is_settled(self) -> bool:
        return self.session.counts.published > 0 and not self.session.unsettled

    def send(self, messages: int) -> None:
        insert_numbered(self._producer, self._topic, messages)

    def acknowledge(self) -> None:
        """Wait until Kafka has acknowledged all that is on the wire, without a turn."""

        def is_acknowledged() -> bool:
            self.session._publisher.serve(0.01)
            return all(batch.is_acknowledged for batch in self.session._publisher.in_flight)

        wait_until(is_acknowledged, "all is acknowledged")

    def turn(self) -> Cost:
        """Take a turn."""
        with traced(self.session._conn) as lines:
            self.session.run_once(0)
        return Cost(waits(lines), sent(lines, "Bind"), sent(lines, "Parse") + sent(lines, "Query"))


@pytest.fixture
def running(database: str, bootstrap_servers: str, make_topic: MakeTopic) -> Iterator[Running]:
    topic = make_topic()
    with connect(database) as producer, relay_session(database, bootstrap_servers) as session:
        yield Running(session, producer, topic)


def test_a_turn_that_finds_nothing_is_one_statement(running: Running) -> None:
    assert running.turn() == Cost(round_trips=1, executed=1, parsed=0)


@pytest.mark.parametrize("messages", [1, 300])
def test_what_was_acknowledged_is_recorded_with_the_poll_that_finds_more(
    running: Running, messages: int
) -> None:
    running.send(messages)
    running.turn()
    running.acknowledge()
    running.send(messages)
    assert running.turn() == Cost(round_trips=1, executed=2, parsed=0)
    assert len(running.session._publisher.in_flight) == 1, (
        "the record was the barrier of what is on the wire now"
    )


def test_what_was_acknowledged_is_recorded_with_the_poll_that_finds_nothing(running: Running) -> None:
    running.send(1)
    running.turn()
    running.acknowledge()
    assert running.turn() == Cost(round_trips=1, executed=2, parsed=0)
    assert not running.session.unsettled


def test_a_message_that_comes_alone_waits_for_a_poll_and_a_barrier(running: Running) -> None:
    running.send(1)
    assert running.turn() == Cost(round_trips=2, executed=2, parsed=0)
