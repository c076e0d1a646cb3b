"""Kafka's records against what was recorded of their publication: place by place, and message by message.

Also there, and distinguished: foreign records (no outbox-id), records of a later window's messages or of
publications that are not recorded yet, and places that Kafka no longer keeps (retention, compaction).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from outbox_etl.reconcile.kafka import Range
from outbox_etl.reconcile.sources import PLACE
from outbox_etl.warehouse.changes import FEW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from outbox_etl.reconcile.findings import Findings
    from outbox_etl.reconcile.sources import SourceRows

Watermarks = Mapping[tuple[str, int], tuple[int, int]]
Ends = Mapping[str, Mapping[str, int]]
STRUCT = "struct(topic, partition, offset)"


def expected(source: SourceRows, stored: SourceRows | None) -> DataFrame:
    """Every place of the window's publications, by either source's account; `side` is P (PostgreSQL) or H (history).

    Without `stored`, PostgreSQL speaks for both.
    """
    columns = ["message_id", *PLACE, "digest", "position", "unit", "sent"]
    ours = source.places().select(f.lit("P").alias("side"), *columns)
    if stored is None:
        return ours
    return ours.unionByName(stored.places().select(f.lit("H").alias("side"), *columns))


def bounds(rows: Sequence[Any]) -> dict[tuple[str, int], tuple[int, int] | None]:
    """The lowest and highest offset of the window's places in each partition; none when they are not known."""
    return {
        (row["topic"], row["partition"]): None if row["low"] is None else (row["low"], row["high"])
        for row in rows
    }


def bounded(places: DataFrame) -> list[Any]:
    """The same as Spark's rows."""
    offsets = f.min("offset").alias("low"), f.max("offset").alias("high")
    return places.groupBy("topic", "partition").agg(*offsets).collect()


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


def ends_of(
    marks: Mapping[tuple[str, int], tuple[int, int]],
    held: Mapping[tuple[str, int], int],
    before: Mapping[str, Mapping[str, int]],
) -> dict[str, dict[str, int]]:
    """Where the next verification goes on: at the first record that is undecided, and never before where we began."""
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), (low, high) in marks.items():
        done = resumed(before, topic, partition, (low, high))
        ends.setdefault(topic, {})[str(partition)] = max(done, min(high, held.get((topic, partition), high)))
    return ends


def made_anew(marks: Watermarks, before: Ends) -> list[tuple[str, int]]:
    """The partitions that end before what was verified of them: their topics were deleted and made again."""
    return [
        (topic, partition)
        for (topic, partition), (_, high) in sorted(marks.items())
        if before.get(topic, {}).get(str(partition), 0) > high
    ]


