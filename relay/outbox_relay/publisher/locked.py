"""Logs who holds the row of a lane, where the relay goes on without writing it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import psycopg

from outbox_relay.publisher.lease import LOCK_WAIT_S, LanesLockedError, lock_holders
from outbox_relay.text.logs import Log

REPEAT_S = 30.0
"""How often the same lane is logged while its row stays locked."""

log = Log("lanes")


def report_locked(locked: LanesLockedError) -> None:
    """Log who holds the lock by which lanes are taken."""
    log.warning("the lanes are locked, waiting", held_by=locked.holders or "a session that has ended")


class LockedRows:
    """Reports rows of outbox.lane that another session holds, each lane every half minute at most."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._reported: dict[int, float] = {}
        self._missed: frozenset[int] = frozenset()

    def miss(self, lanes: frozenset[int]) -> None:
        """Note lanes that are free and could not be taken, and log those that were not the last time either.

        One that is missed once may have been taken by another relay.
        """
        if again := lanes & self._missed:
            self.report(again, "taking the lane")
        self._missed = lanes

    def report(self, lanes: Iterable[int], left: str) -> None:
        """Log that the rows of these lanes are held, by whom, and what repairs it.

        Args:
            lanes: whose rows are held.
            left: what the relay has not done because of that.
        """
        now = time.monotonic()
        new = sorted(lane for lane in lanes if now - self._reported.get(lane, -REPEAT_S) >= REPEAT_S)
        if not new:
            return
        self._reported.update(dict.fromkeys(new, now))
        log.warning(
            "lane row locked",
            lanes=new,
            held_by=lock_holders(self._conn) or "a session that has ended",
            not_done=left,
            next_try_in_s=LOCK_WAIT_S,
            repair="end that transaction: COMMIT, or pg_terminate_backend(pid); the other lanes go on meanwhile",
        )
