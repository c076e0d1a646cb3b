"""Order per topic and order key: the first appearances of its messages in Kafka, against their positions.

The promise: if a transaction committed before another inserted its message, its message has the lower offset.
Positions alone do not decide: of two transactions that ran side by side the later position may be published first, and
rightly so. So an inversion is a problem when the message that was overtaken was visible to the relay when it published
the other (the publication's snapshot), when both are of one transaction, or when the publications recorded them in the
right order and Kafka has them the other way round. Everything else is noted as `overtaken`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from outbox_etl.reconcile.findings import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from outbox_etl.reconcile.findings import Findings
    from outbox_etl.reconcile.sources import Reader, SourceRows


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pg_snapshot: which transactions had ended."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """Read `xmin:xmax:xip,xip…`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether what the transaction wrote was visible."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


HASHED_UNIT = "xxhash64(topic, unit)"
"""The hash of a unit. Two units that share one are both compared, each for itself."""


def doubtful_units(places: DataFrame, suspects: DataFrame) -> DataFrame:
    """The hashes of the units in which a message may lie behind a later one.

    `suspects` are places of messages that may be in Kafka elsewhere, or more than once; all others are at their places.
    """
    there = places.where("unit IS NOT NULL AND NOT gone").select(
        f.expr(HASHED_UNIT).alias("key"), "partition", "offset", "position"
    )
    before = Over.partitionBy("key", "partition").orderBy("offset")
    highest = f.max("position").over(before.rowsBetween(Over.unboundedPreceding, -1))
    behind = there.withColumn("highest", highest).where("highest > position").select("key")
    return behind.union(suspects.where("unit IS NOT NULL").select(f.expr(HASHED_UNIT))).distinct()


def inversions(records: DataFrame, places: DataFrame) -> DataFrame:
    """Messages that lie behind a later one of their order key in the same partition; `later` is that one's position.

    If there is one of the same transaction, it is that: there is nothing to be doubted then.
    """
    names = ("message_id", "topic", "position", "unit", "sent")
    known = places.where("unit IS NOT NULL").select(*names).distinct()
    first = (
        records.join(known.select("message_id").distinct(), "message_id", "left_semi")
        .groupBy("topic", "partition", "message_id")
        .agg(f.min("offset").alias("offset"), f.count("*").alias("times"))
    )

    def latest(*unit: str) -> Column:
        ordered = Over.partitionBy("topic", "partition", *unit).orderBy("offset")
        before = ordered.rowsBetween(Over.unboundedPreceding, -1)
        return f.max(f.struct("position", "message_id", "offset", "times")).over(before)

    behind = first.join(known, ["message_id", "topic"]).withColumns(
        {"of_all": latest("unit"), "of_its_own": latest("unit", "sent")}
    )
    later = f.expr("CASE WHEN of_its_own.position > position THEN of_its_own ELSE of_all END")
    return behind.withColumn("later", later).where("later.position > position")


def check_order(
    chunks: Iterable[Sequence[Any]],
    recorded: Callable[[list[int]], Sequence[Any]],
    reader: Reader,
    found: Findings,
    cut: Set[tuple[str, int]] = frozenset(),
) -> None:
    """Report which inversions break the promise; `recorded` finds the publications of positions.

    `cut` are partitions of which Kafka no longer keeps the beginning. There the first appearance of a doubled message
    may be gone, and what is left proves nothing about order.
    """
    for taken in chunks:
        positions = sorted({row["position"] for row in taken} | {row["later"]["position"] for row in taken})
        _check_taken(taken, _firsts(recorded(positions)), reader, found, cut)


def _check_taken(
    taken: Sequence[Any],
    recorded: Mapping[int, dict[str, Any]],
    reader: Reader,
    found: Findings,
    cut: Set[tuple[str, int]],
) -> None:
    snapshots = {
        key: Snapshot.of(text)
        for key, text in reader.snapshots({pub["batch"] for pub in recorded.values()}).items()
    }
    for row in taken:
        if (row["topic"], row["partition"]) in cut and max(row["times"], row["later"]["times"]) > 1:
            found.notes["order_unknown"] += 1
            continue
        early, late = recorded.get(row["position"]), recorded.get(row["later"]["position"])
        why = _why(early, late, row, snapshots)
        if why is None:
            found.notes["overtaken"] += 1
            continue
        other = row["later"]
        detail = (
            f"position {row['position']} lies behind {other['message_id']} (position {other['position']}, "
        )
        detail += f"offset {other['offset']}): {why}"
        found.add(
            Finding(
                "out_of_order",
                "kafka",
                row["message_id"],
                row["topic"],
                row["partition"],
                row["offset"],
                detail,
            )
        )


def _why(early: Any, late: Any, row: Any, snapshots: dict[Any, Snapshot]) -> str | None:
    if early is None or late is None:
        return None
    if early["xid"] == late["xid"]:
        return "both are of one transaction"
    if early["place"][0] == late["place"][0] and early["place"][1] < late["place"][1]:
        return "they were recorded the other way round"
    if late["place"][1] != row["later"]["offset"] or early["batch"] == late["batch"]:
        # What the relay had seen at that moment is not recorded: a row may hold what it read and published in several
        # steps, with the snapshot of the last.
        return None
    seen = snapshots.get(late["batch"])
    return (
        "the relay saw both when it published the later one"
        if seen is not None and seen.sees(early["xid"])
        else None
    )


def recorded(source: SourceRows, positions: list[int]) -> list[Any]:
    """The publications of these positions, the first of each first, with their message's transaction."""
    published = source.publications.where(f.col("position").isin(positions)).drop("xid")
    xids = source.messages.where("state = 'COMMITTED'").select("position", "xid")
    return published.join(xids, "position").orderBy("position", "published_at", "offset").collect()


def _firsts(rows: Sequence[Any]) -> dict[int, dict[str, Any]]:
    """The first publication of each position: its place, its batch, and its message's transaction."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        batch = (row["epoch"], row["batch"], row["lo"])
        found.setdefault(
            row["position"], {"place": (row["partition"], row["offset"]), "batch": batch, "xid": row["xid"]}
        )
    return found
