"""Kafka's records against what was recorded of their publication: place by place, and message by message.

Also there, and distinguished: foreign records (no outbox-id), records of a later window's messages or of
publications that are not recorded yet, and places that Kafka no longer keeps (retention, compaction).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from outbox_etl.reconcile.kafka import Range
from outbox_etl.reconcile.sources import PLACE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from outbox_etl.reconcile.findings import Findings
    from outbox_etl.reconcile.sources import SourceRows

Watermarks = Mapping[tuple[str, int], tuple[int, int]]
Ends = Mapping[str, Mapping[str, int]]
STRUCT = "struct(topic, partition, offset)"


def expected(source: SourceRows, stored: SourceRows) -> DataFrame:
    """Every place of the window's publications, by either source's account; `side` is P (PostgreSQL) or H (history)."""
    columns = ["message_id", *PLACE, "digest", "position", "unit", "sent"]
    ours = source.places().select(f.lit("P").alias("side"), *columns)
    return ours.unionByName(stored.places().select(f.lit("H").alias("side"), *columns))


def bounds(places: DataFrame) -> dict[tuple[str, int], tuple[int, int] | None]:
    """The lowest and highest offset of the window's places in each partition; none when they are not known."""
    offsets = f.struct(f.min("offset").alias("low"), f.max("offset").alias("high"))
    rows = places.groupBy("topic", "partition").agg(offsets.alias("of")).collect()
    return {
        (row["topic"], row["partition"]): None if row["of"]["low"] is None else tuple(row["of"])
        for row in rows
    }


def ranges(
    reach: Mapping[tuple[str, int], tuple[int, int] | None], marks: Watermarks, before: Ends
) -> list[Range]:
    """What is to be read: from where the last verification ended, or from the window's lowest place, to the end."""
    found = []
    for (topic, partition), (low, high) in sorted(marks.items()):
        done = resumed(before, topic, partition, (low, high))
        expected = reach.get((topic, partition))
        start = max(low, done if expected is None else min(done, expected[0]))
        if start < high:
            found.append(Range(topic, partition, start, high))
    return found


def resumed(before: Ends, topic: str, partition: int, of: tuple[int, int]) -> int:
    """Where the last verification of a partition ended; its beginning, if it has none or the topic was recreated."""
    low, high = of
    done = before.get(topic, {}).get(str(partition), low)
    return done if done <= high else low


def made_anew(marks: Watermarks, before: Ends) -> list[tuple[str, int]]:
    """The partitions that end before what was verified of them: their topics were deleted and made again."""
    return [
        (topic, partition)
        for (topic, partition), (_, high) in sorted(marks.items())
        if before.get(topic, {}).get(str(partition), 0) > high
    ]


