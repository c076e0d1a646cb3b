"""Upkeep during publishing: delayed messages that fall due, partitions made ahead, and the sweep for what was lost.

Partitions and sweep have a thread and connection of their own, so that a wait for a lock or a long query stalls
nothing. They decide nothing that publishing depends on: what the sweep finds is repaired by the session, between two
turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.database.partitions_ahead import keep_ahead
from outbox_relay.database.periodic import Periodic, Task
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/upkeep.sql")
FIND_DUE_EVERY_S = 0.25
"""Longest time between two searches for what is due."""
LOOK_AT_ALL_EVERY_S = 60.0
"""Time between two searches that begin at the beginning, should somebody have moved a message to an earlier time."""
EVER = "-infinity"
"""Before every time, in SQL, and as text too: times are compared as the text of years up to 9999 in UTC."""

log = Log("relay")

AT_ONCE = 10_000
"""Lost messages that one sweep reports; when there are more, the next one follows in seconds."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a sweep may rely on: for these lanes, all that `snapshot` sees is recorded as published.

    `lowest` is the first id of the oldest live partition.
    """

    snapshot: Snapshot
    lanes: frozenset[int]
    lowest: int


class Upkeep:
    """Makes partitions every ten seconds and sweeps every ten minutes; both also soon after the start.

    Args:
        connect: opens a connection of its own.
        partitions_every, sweep_every: seconds.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        partitions_every: float = 10.0,
        sweep_every: float = 600.0,
    ) -> None:
        self._lock = threading.Lock()
        self._mark: Recorded | None = None
        self._swept: Recorded | None = None
        self._lost: list[tuple[int, int]] = []
        self._periodic = Periodic(
            connect,
            [
                Task(keep_ahead, 1.0, partitions_every),
                # The first sweep waits until partitions without anything to publish have left.
                Task(self.sweep, 30.0, sweep_every),
            ],
        )

    def start(self) -> None:
        """Start the threads."""
        self._periodic.start()

    def stop(self) -> None:
        """End the threads; a query under way is cancelled."""
        self._periodic.stop()

    def mark(self, mark: Recorded) -> None:
        """Give the sweep how far is recorded."""
        with self._lock:
            self._mark = mark

    def take_lost(self, lanes: Collection[int]) -> list[int]:
        """Return, once, the ids that the sweep found, in the order of their positions.

        Args:
            lanes: those that the relay has; what was found of others is their owner's to find.

        Raises:
            Exception: a defect that ended one of the threads.
        """
        self._periodic.check()
        if not self._lost:
            return []
        with self._lock:
            lost, self._lost = self._lost, []
        return [id_ for id_, lane in lost if lane in lanes]

    def sweep(self, conn: psycopg.Connection[Any]) -> bool:
        """Find messages recorded as published that have no publication.

        The first sweep reads live partitions, a later one those that have left as well: all that is new to it was
        given an xid since.
        """
        with self._lock:
            mark, swept = self._mark, self._swept
        if mark is None:
            return False
        if swept is not None and not mark.lanes <= swept.lanes:
            swept = None
        since = BEGINNING if swept is None else swept.snapshot
        conn.execute(STATEMENTS["settings"], {"seqscan": "on" if swept is None else "off"})
        rows = conn.execute(
            STATEMENTS["lost"],
            {
                "lowest": mark.lowest if swept is None else 0,
                "lowest_publication": (swept or mark).lowest,
                "lanes": f"{{{','.join(map(str, mark.lanes))}}}",
                "xmax": str(mark.snapshot.xmax),
                "xip": mark.snapshot.xip_array,
                "since_xmin": str(since.xmin),
                "since_xmax": str(since.xmax),
                "since_xip": since.xip_array,
                "most": AT_ONCE,
            },
        ).fetchall()
        with self._lock:
            self._lost = list(rows)
            if not rows:
                self._swept = mark
        return len(rows) < AT_ONCE


def repair(conn: psycopg.Connection[Any], ids: list[int], lease: Lease) -> None:
    """Let messages be found that the sweep saw to be lost, wherever they lie, in lanes that are ours."""
    log.error("messages were recorded as published and are not; publishing them now", messages=len(ids))
    conn.execute(STATEMENTS["repair"], {"ids": ids, "epoch": lease.epoch, "owner": lease.owner})


class Delayed:
    """Releases delayed messages when they are due, by the database's clock.

    It knows when and from where to search next, so that a relay without delayed messages pays little.

    A message waits from the moment it is committed, by a row of its own in outbox.waiting. It may be committed long
    after that row was written, with a time before the last search: the finder then finds the message and reports it.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._look_at = 0.0
        self._look_at_all = 0.0
        self._since = EVER
        self.due_at = 0.0
        """Before then nothing is due of what is known (monotonic seconds)."""

    def expect(self, due: str) -> None:
        """Search soon, and from this time on (as the finder reads it): a message was committed that waits for it."""
        self._look_at = self.due_at = 0.0
        self._since = min(self._since, due)

    def start_again(self) -> None:
        """Search all that waits: lanes were taken, whose messages another relay knew of."""
        self._look_at = self._look_at_all = self.due_at = 0.0

    def release(self, lanes: Iterable[int]) -> int:
        """Release what is due of these lanes; return how many messages."""
        now = time.monotonic()
        if now < self._look_at:
            return 0
        if now >= self._look_at_all:
            self._look_at_all = now + LOOK_AT_ALL_EVERY_S
            self._since = EVER
        row = self._conn.execute(STATEMENTS["next_due"], {"since": self._since}, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (an aggregate has a row)
        seconds, self._since = row
        self.due_at = now + seconds
        if seconds > 0:
            self._look_at = now + min(seconds, FIND_DUE_EVERY_S)
            return 0
        released = self._conn.execute(
            STATEMENTS["release"], {"since": self._since, "lanes": array_text(lanes)}, prepare=True
        ).rowcount
        if not released:
            # What is due is locked by somebody: do not ask at every turn.
            self._look_at = now + FIND_DUE_EVERY_S
        return released
