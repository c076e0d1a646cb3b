"""Publishes what is committed, and returns when all of it is in Kafka: a relay for a test that goes on after it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import psycopg

from outbox_relay.database.connections import connect
from outbox_relay.operations import holds, status
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session

TIMEOUT_S = 30.0


def publish_all(
    dsn: str,
    bootstrap_servers: str,
    *,
    kafka: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_S,
) -> int:
    """Run a relay in this thread until what is committed in the database is published.

    Delayed messages stay until they are due, and half messages until they are decided.

    Args:
        dsn: the database, whose schema is of this version.
        bootstrap_servers: the broker.
        kafka: further settings of librdkafka, as `outbox relay run --kafka-config` takes them.
        timeout: seconds.

    Returns:
        How many messages this relay has published.

    Raises:
        AssertionError: not all of it could be published in time, with the reasons that are known. A message that
            cannot be published is reported at once.
    """
    relay = Relay(RelayOptions(dsn, bootstrap_servers, kafka or {}))
    with connect(dsn, application_name="outbox testing") as conn:
        watch = _Watch(conn, relay)
        relay.on_turn = watch.turn
        # Also where the relay makes no turns, because Kafka or PostgreSQL is away.
        limit = threading.Timer(timeout, relay.stop)
        limit.daemon = True
        limit.start()
        try:
            relay.run()
        finally:
            limit.cancel()
        if not watch.is_done:
            trouble = "; ".join(watch.faults or [relay.vitals.trouble or "no reason is known"])
            raise AssertionError(f"not all messages were published within {timeout:g} s: {trouble}")
    return watch.published


class _Watch:
    """Stops a relay once everything is published, or cannot be."""

    def __init__(self, conn: psycopg.Connection[Any], relay: Relay) -> None:
        self._conn, self._relay = conn, relay
        self._session: Session | None = None
        self._seen = (-1, -1)
        self._earlier = 0
        self._recorded = 0
        self.is_done = False
        self.faults: list[str] = []

    @property
    def published(self) -> int:
        """Messages that were recorded as published, by all sessions."""
        return self._earlier + self._recorded

    def turn(self, session: Session) -> None:
        """Check after a turn that has read, and found nothing, whether there is more to do."""
        if session is not self._session:
            self._session, self._earlier, self._recorded = session, self.published, 0
        counts = session.counts
        self._recorded = counts.recorded
        before, self._seen = self._seen, (counts.polls, counts.published)
        if counts.polls == before[0] or counts.published != before[1] or session.unsettled:
            return
        now = status.look(self._conn)
        self.faults = [f"{hold.place}: {hold.error}" for hold in holds.everything(self._conn)]
        if self.faults:
            self._relay.stop()
        elif not now.total.backlog:
            self.is_done = True
            self._relay.stop()
