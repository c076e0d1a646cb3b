"""A relay in this process that has published before and waits for nothing; tests take its turns and read the wire."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from outbox_relay.publisher.session import Session
from tests.support.plain_inserts import Connection, insert_numbered
from tests.support.relay_session import turn_until
from tests.support.waiting import wait_until
from tests.support.wire_trace import sent, traced, waits


class Cost(NamedTuple):
    """What was said in a turn."""

    round_trips: int
    executed: int
    parsed: int


class SettledRelay:
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