@dataclass(frozen=True)
class KafkaComparison:
    """Compares the records of a window's topics with the window's places."""

    records: DataFrame
    """topic, partition, offset, message_id, digest."""
    places: DataFrame
    """The rows of `expected`, with `gone`: Kafka no longer keeps it."""
    found: Findings
    keep: Callable[[DataFrame], DataFrame]
    """Makes rows that several comparisons need once."""
    is_mirror: bool = False
    """Whether the warehouse has the same places: then there are those of PostgreSQL only."""
    by_local: tuple[DataFrame, list[dict[str, Any]]] | None = None
    """The suspects that DuckDB found: their message ids, and how many there are."""

    @functools.cached_property
    def _suspected(self) -> DataFrame:
        """What may be wrong, as hashes of message ids: all but the messages that are there once, at their one place.

        Messages that have a place are `known`. All that is compared are numbers: a record's place and content are one
        hash, and its offset is compared itself. A place that is recorded twice is two rows and one place: where rows
        are counted for places, in a mirror, that is a suspect too.
        """
        if self.by_local:
            return self.by_local[0].select(f.xxhash64("message_id").alias("key"), "known")
        hashed = f.xxhash64("message_id").alias("key"), f.xxhash64(*PLACE, "digest").alias("hash"), "offset"
        places = self.places.select(*hashed, f.lit(0).alias("read"), "gone")
        records = self.records.where("message_id IS NOT NULL").select(
            *hashed, f.lit(1).alias("read"), f.lit(False).alias("gone")
        )
        by = (
            places.union(records)
            .groupBy("key")
            .agg(
                f.sum("read").alias("read"),
                f.count("*").alias("rows"),
                f.count_if("gone").alias("gone"),
                (f.min("hash") == f.max("hash")).alias("same"),
                (f.min("offset") == f.max("offset")).alias("near"),
            )
        )
        nothing, whole = (
            "(read = 0 AND rows = gone)",
            f"(read = 1 AND rows {'= 2' if self.is_mirror else '> 1'} AND gone = 0 AND same AND near)",
        )
        return self.keep(
            by.where(f"NOT {nothing} AND NOT coalesce({whole}, false)").selectExpr("key", "rows > read known")
        )

    @functools.cached_property
    def _counts(self) -> dict[bool, int]:
        rows = self.by_local[1] if self.by_local else self._suspected.groupBy("known").count().collect()
        return {row["known"]: row["count"] for row in rows}

    @property
    def suspects(self) -> int:
        """How many messages have to be compared one by one."""
        return sum(self._counts.values())

    @property
    def known_suspects(self) -> int:
        """How many of them have a place in the window."""
        return self._counts.get(True, 0)

    def suspects_of(self, rows: DataFrame, *, others: bool = False) -> DataFrame:
        """The rows of messages that are suspected, or of no message."""
        keys = self._suspected.select("key")
        if self.suspects <= FEW:
            keys = f.broadcast(keys)
        key = f.when(f.col("message_id").isNotNull(), f.xxhash64("message_id"))
        found = rows.withColumn("key", key).join(keys, "key", "left_semi").drop("key")
        return found.unionByName(rows.where("message_id IS NULL")) if others else found

    def _both(self, places: DataFrame) -> DataFrame:
        """The places by both accounts."""
        return places.unionByName(places.withColumn("side", f.lit("H"))) if self.is_mirror else places

    def totals(self, counted: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Counts and order-free checksums of the three, per topic and partition, over places that Kafka still has.

        A foreign record in a message's place is not the message: the place counts as empty.

        Where every message that has a place is there once and at that place, these are counted as they are, Kafka's
        from Kafka. All others are compared place by place. DuckDB may have `counted` place by place.
        """
        names = ("postgres", "warehouse", "kafka")
        if counted is not None:
            return [
                {
                    **{name: value for name, value in row.items() if not name.endswith("_sum")},
                    **{f"{name}_checksum": hexadecimal(row[f"{name}_sum"]) for name in names},
                }
                for row in sorted(counted, key=lambda row: _named(((row["topic"], row["partition"]), None)))
            ]
        found: dict[tuple[str, int], Counter[str]] = {}
        plain = self.is_mirror and not self.known_suspects
        if plain:
            records = self.suspects_of(self.records, others=True)
            self._add(found, self.records.where("message_id IS NOT NULL"), ("kafka",))
            self._add(found, records.where("message_id IS NOT NULL"), ("kafka",), -1)
            self._add(found, self.places.where("NOT gone"), ("postgres", "warehouse"))
        else:
            records = self.records
        places = self._both(self.places.where("gone") if plain else self.places)
        for row in self._by_place(places, records):
            of = found.setdefault((row["topic"], row["partition"]), Counter())
            of.update({name: value or 0 for name, value in row.items() if name not in PLACE})
        return [
            {
                "topic": topic,
                "partition": partition,
                **{name: of[name] for name in (*names, "no_longer_in_kafka", "foreign", "others")},
                **{
                    f"{name}_checksum": hexadecimal((of[f"{name}_high"] << 32) + of[f"{name}_low"])
                    for name in names
                },
            }
            for (topic, partition), of in sorted(found.items(), key=_named)
        ]

    def _add(
        self,
        found: dict[tuple[str, int], Counter[str]],
        rows: DataFrame,
        names: Sequence[str],
        sign: int = 1,
    ) -> None:
        """Count rows and sum their hashes, or take them away again."""
        hashed = rows.select("topic", "partition", _hash().alias("hash")).groupBy("topic", "partition")
        sums = hashed.agg(f.count("*").alias("count"), *_sums("hash", "sum"))
        for row in sums.collect():
            of = found.setdefault((row["topic"], row["partition"]), Counter())
            for name in names:
                for part, value in (("", row["count"]), ("_high", row["sum_high"]), ("_low", row["sum_low"])):
                    of[f"{name}{part}"] += sign * value

    def _by_place(self, places: DataFrame, records: DataFrame) -> list[dict[str, Any]]:
        columns = ["side", "gone", *PLACE, "message_id", "digest"]
        read = records.withColumns({"side": f.lit("K"), "gone": f.lit(False)})
        both = (
            places.select(*columns)
            .unionByName(read.select(*columns))
            .select("side", "gone", *PLACE, "message_id", _hash().alias("hash"))
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
            *(each for name in sources for each in _sums(f"CASE WHEN {here} THEN {name} END", name)),
            f.expr(f"count_if({expected} AND gone AND kafka IS NULL)").alias("no_longer_in_kafka"),
            f.count_if("foreign").alias("foreign"),
            f.expr(f"count_if(kafka IS NOT NULL AND NOT foreign AND NOT {expected})").alias("others"),
        )
        return [row.asDict() for row in answer.collect()]

    def messages(self, now: DataFrame) -> DataFrame:
        """Ask for what is missing, doubled, misplaced or altered; answer the records of messages without a place here.

        Args:
            now: message_id and state of messages of this window that have no place, and of later ones.
        """
        columns = ["message_id", "side", "gone", *PLACE, "digest", "state"]
        places = self._both(self.suspects_of(self.places))
        rows = places.withColumn("state", f.lit(None).cast("string")).select(*columns)
        read = self.suspects_of(self.records).withColumns(
            {"side": f.lit("K"), "gone": f.lit(False), "state": f.lit(None).cast("string")}
        )
        states = (
            self.suspects_of(now)
            .select("message_id", f.lit("N").alias("side"), "state")
            .withColumns(
                {
                    "gone": f.lit(False),
                    "topic": f.lit(None).cast("string"),
                    "partition": f.lit(None).cast("int"),
                    "offset": f.lit(None).cast("bigint"),
                    "digest": f.lit(None).cast("string"),
                }
            )
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


def _hash() -> Column:
    """What stands for a message at a place in the sums; null: no message."""
    return f.when(f.col("message_id").isNotNull(), f.xxhash64("message_id", *PLACE, "digest"))


def _sums(column: str, name: str) -> list[Column]:
    """The sum of 64-bit hashes, which has more bits, in two halves."""
    return [
        f.expr(f"sum(shiftright({column}, 32))").alias(f"{name}_high"),
        f.expr(f"sum(({column}) & 4294967295)").alias(f"{name}_low"),
    ]


def hexadecimal(total: Any) -> str:
    """A sum of 64-bit hashes, modulo 2^64: the same in any order, and another when one is left out or doubled."""
    return f"{int(total or 0) % (1 << 64):016x}"


def _named(of: tuple[tuple[str | None, int | None], Any]) -> tuple[str, int]:
    """What lines are sorted by; a damaged warehouse may have a place without its topic or partition."""
    (topic, partition), _ = of
    return topic or "", -1 if partition is None else partition


def _at(rows: DataFrame, place: str) -> DataFrame:
    return rows.selectExpr("*", *(f"{place}.{name} {name}" for name in PLACE))
