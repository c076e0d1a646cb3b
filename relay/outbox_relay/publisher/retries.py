"""Retries of stopped lanes, as the database knows them: requested by operators, announced by the relay.

A message that its lane stopped at may be set aside (DEAD) only while it is certain that the relay is not publishing it.
Both sides use the lane's row: the relay announces a retry and commits that before it reads the lane, an operator's
transaction holds the row's lock until it ends (see outbox.leave_lane). Schedules:

- The operator is first: the announcement finds the row locked and is not made; the lane stays stopped and is tried
  again a second later, with a snapshot that sees what became of the message.
- The relay is first: the operator is refused, until the stop or the progress is recorded, each of which ends the
  announcement in the same transaction.
- The relay dies after its announcement, or pauses past its lease: the announcement stays until the next owner of the
  lanes records where they start. A paused relay publishes nothing that it has not given to Kafka already.
- Somebody holds the row when the stop or the progress is to be recorded: the announcement stays until it is
  (publisher/lane_rows.py), also after a clean stop.
- The connection is lost while the announcement commits: the session ends, as for every statement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from outbox.statements import array_text
from outbox_relay.publisher.lease import STATEMENTS, Lease
from outbox_relay.publisher.locked import LockedRows

ASK_EVERY_S = 1.0
"""How often requests are read while lanes are stopped."""
LOCKED_PAUSE_S = 1.0
"""When a lane is tried again whose row somebody holds."""


class Retries:
    """Reads requests and writes announcements under a lease."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease) -> None:
        self._conn = conn
        self._epoch = lease.epoch
        self._locked = LockedRows(conn)
        self._ask_at = 0.0

    def requested(self, now: float) -> list[int]:
        """Return the lanes that somebody asked to be tried again; asks once a second at most.

        Args:
            now: monotonic seconds.
        """
        if now < self._ask_at:
            return []
        self._ask_at = now + ASK_EVERY_S
        rows = self._conn.execute(STATEMENTS["requested"], {"epoch": self._epoch}, prepare=True)
        return [lane for (lane,) in rows]

    def announce(self, lane: int) -> bool:
        """Announce that a stopped lane is read again; return whether that may be done now."""
        values = {"lane": lane, "epoch": self._epoch}
        announced = self._conn.execute(STATEMENTS["announce"], values).rowcount == 1
        if not announced:
            self._locked.report([lane], "trying the stopped lane again")
        return announced

    def withdraw(self, lanes: Iterable[int]) -> None:
        """End the announcements of lanes: nothing is read any more, and all that was read is recorded.

        Args:
            lanes: those whose rows hold what came of earlier retries, and whose message is not in doubt; the others'
                announcements stay.
        """
        values = {"epoch": self._epoch, "lanes": array_text(lanes)}
        self._conn.execute(STATEMENTS["withdraw"], values)
