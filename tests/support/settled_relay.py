"""A relay in this process that has published before and waits for nothing; tests take its turns and read the wire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import NamedTuple

from psycopg import sql

from outbox_local.stack.api import Stack
from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.session import Session
from tests.support.background_flushes import no_background_flushes
from tests.support.plain_inserts import Connection, insert_numbered
from tests.support.relay_session import relay_session, turn_until
from tests.support.waiting import wait_until
from tests.support.wire_trace import sent, traced, waits


class Cost(NamedTuple):
    """What was said in a turn."""

    round_trips: int
    executed: int
    parsed: int


class SettledRelay:
    """A relay that has published before, so that all its statements are prepared, with nothing on the wire.

    It counts the barriers that are made by themselves, not with a poll.
    """

    def __init__(self, session: Session, producer: Connection, topic: str) -> None:
        self.session = session
        self._producer, self._topic = producer, topic
        self.barriers = 0
        self._count_barriers()
        for _ in range(3):
            self.send(1)
            turn_until(session, lambda: self.is_settled, "it is published and recorded")
        session._balance_at = session._retire_at = session._delayed._look_at = inf

    def _count_barriers(self) -> None:
        recorder = self.session._recorder
        commit = recorder.commit

        def counted(acknowledged: Iterable[Batch], bounds: list[int], *, barrier: bool = False) -> int:
            self.barriers += barrier
            return commit(acknowledged, bounds, barrier=barrier)

        recorder.commit = counted  # type: ignore[method-assign]

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

    def record_soon(self, *, is_time: bool) -> None:
        """Let the time for the next record be there, or never come."""
        self.session._noted_at = -inf if is_time else inf

    def turn(self) -> Cost:
        """Take a turn."""
        with traced(self.session._conn) as lines:
            self.session.run_once(0)
        return Cost(waits(lines), sent(lines, "Bind"), sent(lines, "Parse") + sent(lines, "Query"))


def on_the_wire(relay: SettledRelay) -> int:
    """How many batches are on the wire."""
    return len(relay.session._publisher.in_flight)


@contextmanager
def watched_relay(stack: Stack, database: str, topic: str, conn: Connection) -> Iterator[SettledRelay]:
    """Run a relay on servers of this process that commits only in its turns, and count its barriers.

    Nothing else writes to the log, so that it is known what is flushed.
    """
    with relay_session(database, stack.bootstrap_servers, clean=False) as session:
        relay = SettledRelay(session, conn, topic)
        # Its own renewals commit, too: not between what a test does and the turn.
        session._renewal.stop()
        turn_until(session, lambda: relay.is_settled, "all is recorded")
        relay.barriers = 0
        with no_background_flushes(conn):
            yield relay


def make_own_barriers(conn: Connection) -> None:
    """Let relays that begin in this database make a barrier for each batch, whatever their polls could ask.

    What polls find of a server that other tests use as well is not always flushed.
    """
    conn.execute(
        sql.SQL("ALTER DATABASE {} SET outbox.own_barriers = 'on'").format(sql.Identifier(conn.info.dbname))
    )
