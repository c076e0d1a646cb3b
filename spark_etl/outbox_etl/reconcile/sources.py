"""The two sources of a window next to Kafka, PostgreSQL and the warehouse, in the same slim columns.

A message belongs to the window of its xid, a publication to the window of its own: a message that was committed in one
window and published in a later one is searched in Kafka with the later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as f

from outbox_etl.reconcile.kafka import DIGEST
from outbox_etl.source.reader import SQL as SOURCE_SQL
from outbox_etl.source.reader import Ids, Source, lies_among
from outbox_etl.statements import statement
from outbox_etl.warehouse import rows
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, Row

    from outbox_etl.source.window import Window
    from outbox_etl.warehouse.target import Target

SQL = "reconcile.sql"
APART = {"status", "published_at", "partition", "offset", "checks", "window_hi", "body_json", "headers"}
"""Columns of message_history that do not come from the message's own row, or are compared in another way."""
NOT_COMPARED = {
    "window_hi": "names the run that wrote the row",
    "checks": "counts events, each of which is compared",
}
"""Columns of the core tables that are not compared, and why."""
PUBLICATION_COLUMNS = [name for name in PUBLICATIONS.names if name not in NOT_COMPARED]
"""What makes two publications the same."""
SOUND = """coalesce((body_json IS NULL OR {encoded} = body) AND CASE WHEN state = 'COMMITTED'
        THEN status IN ('COMMITTED', 'PUBLISHED', 'LOST')
        ELSE status IN (state, 'LOST') AND published_at IS NULL AND partition IS NULL AND {offset} IS NULL
    END, false)"""
"""Whether a row of message_history agrees with itself in the columns that are made from others, in SQL."""
PLACE = ("topic", "partition", "offset")
LOOKED_UP = 500
"""Message ids in one statement."""
UNIT = """CASE WHEN queue IS NOT NULL THEN concat('queue ', queue)
               WHEN coalesce(order_key, key) IS NOT NULL THEN concat('key ', hex(coalesce(order_key, key))) END"""
"""What messages are ordered by within their topic: an explicit queue, else the order key; null: no order promised."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """What one of the two sources holds of a window."""

    messages: DataFrame
    """id, message_id, xid, topic, position, state, unit, digest, hash; in the warehouse also its publication.
    Besides the window's also older ones that were published in it."""
    publications: DataFrame
    """position, partition, offset, published_at, xid; epoch, batch and lo name the row of PostgreSQL. In the warehouse
    also whether it is `of_lost`: of a message that a fail-over lost, whose position another one may have taken."""
    events: DataFrame
    """id, message_id, hash."""

    def places(self) -> DataFrame:
        """Where messages were published, by this source's own account; `sent` is the message's transaction."""
        committed = self.messages.where("state = 'COMMITTED'").drop("published_at", "partition", "offset")
        committed = committed.withColumnRenamed("xid", "sent")
        places = self.publications.join(committed, "position")
        return places.where("of_lost = (status = 'LOST')") if "of_lost" in places.columns else places


def postgres(source: Source, window: Window) -> SourceRows:
    """What PostgreSQL holds of a window; nothing is read yet."""
    reader = Reader(source, window.top)
    inside = statement(SOURCE_SQL, "in_window", lo=window.lo, hi=window.hi)
    batches = reader.split(f"{statement(SQL, 'publications')}\nWHERE {inside}")
    zipped = f.explode(f.arrays_zip("positions", "partitions", "offsets")).alias("of")
    each = batches.select("xid", "epoch", "batch", f.col("id").alias("lo"), "published_at", zipped)
    publications = each.selectExpr(
        "of.positions position",
        "of.partitions partition",
        "of.offsets offset",
        "published_at",
        "xid",
        "epoch",
        "batch",
        "lo",
    )
    low, high = span(publications)
    condition = statement(SQL, "messages", in_window=inside, low=low, high=high)
    read = reader.split(f"{statement(SOURCE_SQL, 'message_columns')}\n{condition}")
    return SourceRows(
        slim(rows.messages(read, window.hi)),
        publications,
        hashed_events(rows.events(source.events(window), window.hi)),
    )


def warehouse(target: Target, window: Window) -> SourceRows:
    """What the warehouse holds of a window; nothing is read yet."""
    inside = f"xid >= {window.lo} AND xid < {window.hi}"
    publications = target.read(PUBLICATIONS).where(inside)
    low, high = span(publications)
    condition = f"({inside}) OR (state = 'COMMITTED' AND position BETWEEN {low} AND {high})"
    return SourceRows(
        slim(target.read(MESSAGE_HISTORY).where(condition), "status", "published_at", "partition", "offset"),
        publications.drop("window_hi").withColumn("lo", f.lit(None).cast("bigint")),
        hashed_events(target.read(TRANSACTION_EVENTS).where(inside)),
    )


def with_lost(stored: SourceRows, source: SourceRows, target: Target, held: Sequence[Ids]) -> SourceRows:
    """Mark the publications in the warehouse that are of messages which a fail-over lost.

    They are at the position of such a message, and PostgreSQL does not have them, though it has their range (`held`).
    Once it has dropped that, the one that the lost message itself shows is known to be its.
    """
    if target.read(MESSAGE_HISTORY).where("status = 'LOST'").isEmpty():
        return replace(stored, publications=stored.publications.withColumn("of_lost", f.lit(False)))
    place = "concat_ws('/', position, coalesce(partition, -1), coalesce(offset, -1), published_at)"
    row = f"concat_ws('/', {place}, xid)"
    lost = target.read(MESSAGE_HISTORY).where("status = 'LOST' AND state = 'COMMITTED'")
    there = f.broadcast(lost.selectExpr("position", f"{place} AS own").distinct())
    suspects = stored.publications.join(there, "position").where(
        f"{lies_among('position', held)} OR own = {place}"
    )
    known = source.publications.join(there.select("position"), "position", "left_semi")
    gone = suspects.selectExpr(f"{row} AS row").join(known.selectExpr(f"{row} AS row"), "row", "left_anti")
    flags = f.broadcast(gone.distinct().withColumn("of_lost", f.lit(True)))
    told = stored.publications.withColumn("row", f.expr(row)).join(flags, "row", "left").drop("row")
    return replace(stored, publications=told.withColumn("of_lost", f.coalesce("of_lost", f.lit(False))))


