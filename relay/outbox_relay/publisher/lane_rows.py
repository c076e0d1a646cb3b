"""The rows of lanes that stop and go on: written with a batch, or later where another session holds the row.

An operator's open transaction may hold a row of outbox.lane for hours. The relay does not wait: it passes over the
row (`SKIP LOCKED`), keeps the change here, and tries again once a second, while the other lanes flow. Schedules:

- The row is free again: the change is written then. A lane that went on does so from the first batch that was
  published since, however many followed.
- The relay dies first: the row has less than was published. The successor starts at the progress that the row and the
  publications give, and publishes again what lies between that and the change: with the same message ids, in order,
  after the first appearances.
- A lane is not tried again before its stop is written, and a retry is announced before the lane is read. So while a
  change is unwritten the row either shows no stop or an announced retry, and outbox.leave_lane lets no message of it
  become DEAD.
- The process is paused past its lease, and the lanes are taken: the changes carry the epoch and match no row, and the
  ownership check of the same transaction raises LeaseLostError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox_relay.publisher.batch import Stop
from outbox_relay.publisher.doubts import Doubts
from outbox_relay.publisher.lease import LOCK_WAIT_S, STATEMENTS, Lease, columns
from outbox_relay.publisher.locked import LockedRows


@dataclass(frozen=True, slots=True)
class Resumption:
    """A stopped lane goes on; its progress is in publications again, from this batch on."""

    lane: int
    batch: int


Change = Stop | Resumption


class LaneRows:
    """Writes changes of lanes under a lease, and keeps those whose rows are held."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease, doubts: Doubts) -> None:
        self._conn = conn
        self._doubts = doubts
        self._epoch = lease.epoch
        self.locked = LockedRows(conn)
        self._try_at = 0.0
        self.unwritten: dict[int, Change] = {}
        """By lane: what its row does not hold yet."""

    def due(self, *, now: bool = False) -> list[Change]:
        """Return the changes to try again: all of them a second after the last try, or `now`."""
        if not self.unwritten or not (now or time.monotonic() >= self._try_at):
            return []
        return list(self.unwritten.values())

    def write(self, change: Change) -> bool:
        """Write one change, in the caller's transaction; return False where the lane's row is held."""
        values: dict[str, Any] = {"lane": change.lane, "epoch": self._epoch}
        if isinstance(change, Resumption):
            name = "resume"
            values["batch"] = change.batch
        else:
            name = "stop"
            in_doubt = self._doubts.covers(change.lane, change.position, change.message_id)
            values |= {
                "in_doubt": change.in_flight or in_doubt,
                "doubted_until": self._doubts.until.get(change.lane, 0),
                "error": str(change.reason),
                "message_id": None if change.in_flight else change.message_id,
                **columns(change.progress),
            }
        return self._conn.execute(STATEMENTS[name], values, prepare=True).rowcount == 1

    def settle(self, tried: Iterable[tuple[Change, bool]]) -> None:
        """Note what came of changes, once their transaction has committed."""
        for change, written in tried:
            if written:
                self.unwritten.pop(change.lane, None)
            else:
                self.unwritten[change.lane] = change
        if self.unwritten:
            self._try_at = time.monotonic() + LOCK_WAIT_S
            self.locked.report(self.unwritten, "writing that the lane stopped, or goes on")
