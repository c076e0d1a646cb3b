"""Partitions as operators see them: how full they are, and how long the ones ahead will last."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/partitions.sql")

# Relay and checker make partitions too, and hold the lock while they do: a second or so on a busy machine.
GIVE_UP_S = 5.0
PAUSE_S = 0.1


class PartitionsBusyError(OperatorError):
    """Partitions cannot be added now because another session holds a conflicting lock; nothing was changed."""


RESERVE = 1_000_000_000
"""A partition with so many ids is a reserve, as `outbox.is_reserve` has it."""
MANY_IDS, TAKEN = 5_000_000, 10
"""With so many ids used up, and ten times as many as there are messages, somebody takes ids without sending."""


@dataclass(frozen=True)
class PartitionUsage:
    """One partition: ids from lower (inclusive) to upper (exclusive), rows estimated, size in bytes."""

    name: str
    lower: int
    upper: int
    rows: int
    size: int


@dataclass(frozen=True)
class Partitions:
    """All partitions, oldest first; the newest id given out; ids per second (None: no message yet)."""

    all: list[PartitionUsage]
    newest_id: int
    per_second: float | None

    @property
    def ahead(self) -> int:
        """How many partitions begin after the newest id."""
        return sum(1 for partition in self.all if partition.lower > self.newest_id)

    @property
    def has_current(self) -> bool:
        """Whether the next insert has a partition."""
        return any(p.lower <= self.newest_id + 1 < p.upper for p in self.all)

    @property
    def ids_left(self) -> int:
        """How many ids can still be given out."""
        return max((self.all[-1].upper if self.all else 1) - 1 - self.newest_id, 0)

    def seconds_until(self, id: int) -> float | None:
        """How long until this id is reached at the present rate; None when it is unknown."""
        if not self.per_second:
            return None
        return max(id - self.newest_id, 0) / self.per_second

    @property
    def taken(self) -> int:
        """How many ids of the current partition were taken without a message, if nearly all were; else 0."""
        for partition in self.all:
            ids = self.newest_id - partition.lower
            if self.place(partition) == "current" and ids >= MANY_IDS and partition.rows < ids / TAKEN:
                return ids - partition.rows
        return 0

    def place(self, partition: PartitionUsage) -> str:
        """Return where the partition is on the way: full, current, ahead or, at the end, the reserve."""
        if partition.lower > self.newest_id:
            return "reserve" if partition.upper - partition.lower >= RESERVE else "ahead"
        return "full" if partition.upper <= self.newest_id + 1 else "current"


def read(conn: psycopg.Connection[Any]) -> Partitions:
    """Read bounds, sizes and the present rate."""
    found = [PartitionUsage(*row) for row in conn.execute(STATEMENTS["list"]).fetchall()]
    newest_id, per_second = conn.execute(STATEMENTS["pace"]).fetchone() or (1, None)
    return Partitions(found, newest_id, per_second)


def ensure(conn: psycopg.Connection[Any], days: int) -> int:
    """Make partitions for the coming days and return how many were added.

    Inserts go on meanwhile: a conflicting lock (a vacuum or DDL of the same table, another session that adds
    partitions) is waited for 200 ms at a time, again and again for GIVE_UP_S seconds. Call it in autocommit.

    Raises:
        PartitionsBusyError: the lock was never free; nothing was changed.
    """
    until = time.monotonic() + GIVE_UP_S
    while True:
        try:
            row = conn.execute(STATEMENTS["ensure"], {"days": days}).fetchone()
            return int(row[0]) if row else 0
        except psycopg.errors.LockNotAvailable as error:
            if time.monotonic() >= until:
                raise PartitionsBusyError(
                    "partitions cannot be added now: another session works on outbox.message, outbox.publication or "
                    f"outbox.event (VACUUM, ANALYZE, DDL) or adds partitions itself, for {GIVE_UP_S:.0f} s already. "
                    "Nothing was changed.\n"
                    f"try again: outbox db partitions --ensure {days}"
                ) from error
        time.sleep(PAUSE_S)
