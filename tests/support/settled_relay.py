"""A relay in this process that has published before and waits for nothing; tests take its turns and read the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import NamedTuple

from psycopg import sql

from outbox_local.stack.api import Stack
from outbox_relay.publisher.loop import Loop
from outbox_relay.publisher.session import Session
from tests.support.background_flushes import no_background_flushes
from tests.support.plain_inserts import Connection, insert_numbered
from tests.support.relay_session import loop_of, relay_session, turn_until
from tests.support.waiting import wait_until
from tests.support.wire_trace import sent, traced, waits


class Cost(NamedTuple):
    """What a turn exchanged with PostgreSQL."""

    round_trips: int
    executed: int
    parsed: int


POLL = Cost(1, 1, 0)
"""A poll: what it finds is published without a barrier."""
POLL_AND_BARRIER = Cost(2, 2, 0)
"""A poll, and a commit by itself, which is the barrier of what was found and the record of what was before."""
POLL_WITH_RECORD = Cost(1, 2, 0)
"""A record that travels with the poll, and is the barrier of what was found."""


class SettledRelay:
    """A relay that has published before, so that all its statements are prepared, with nothing on the wire.

    What runs by the clock is put off: renewals, who leads, delayed messages, partitions, topics.
    """

    def __init__(self, session: Session, producer: Connection, topic: str) -> None:
        self.session = session
        self._producer, self._topic = producer, topic
        self.sent = 0
        """Messages that were given to Kafka in the last turn."""
        for _ in range(3):
            self.send(1)
            turn_until(session, lambda: self.is_settled, "it is published and recorded")
        session._at.look_at = session._at.retire_at = session._delayed._look_at = inf
        self.loop._clock.signals_at = inf

    @property
    def loop(self) -> Loop:
        """The loop of the session."""
        return loop_of(self.session)

    @property
    def is_settled(self) -> bool:
        return self.session.counts.published > 0 and not self.session.unsettled

    def send(self, messages: int) -> None:
        insert_numbered(self._producer, self._topic, messages)

    def acknowledge(self) -> None:
        """Wait until Kafka has acknowledged all that is on the wire, without a turn."""
        wires = self.loop.wires

        def is_acknowledged() -> bool:
            wires.serve(0.01)
            return not wires.waiting()

        wait_until(is_acknowledged, "all is acknowledged")

    def record_soon(self, *, is_time: bool) -> None:
        """Let the time for the next record be there, or never come."""
        self.loop._clock.record_at = -inf if is_time else inf

    def turn(self) -> Cost:
        """Take a turn."""
        before = self.session.counts.published
        try:
            with traced(self.session._conn) as lines:
                self.session.run_once(0)
        finally:
            self.sent = self.session.counts.published - before
        return Cost(waits(lines), sent(lines, "Bind"), sent(lines, "Parse") + sent(lines, "Query"))

    def let_acknowledge(self, messages: int) -> None:
        """Publish so many messages that Kafka acknowledges, and that are not recorded before it is time."""
        self.send(messages)
        self.turn()
        self.acknowledge()
        self.record_soon(is_time=False)


@contextmanager
def watched_relay(stack: Stack, database: str, topic: str, conn: Connection) -> Iterator[SettledRelay]:
    """Run a relay on servers of this process that commits only in its turns.

    Nothing else writes to the log, so that it is known what is flushed.
    """
    with relay_session(database, stack.bootstrap_servers, clean=False) as session:
        relay = SettledRelay(session, conn, topic)
        # Its own renewals commit, too: not between what a test does and the turn.
        session._renewal.stop()
        turn_until(session, lambda: relay.is_settled, "all is recorded")
        with no_background_flushes(conn):
            yield relay


def make_own_barriers(conn: Connection) -> None:
    """Let relays that begin in this database make a barrier for each batch, whatever their polls could ask.

    What polls find of a server that other tests use as well is not always flushed.
    """
    conn.execute(
        sql.SQL("ALTER DATABASE {} SET outbox.own_barriers = 'on'").format(sql.Identifier(conn.info.dbname))
    )
