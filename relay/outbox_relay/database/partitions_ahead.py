"""Partitions made ahead of need, by the relay and by the checker.

A row without a partition fails: a business transaction that sends, and the record of what the relay published. So
whichever of the two services runs makes partitions; `outbox.ensure_partitions` takes a lock and may be called by any
number of them at once. A service that may not call it, or finds a lock that somebody holds, logs that and goes on
with the partitions that exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from outbox.backoff import Backoff
from outbox.statements import Statements
from outbox_relay.database.reasons import is_away, may_heal, reason
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/database/partitions_ahead.sql")
LOCKED = psycopg.errors.LockNotAvailable.sqlstate
REPAIR = "outbox db partitions --ensure 7"

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
START_LAST_PAUSE_S = 1.0
START_WAIT_S = 2.0
"""A start waits so long for partitions when none has room; then it begins, for messages that have their place."""

log = Log("partitions")


def keep_ahead(conn: psycopg.Connection[Any]) -> bool:
    """Make partitions, if there are too few; return False where a lock was in the way: try again soon.

    Raises:
        psycopg.OperationalError: the connection is gone.
    """
    failed = ensure(conn)
    ahead, _, taken = _room(conn)
    if taken:
        log.warning(
            "ids are taken without messages: large inserts were rolled back, "
            "or a login calls nextval('outbox.position')",
            ids=taken,
            repair="find it among the members of outbox_producer, in pg_stat_activity",
        )
    if failed is not None:
        log.warning("partitions not made, trying again", ahead=ahead, **failed)
    if ahead == 0:
        log.error(
            "the next partition is missing: when the present one is full, every send fails", repair=REPAIR
        )
    return failed is None or failed.get("sqlstate") != LOCKED


def ensure(conn: psycopg.Connection[Any]) -> dict[str, Any] | None:
    """Make partitions once; return why that failed, or None.

    It waits 200 ms at most for each lock. Call it outside a transaction.

    Raises:
        psycopg.OperationalError: the connection is gone.
    """
    try:
        row = conn.execute(STATEMENTS["ensure"]).fetchone()
    except psycopg.Error as error:
        if conn.closed or is_away(error) or not may_heal(error):
            raise
        return reason(error)
    if row is not None and row[0]:
        log.info("partitions made", count=row[0])
    return None


def ensure_at_start(conn: psycopg.Connection[Any], sleep: Callable[[float], None]) -> None:
    """Make partitions before anything is published; wait for them, for 2 s at most, when there is no room.

    Where the newest position has a partition, a lock that somebody holds does not delay publishing.

    Args:
        conn: in autocommit.
        sleep: pauses for so many seconds, or less when the service is to stop.
    """
    until, backoff = time.monotonic() + START_WAIT_S, Backoff(FIRST_PAUSE_S, START_LAST_PAUSE_S)
    while (failed := ensure(conn)) is not None:
        _, room, _ = _room(conn)
        log.warning("partitions not made", room_for_messages=max(room, 0), repair=REPAIR, **failed)
        if room > 0 or time.monotonic() >= until:
            return
        sleep(backoff.next())


class Room:
    """Makes room for a position that lies beyond the last partition, and reports while it has none.

    A decision or a release takes a position without inserting a row, so that positions may pass the end of the last
    partition when failing inserts have used up its ids. What is published there could not be recorded and would be
    published again by every session: it waits instead.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        self._retry_at = 0.0

    def make(self, position: int, last: Callable[[], int]) -> bool:
        """Return whether the position has a partition now; make one unless that failed a moment ago.

        Args:
            position: the highest one to be recorded.
            last: reads the catalogue and returns the upper bound (exclusive) of the last partition.
        """
        if time.monotonic() < self._retry_at:
            return False
        if position < last():
            return True
        failed = ensure(self._conn)
        upper = last()
        if position < upper:
            self._backoff.reset()
            return True
        pause = self._backoff.next()
        log.error(
            "a message's position has no partition: nothing is published until one is made",
            position=position,
            partitions_end_at=upper,
            repair=REPAIR,
            next_try_in_s=pause,
            **(failed or {}),
        )
        self._retry_at = time.monotonic() + pause
        return False


def _room(conn: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Return how many partitions lie ahead, how many positions have one, and how many ids no message has."""
    row = conn.execute(STATEMENTS["ahead"]).fetchone()
    return (0, 0, 0) if row is None else (int(row[0]), int(row[1]), int(row[2]))
