"""PostgreSQL snapshots as values: what was visible, and which transactions were still running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A `pg_snapshot`: every transaction below xmax had ended, except those in xip.

    See "Transaction ID and snapshot information functions" in PostgreSQL's manual.
    """

    xmin: int
    xmax: int
    xip: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read PostgreSQL's text form `xmin:xmax:xip,xip`."""
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, xip.split(","))) if xip else ())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.xip))}"

    @property
    def xip_array(self) -> str:
        """The running transactions as the text of a PostgreSQL array."""
        return f"{{{','.join(map(str, self.xip))}}}"

    def has_ended(self, xid: int) -> bool:
        """Whether a transaction had ended."""
        return xid < self.xmax and xid not in self.xip

    @property
    def age(self) -> tuple[int, int, int]:
        """Sort the snapshots of one server: the older of two has the lower xmax or xmin, or more that runs."""
        return self.xmax, self.xmin, -len(self.xip)

    def sees_all_of(self, other: Snapshot) -> bool:
        """Whether every transaction that `other` saw running, or ended, has ended for this one."""
        return self.xmin >= other.xmax


BEGINNING = Snapshot(1, 1)
"""Sees nothing: the difference to it is everything. The floor where none is known."""

EVERYTHING = Snapshot((1 << 63) - 1, (1 << 63) - 1)
"""Sees whatever is committed: for messages that are known to have been read before."""


class Difference(NamedTuple):
    """What `current` sees and `base` does not; `is_partial`: some of it is published."""

    base: Snapshot
    current: Snapshot
    is_partial: bool


class Floor(NamedTuple):
    """How far a lane is published."""

    snapshot: Snapshot
    """All that it sees is published, or waits. BEGINNING where none is known, or another cluster's."""
    is_partial: bool
    """Whether some messages beyond it are published."""
    epoch: int
    """The lane's."""