@dataclass(frozen=True, slots=True)
class KafkaComparison:
    """Compares the records of a window's topics with the window's places."""

    records: DataFrame
    """topic, partition, offset, message_id, digest."""
    places: DataFrame
    """The rows of `expected`, with `gone`: Kafka no longer keeps it."""
    found: Findings
    keep: Callable[[DataFrame], DataFrame]
    """Makes rows that several comparisons need once."""

    def totals(self) -> list[dict[str, Any]]:
        """Counts and order-free checksums of the three, per topic and partition, over places that Kafka still has.

        A foreign record in a message's place is not the message: the place counts as empty.
        """
        hashed = f.when(f.col("message_id").isNotNull(), f.xxhash64("message_id", *PLACE, "digest"))
        columns = ["side", "gone", *PLACE, "message_id", "digest"]
        records = self.records.withColumns({"side": f.lit("K"), "gone": f.lit(False)})
        both = (
            self.places.select(*columns)
            .unionByName(records.select(*columns))
            .withColumn("hash", hashed.cast("decimal(20,0)"))
        )
        sources = {"postgres": "P", "warehouse": "H", "kafka": "K"}
        place = both.groupBy(*PLACE).agg(
            *(
                f.max(f.when(f.col("side") == mark, f.col("hash"))).alias(name)
                for name, mark in sources.items()
            ),
            f.max("gone").alias("gone"),
            f.max((f.col("side") == "K") & f.col("message_id").isNull()).alias("foreign"),
        )
        expected = "(postgres IS NOT NULL OR warehouse IS NOT NULL)"
        here = f"{expected} AND NOT (gone AND kafka IS NULL)"
        answer = place.groupBy("topic", "partition").agg(
            *(f.expr(f"count_if({name} IS NOT NULL AND {here})").alias(name) for name in sources),
            *(f.expr(f"sum({name}) FILTER (WHERE {here})").alias(f"{name}_sum") for name in sources),
            f.expr(f"count_if({expected} AND gone AND kafka IS NULL)").alias("no_longer_in_kafka"),
            f.count_if("foreign").alias("foreign"),
            f.expr(f"count_if(kafka IS NOT NULL AND NOT foreign AND NOT {expected})").alias("others"),
        )
        rows = [row.asDict() for row in answer.orderBy("topic", "partition").collect()]
        for row in rows:
            for name in sources:
                row[f"{name}_checksum"] = hexadecimal(row.pop(f"{name}_sum"))
        return rows

    def messages(self, now: DataFrame) -> DataFrame:
        """Ask for what is missing, doubled, misplaced or altered; answer the records of messages without a place here.

        Args:
            now: message_id and state of messages of this window that have no place, and of later ones.
        """
        columns = ["message_id", "side", "gone", *PLACE, "digest", "state"]
        rows = self.places.withColumn("state", f.lit(None).cast("string")).select(*columns)
        read = self.records.where("message_id IS NOT NULL").withColumns(
            {"side": f.lit("K"), "gone": f.lit(False), "state": f.lit(None).cast("string")}
        )
        states = now.select("message_id", f.lit("N").alias("side"), "state").withColumns(
            {
                "gone": f.lit(False),
                "topic": f.lit(None).cast("string"),
                "partition": f.lit(None).cast("int"),
                "offset": f.lit(None).cast("bigint"),
                "digest": f.lit(None).cast("string"),
            }
        )
        each = self.keep(
            rows.unionByName(read.select(*columns))
            .unionByName(states.select(*columns))
            .groupBy("message_id")
            .agg(
                f.expr(f"collect_set({STRUCT}) FILTER (WHERE side = 'P' AND NOT gone)").alias("ours"),
                f.expr(f"collect_set({STRUCT}) FILTER (WHERE side = 'H' AND NOT gone)").alias("theirs"),
                f.count_if(f.col("side") == "P").alias("recorded"),
                f.expr(f"collect_set({STRUCT}) FILTER (WHERE gone)").alias("gone"),
                f.expr(f"sort_array(collect_list({STRUCT}) FILTER (WHERE side = 'K'))").alias("there"),
                f.expr("collect_set(digest) FILTER (WHERE side IN ('P', 'H'))").alias("contents"),
                f.expr("collect_set(digest) FILTER (WHERE side = 'K')").alias("read"),
                f.expr("collect_set(state) FILTER (WHERE side = 'N')").alias("states"),
            )
            # Of a message that PostgreSQL tells of, the warehouse is compared with PostgreSQL, not with Kafka.
            .withColumn("expected", f.expr("CASE WHEN recorded > 0 THEN ours ELSE theirs END"))
            .withColumns(
                {
                    "lost": f.array_except("expected", "there"),
                    "astray": f.expr("array_except(array_except(array_except(there, ours), theirs), gone)"),
                    "known": f.expr("size(ours) > 0 OR size(theirs) > 0 OR size(gone) > 0"),
                }
            )
            .where(
                "size(lost) > 0 OR size(there) > 1 OR (size(there) > 0 AND NOT known) OR "
                "(known AND size(array_except(read, contents)) > 0)"
            )
            .withColumn("store", f.lit("kafka"))
        )
        collect = self.found.collect
        said = "array_join(transform({}, p -> concat(p.topic, '[', p.partition, ']@', p.offset)), ', ')"
        collect(
            _at(each.where("size(lost) > 0"), "lost[0]").withColumns(
                {
                    "kind": f.expr("CASE WHEN size(astray) > 0 THEN 'misplaced' ELSE 'missing' END"),
                    "detail": f.expr(
                        f"CASE WHEN size(astray) > 0 THEN concat('recorded at ', {said.format('lost')}, ', found at ', "
                        f"{said.format('there')}) ELSE concat('recorded at ', {said.format('lost')}, ', not there') END"
                    ),
                }
            )
        )
        collect(
            _at(each.where("known AND size(there) > 1"), "there[1]").withColumns(
                {
                    "kind": f.lit("doubled"),
                    "detail": f.expr(f"concat(size(there), ' records: ', {said.format('there')})"),
                }
            )
        )
        collect(
            _at(each.where("known AND size(array_except(read, contents)) > 0"), "there[0]").withColumns(
                {"kind": f.lit("altered"), "detail": f.lit("key or body of the record are not the message's")}
            )
        )
        return each


def hexadecimal(total: Any) -> str:
    """A sum of 64-bit hashes, modulo 2^64: the same in any order, and another when one is left out or doubled."""
    return f"{int(total or 0) % (1 << 64):016x}"


def _at(rows: DataFrame, place: str) -> DataFrame:
    return rows.selectExpr("*", *(f"{place}.{name} {name}" for name in PLACE))