def slim(messages: DataFrame, *more: str) -> DataFrame:
    """Messages without their content, which two digests stand for: of key and body, and of all that was written."""
    plain = [name for name in MESSAGE_HISTORY.names if name not in APART | {"key", "body"}]
    digests = messages.withColumns(
        {
            "digest": f.expr(DIGEST),
            "unit": f.expr(UNIT),
            "heads": f.expr("sort_array(map_entries(headers))"),
        }
    )
    heads = [f.expr("heads.key"), f.expr("heads.value"), f.expr("transform(heads.value, v -> v IS NULL)")]
    arrays = ["heads", *(c.name for c in MESSAGE_HISTORY.columns if c.type.startswith("array"))]
    parts = [*map(f.col, plain), *heads, f.col("digest"), f.col("key"), *map(f.size, arrays)]
    sound = SOUND.format(encoded="encode(body_json, 'UTF-8')", offset="`offset`")
    # (PostgreSQL has no such row, so another hash reports it as altered)
    hashed = digests.withColumn("hash", _hash(*parts)).withColumn(
        "hash", f.expr(f"CASE WHEN {sound} THEN hash ELSE ~hash END")
    )
    return hashed.select(
        "id", "message_id", "xid", "topic", "position", "state", "unit", "digest", "hash", *more
    )


def hashed_events(events: DataFrame) -> DataFrame:
    """Events, each with a digest of its columns."""
    plain = [name for name in TRANSACTION_EVENTS.names if name != "window_hi"]
    return events.select("id", "message_id", _hash(*map(f.col, plain)).alias("hash"))


def _hash(*columns: Column) -> Column:
    """64 bits that stand for these columns, each hashed as it is: to write them as text took most of the time.

    A null leaves a hash as it was, and an array is hashed as its elements: so where there are nulls is hashed too. How
    long the arrays are, and which of their elements are null, is for the caller to give.
    """
    nulls = [
        f.when(column.isNull(), f.lit(1 << bit)).otherwise(f.lit(0)) for bit, column in enumerate(columns)
    ]
    mask = reduce(Column.__add__, (each.cast("bigint") for each in nulls))
    return f.xxhash64(*columns, mask)


def firsts_as(publications: DataFrame, name: str) -> DataFrame:
    """The first publication of each position, in columns that begin with `name`."""
    return rows.first_publications(publications).select(
        "position",
        f.col("partition").alias(f"{name}_partition"),
        f.col("offset").alias(f"{name}_offset"),
        f.col("published_at").alias(f"{name}_at"),
    )


def span(publications: DataFrame) -> tuple[int, int]:
    """The lowest and the highest position."""
    found = publications.agg(f.min("position").alias("low"), f.max("position").alias("high")).first()
    return (found["low"], found["high"]) if found and found["high"] is not None else (0, -1)


class Reader:
    """Reads of PostgreSQL that only reconcile makes."""

    def __init__(self, source: Source, top: int) -> None:
        self._source, self._top = source, top

    def split(self, text: str) -> DataFrame:
        """Read a statement that returns an `id`, in parallel by ranges of it."""
        return self._source.read(text, [ids.hold("id") for ids in self.ranges()])

    def ranges(self) -> Sequence[Ids]:
        """The ranges of ids that are read in parallel."""
        return self._source.ranges(Ids(0, self._top + 1), self._top)

    def later(self, hi: int) -> DataFrame:
        """Messages that were written or changed after the window, as they are now."""
        return self.split(statement(SQL, "later", hi=hi))

    def sent_twice(self, window: Window) -> DataFrame:
        """Messages of a window whose message id another message has too, in whatever window."""
        inside = statement(SOURCE_SQL, "in_window", lo=window.lo, hi=window.hi)
        return self.split(statement(SQL, "sent_twice", in_window=inside))

    def topics(self) -> set[str]:
        """The topics that are registered: records may be where no message of the window was published."""
        return {row["name"] for row in self._source.bind(statement(SQL, "topics"))}

    def snapshots(self, batches: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int, int], str]:
        """What the relay saw when it published these batches (epoch, batch, lo)."""
        found: dict[tuple[int, int, int], str] = {}
        for some in _chunks(sorted(set(batches))):
            text = ", ".join(f"({epoch}, {batch}, {lo})" for epoch, batch, lo in some)
            for row in self._source.read(statement(SQL, "snapshots", batches=text)).collect():
                found[row["epoch"], row["batch"], row["lo"]] = row["snapshot"]
        return found

    def messages_by_id(self, message_ids: Iterable[str]) -> dict[str, Row]:
        """The state of these messages and where they were published; those that are not there are left out.

        The ids must be UUIDs: they stand in the statement's text.
        """
        found: dict[str, Row] = {}
        for some in _chunks(sorted(set(message_ids))):
            text = statement(SQL, "messages_by_id", message_ids=",".join(some))
            found |= {row["message_id"]: row for row in self._source.read(text).collect()}
        return found


def _chunks(values: list[Any]) -> Iterable[list[Any]]:
    return (values[start : start + LOOKED_UP] for start in range(0, len(values), LOOKED_UP))
