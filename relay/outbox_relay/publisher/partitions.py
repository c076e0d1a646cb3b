"""Live partitions: those that can still hold a row to publish, and so are named in the finder's statement.

Why: each named partition costs every poll 20 microseconds or more, and there may be hundreds. A partition leaves
in two steps, of which the second needs what the first one made true:

1. The newest position is beyond it, and S1 is a snapshot taken after that was read, with an xmax above every xid given
   out by then. A position is taken only by a transaction that already has an xid, so every insert into the partition
   is by one below the xmax of S1. (A snapshot's xmax alone is not enough: it is the newest xid that has ended, plus
   one, and a transaction that runs may have a higher one.)
2. Every lane's floor has seen all of S1 end: no insert into it can appear any more. One statement then finds in it
   nothing undecided, dead or waiting, and nothing COMMITTED that one of the floors does not see. So each COMMITTED
   message in it has been read, and it is published, because it does not wait; and none can become COMMITTED again.

Both parts of step 2 are asked in one snapshot, at the moment of leaving. Asked before, the answer would not hold: a
message that was committed and unread then can fail, become DEAD, and be retried when no poll names its partition.

A process that dies in between starts with all partitions again.

History is dropped while this runs. A partition that is known stays named while its table exists, since one that is
detached may be put back; when a statement finds a table gone, `forget_dropped` brings the names that are left.
What is dropped held nothing to publish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements, array_text
from outbox_relay.publisher.lease import newest_position
from outbox_relay.publisher.snapshot import Snapshot

STATEMENTS = Statements("outbox_relay/publisher/upkeep.sql")


@dataclass(slots=True)
class Partition:
    """One partition: its table in schema `outbox`, and its ids from lower (inclusive) to upper (exclusive)."""

    table: str
    lower: int
    upper: int
    full_at: Snapshot | None = None


class LivePartitions:
    """The partitions that the finder has to name.

    Only partitions up to the one after the newest position are named; the header row of every poll carries the
    newest position, so that one beyond them is noticed before the snapshot advances (`reaches_beyond`).
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._dropped: set[str] = set()
        self.live: list[Partition] = []
        self.top = 0
        self.refresh()

    @property
    def tables(self) -> tuple[str, ...]:
        """The names, oldest first."""
        return tuple(p.table for p in self.live)

    def refresh(self, newest: int | None = None) -> None:
        """Read the catalogue again; keep what is known of partitions that stay.

        `newest` is the newest position given out; without it, the database is asked.
        """
        newest = newest_position(self._conn) if newest is None else newest
        known = {p.table: p for p in self.live}
        rows = self._conn.execute(STATEMENTS["all"]).fetchall()
        partitions = [known.get(row[0]) or Partition(*row) for row in rows if row[0] not in self._dropped]
        unlisted = sorted(known.keys() - {row[0] for row in rows})
        if unlisted:
            found = self._conn.execute(STATEMENTS["still_there"], {"tables": unlisted}).fetchall()
            partitions = sorted([*partitions, *(known[row[0]] for row in found)], key=lambda p: p.lower)
        ahead = [p for p in partitions if p.lower > newest]
        self.live = [p for p in partitions if p.lower <= newest] + ahead[:1]
        self.top = self.live[-1].upper if self.live else 0

    def revive(self) -> None:
        """Name all partitions again: rows anywhere may become COMMITTED (a repair)."""
        self._dropped.clear()
        self.live = []
        self.refresh()

    def forget_dropped(self) -> bool:
        """Read the catalogue again after a statement found a table gone; return whether names changed."""
        before = self.tables
        self.refresh()
        return self.tables != before

    def reaches_beyond(self, newest: int) -> bool:
        """Whether a position was given out that may lie in a partition not named in the statement."""
        return newest >= self.top

    def bounds(self) -> list[int]:
        """The upper bounds of all live partitions, ascending."""
        return [p.upper for p in self.live]

    def retire(self, newest: int, now: Snapshot, floors: Iterable[Snapshot]) -> list[str]:
        """Take the next step of leaving for each full partition; return the tables that left.

        Args:
            newest: newest position given out, read before `now` was taken.
            now: a snapshot whose xmax is above every xid given out by then.
            floors: of every lane, what is certainly read.
        """
        floors = list(floors)
        left = []
        # The last one stays, however full: a statement over no partition at all cannot be written.
        for partition in self.live[:-1]:
            if partition.upper > newest:
                break
            if partition.full_at is None:
                partition.full_at = now
            if not all(floor.sees_all_of(partition.full_at) for floor in floors):
                continue
            try:
                if self._is_done(partition, floors):
                    left.append(partition.table)
            except psycopg.errors.UndefinedTable:
                left.append(partition.table)  # dropped, so there is nothing in it
        if left:
            self._dropped.update(left)
            self.live = [p for p in self.live if p.table not in self._dropped]
        return left

    def _is_done(self, partition: Partition, floors: Collection[Snapshot]) -> bool:
        statement = sql.SQL(STATEMENTS["unsettled"]).format(
            partition=sql.Identifier("outbox", partition.table)
        )
        values = {
            "lower": partition.lower,
            "upper": partition.upper,
            "xmax": str(min(floor.xmax for floor in floors)),
            "xip": array_text({xid for floor in floors for xid in floor.xip}),
        }
        return self._conn.execute(statement, values).fetchone() == (False,)
