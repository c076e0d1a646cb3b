"""Closed windows of transactions, and the watermark up to which a warehouse is filled.

A window [lo, hi) is closed: every transaction below hi has ended, so whatever it wrote can be read, and nothing can
appear in it later. Rows only leave a closed window: a message that is changed again takes the xid of that change and
comes with a later window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from outbox_etl.errors import OtherClusterError, SourceError, TargetError

PREFIX = "outbox."


@dataclass(frozen=True, slots=True)
class Cluster:
    """Whose xids they are. In another cluster, or after a fail-over, the same numbers name other transactions."""

    system_identifier: str
    timeline: int
    database: int = 0
    """Its object id: the databases of a cluster share xids, not messages. 0: a watermark of before it was written."""

    def __str__(self) -> str:
        """For people."""
        return f"the cluster {self.system_identifier}, its database {self.database}"

    def is_beside(self, other: Cluster) -> bool:
        """Whether the other one is another database of the same cluster."""
        return self.system_identifier == other.system_identifier and 0 != self.database != other.database != 0


@dataclass(frozen=True, slots=True)
class Part:
    """How far a run has come with a window: of its new messages those of ids below `below` are in the warehouse."""

    hi: int
    top: int
    below: int
    wal: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """What a commit of message_history states: everything below `hi` is in the warehouse."""

    hi: int
    top: int
    """The highest id that had been given out: messages above it are new to the warehouse."""
    cluster: Cluster
    foreign: int = 0
    """The highest xid that rows brought from another cluster (a restore): windows up to it contain them again."""
    wal: int = 0
    """How far the cluster's log was on disk, in bytes. 0: a watermark of before it was written."""
    part: Part | None = None
    """The window after it, of which a run has written a part; the next run goes on there."""

    def properties(self) -> dict[str, str]:
        """The watermark as properties of a commit."""
        return {
            f"{PREFIX}window-hi": str(self.hi),
            f"{PREFIX}top-id": str(self.top),
            f"{PREFIX}system-identifier": self.cluster.system_identifier,
            f"{PREFIX}timeline": str(self.cluster.timeline),
            **({f"{PREFIX}database": str(self.cluster.database)} if self.cluster.database else {}),
            **({f"{PREFIX}foreign-xid": str(self.foreign)} if self.foreign else {}),
            **({f"{PREFIX}wal-position": str(self.wal)} if self.wal else {}),
            **(
                {f"{PREFIX}part-{name}": str(value) for name, value in asdict(self.part).items()}
                if self.part
                else {}
            ),
        }

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Watermark | None:
        """Read the watermark of a commit; None when it carries none (a compaction).

        Raises:
            TargetError: it carries something else under these names.
        """
        if f"{PREFIX}window-hi" not in properties:
            return None
        try:
            cluster = Cluster(
                properties[f"{PREFIX}system-identifier"],
                int(properties[f"{PREFIX}timeline"]),
                int(properties.get(f"{PREFIX}database", "0")),
            )
            hi, top = int(properties[f"{PREFIX}window-hi"]), int(properties[f"{PREFIX}top-id"])
            foreign, wal = (
                int(properties.get(f"{PREFIX}{name}", "0")) for name in ("foreign-xid", "wal-position")
            )
            part = None
            if f"{PREFIX}part-hi" in properties:
                part = Part(*(int(properties[f"{PREFIX}part-{each.name}"]) for each in fields(Part)))
            return cls(hi, top, cluster, foreign, wal, part)
        except (KeyError, ValueError) as error:
            raise TargetError(f"the watermark of message_history cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Horizon:
    """The state of the source at one moment."""

    cluster: Cluster
    hi: int
    """Every transaction below has ended."""
    top: int
    """The highest id given out."""
    next: int
    """Above every xid that had ended."""
    foreign: int = 0
    """The highest xid of a row, if this cluster cannot have given it out; else 0."""
    wal: int = 0
    """How far the cluster's log is on disk, in bytes; a standby's: how far it was replayed."""
    standby: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The transactions [lo, hi) of a cluster."""

    lo: int
    hi: int
    top: int
    """The highest id given out when `hi` was read."""
    known: int
    """The highest id given out when `lo` was read: rows below changed later, or were late."""
    cluster: Cluster
    again: bool = False
    """Read again by a backfill: what the warehouse has beyond it stays."""
    rebase: bool = False
    """From another cluster than the warehouse was filled from: the source's rows win whatever their xids."""
    next: int = 0
    """Above every xid that had ended when `hi` was read."""
    foreign: int = 0
    """The highest xid that came with rows of another cluster (a restore); 0: none above the window's lower bound."""
    wal: int = 0
    """How far the cluster's log was on disk when `hi` had been read."""
    below: int = 0
    """Its new messages of ids below are in the warehouse: a run that died has written them. 0: it begins."""

    @property
    def written(self) -> str:
        """The condition that names this window's rows of the append-only tables, once they are written.

        A restored database brings rows of higher xids than its own; those of this window may be there already.
        """
        condition = f"window_hi > {self.lo}"
        return f"{condition} OR (xid >= {self.lo} AND xid < {self.hi})" if self.foreign else condition

    @property
    def restored(self) -> bool:
        """Whether rows with xids of another cluster belong to the window."""
        return self.lo == 0 and self.foreign >= self.next > 0

    @property
    def is_empty(self) -> bool:
        """Whether no transaction has ended since the last window."""
        return self.hi <= self.lo

    def watermark(self) -> Watermark:
        """The watermark once the window is in the warehouse."""
        foreign = self.foreign if self.foreign >= self.hi else 0
        return Watermark(self.hi, self.top, self.cluster, foreign, self.wal)


def following(mark: Watermark | None, now: Horizon) -> Window:
    """The window that follows a watermark.

    Raises:
        OtherClusterError: the watermark's xids are not those of this cluster.
        SourceError: they are, and this is a standby that has not come as far.
    """
    if mark is None:
        return Window(0, now.hi, now.top, 0, now.cluster, next=now.next, foreign=now.foreign, wal=now.wal)
    # (the window of which a part is there has ended, too)
    hi, wal = (mark.part.hi, mark.part.wal) if mark.part else (mark.hi, mark.wal)
    if mark.cluster.system_identifier != now.cluster.system_identifier:
        here = now.cluster.system_identifier
        reason = f"it was filled from the cluster {mark.cluster.system_identifier}, this is {here}"
    elif mark.cluster.is_beside(now.cluster):
        oids = f"its object id is {mark.cluster.database}, this one's {now.cluster.database}"
        reason = f"it was filled from another database of this cluster ({oids})"
    elif mark.cluster.timeline != now.cluster.timeline:
        reason = f"it was filled on timeline {mark.cluster.timeline}, a promotion began timeline {now.cluster.timeline}"
    elif now.standby and _is_behind(mark, now):
        raise SourceError(_LAGS)
    elif hi > now.hi:
        reason = f"it holds transactions below {hi}, the cluster has come to {now.hi} only"
    elif wal > now.wal > 0:
        # Its disks were brought back from an older state, and as many transactions have passed since.
        reason = f"the cluster's log was {wal} bytes long when it was filled, and is {now.wal} bytes long now"
    else:
        foreign = max(mark.foreign, now.foreign)
        window = Window(
            mark.hi, now.hi, now.top, mark.top, now.cluster, next=now.next, foreign=foreign, wal=now.wal
        )
        if mark.part is None or foreign:
            return window
        return replace(window, hi=hi, top=mark.part.top, wal=wal, below=mark.part.below)
    raise OtherClusterError(
        f"the warehouse cannot be continued: {reason}. The transaction ids have another meaning now. "
        "`outbox etl backfill --rebase` reads all that PostgreSQL holds and continues from there; nothing is deleted"
    )


def again(mark: Watermark | None, now: Horizon, *, rebase: bool = False) -> Window:
    """Return a window of all that the source still holds.

    Raises:
        OtherClusterError: as `following`, unless `rebase`.
        SourceError: this is a standby that has not come as far; what it has not seen yet would be taken for lost.
    """
    if not rebase:
        following(mark, now)
    elif now.standby and mark is not None and mark.cluster == now.cluster and _is_behind(mark, now):
        raise SourceError(_LAGS)
    # A first export that died has left rows and no watermark. What the source has lost since may be among them.
    filled = mark is not None and (mark.hi > 0 or rebase)
    return Window(
        0,
        now.hi,
        now.top,
        0,
        now.cluster,
        again=filled,
        rebase=rebase and filled,
        next=now.next,
        foreign=now.foreign,
        wal=now.wal,
    )


_LAGS = (
    "this standby has not come to where the warehouse was filled: let it catch up, then run again. If the whole "
    "cluster was brought back from an older state, `outbox etl backfill --rebase` goes on from its primary"
)


def _is_behind(mark: Watermark, now: Horizon) -> bool:
    """Whether the same history of xids has been seen further already; a position of 0 is unknown."""
    hi, wal = (mark.part.hi, mark.part.wal) if mark.part else (mark.hi, mark.wal)
    return hi > now.hi or wal > now.wal > 0
