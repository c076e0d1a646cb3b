"""PostgreSQL and the warehouse against each other: messages, publications and events of a window."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox_etl.reconcile.sources import PUBLICATION_COLUMNS, firsts_as
from outbox_etl.source.reader import lies_among
from outbox_etl.warehouse.changes import FEW
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outbox_etl.reconcile.findings import Findings
    from outbox_etl.reconcile.local import LocalRows
    from outbox_etl.reconcile.sources import SourceRows
    from outbox_etl.source.reader import Ids
    from outbox_etl.source.window import Window
    from outbox_etl.warehouse.target import Target

KIND = "CASE WHEN mine > theirs THEN 'missing' WHEN mine = 0 THEN 'extra' ELSE 'doubled' END"
NAMES = ("id", "message_id", "topic", "xid")
NOWHERE = {"topic": "string", "partition": "int", "offset": "bigint"}


class WarehouseComparison:
    """Compares the two sources of one window.

    Rows of ids that PostgreSQL no longer has (its history was dropped) cannot be compared: they are noted, and the
    certificate that let them be dropped speaks for them.
    """

    def __init__(
        self,
        sources: tuple[SourceRows, SourceRows],
        target: Target,
        window: Window,
        held: Sequence[Ids],
        *,
        found: Findings,
        keep: Callable[[DataFrame], DataFrame],
        local: LocalRows | None = None,
    ) -> None:
        """Take both sources, all of the warehouse, and the ids that PostgreSQL holds.

        What is found is asked of `found`; `keep` makes rows that several comparisons need once. `local` finds
        suspects where it has the rows.
        """
        (self._source, self._stored), self._window, self._held = sources, window, held
        self._target, self._found, self._keep = target, found, keep
        self._inside = f"xid >= {window.lo} AND xid < {window.hi}"
        self._counts: Mapping[str, int]
        if local and (suspects := local.suspects()):
            self._suspects, self._counts = suspects
            return
        self._suspects = self._keep(reduce(DataFrame.unionByName, self._all_suspects()))
        counted = self._suspects.groupBy("what").count().collect()
        self._counts = {row["what"]: row["count"] for row in counted}

    @property
    def is_mirror(self) -> bool:
        """Whether both have the same messages and the same publications, so that one speaks for both."""
        return not any(self._counts.get(what) for what in ("messages", "others", "publications"))

    def compare(self, later: DataFrame) -> None:
        """Ask for all that differs; `later` are the messages of PostgreSQL that changed after the window.

        Counts and hashes of numbers find what is the same on both sides. Only the rest, the suspects, is then
        compared row by row. A sound warehouse has no suspects.
        """
        if self._counts.get("messages"):
            self._messages(later)
        if self._counts.get("publications"):
            self._publications()
        if self._counts.get("firsts"):
            self._firsts()
        if self._counts.get("events"):
            self._events()

    def _all_suspects(self) -> list[DataFrame]:
        """What may differ: messages by their ids, publications by their positions, events by their hashes.

        Others: older messages that were published in the window; they were compared with their own.
        """
        ours = self._source.messages.where(f"xid < {self._window.hi}")
        theirs = self._stored.messages.where(f"xid < {self._window.hi}")
        inside = f.expr(self._inside)
        each = (
            ours.select(
                "id", "hash", f.lit(1).alias("mine"), inside.alias("inside"), f.lit(False).alias("bad")
            ),
            theirs.select(
                "id",
                "hash",
                f.lit(0).alias("mine"),
                inside.alias("inside"),
                f.expr("status = 'LOST'").alias("bad"),
            ),
            self._elsewhere(self._source.messages.where(inside), "id").select(
                "id", f.lit(0).cast("bigint").alias("hash"), f.lit(0).alias("mine"), f.lit(True), f.lit(True)
            ),
        )
        messages = (
            reduce(DataFrame.union, each)
            .groupBy(f.col("id").alias("key"))
            .agg(
                f.sum("mine").alias("mine"),
                f.count("*").alias("both"),
                (f.min("hash") == f.max("hash")).alias("same"),
                f.max("inside").alias("inside"),
                f.max("bad").alias("bad"),
            )
        )
        wrong = messages.where("mine <> 1 OR both <> 2 OR NOT same OR bad")
        return [
            wrong.select(f.expr("CASE WHEN inside THEN 'messages' ELSE 'others' END").alias("what"), "key"),
            self._wrong_publications().select(
                f.lit("publications").alias("what"), f.col("position").alias("key")
            ),
            self._suspected_firsts().select(f.lit("firsts").alias("what"), "key"),
            self._wrong_events().select(f.lit("events").alias("what"), f.col("hash").alias("key")),
        ]

    def _suspected(self, rows: DataFrame, what: str, column: str) -> DataFrame:
        """The rows whose keys are suspected."""
        keys = self._suspects.where(f"what = '{what}'").select(f.col("key").alias(column)).distinct()
        return rows.join(f.broadcast(keys) if self._counts[what] <= FEW else keys, column, "left_semi")

    def _messages(self, later: DataFrame) -> None:
        """Every message of the window once, with the same content; none besides, whatever its transaction."""
        ours = self._suspected(self._source.messages.where(self._inside), "messages", "id")
        theirs = self._suspected(self._stored.messages.where(self._inside), "messages", "id")
        # A merge that failed could have left a message's former state beside the new one, outside of this window.
        elsewhere = self._elsewhere(ours, "id", "message_id")
        rows = (
            ours.select(*NAMES, "hash", f.lit("P").alias("side"), f.lit(False).alias("lost")),
            theirs.select(*NAMES, "hash", f.lit("H").alias("side"), f.expr("status = 'LOST'").alias("lost")),
            elsewhere.select(
                *NAMES,
                f.lit(None).cast("bigint").alias("hash"),
                f.lit("E").alias("side"),
                f.lit(False).alias("lost"),
            ),
        )
        both = self._keep(
            reduce(DataFrame.unionByName, rows)
            .groupBy("id", "message_id")
            .agg(
                f.first("topic", ignorenulls=True).alias("topic"),
                f.count_if(f.col("side") == "P").alias("mine"),
                f.count_if(f.col("side") == "H").alias("theirs"),
                f.count_if(f.col("side") == "E").alias("elsewhere"),
                f.max(f.when(f.col("side") == "E", f.col("xid"))).alias("xid"),
                f.countDistinct("hash").alias("contents"),
                f.max("lost").alias("lost"),
            )
            .where("mine <> theirs OR contents > 1 OR elsewhere > 0 OR lost")
        )
        here = both.withColumn("store", f.lit("warehouse")).withColumns(_none("partition", "offset"))
        ask = self._found.collect
        ask(
            here.where("mine > 0 AND theirs = 0").withColumns(
                {
                    "kind": f.expr("CASE WHEN elsewhere > 0 THEN 'altered' ELSE 'missing' END"),
                    "detail": f.expr(
                        "CASE WHEN elsewhere > 0 THEN concat('message_history has id ', id, ' with the state of "
                        "transaction ', xid) ELSE concat('message_history has no row of id ', id) END"
                    ),
                }
            )
        )
        ask(
            here.where("theirs + elsewhere > 1").withColumns(
                {
                    "kind": f.lit("doubled"),
                    "detail": f.expr(
                        "concat('message_history has ', theirs + elsewhere, ' rows of id ', id, "
                        "coalesce(concat(', one with the state of transaction ', xid), ''))"
                    ),
                }
            )
        )
        ask(
            here.where("mine = 1 AND theirs >= 1 AND (contents > 1 OR lost)").withColumns(
                {
                    "kind": f.lit("altered"),
                    "detail": f.expr(
                        "concat('the row of id ', id, ' in message_history is not what PostgreSQL has')"
                    ),
                }
            )
        )
        self._extra(here.where("mine = 0"), later)

    def sent_twice(self, rows: DataFrame) -> None:
        """Message ids that more than one message of PostgreSQL has: to a consumer they are one message."""
        ids = rows.groupBy("message_id").agg(f.first("topic").alias("topic"), f.min("id").alias("id"))
        self._found.collect(
            ids.withColumns(
                {
                    **_none("partition", "offset"),
                    "kind": f.lit("doubled"),
                    "store": f.lit("postgres"),
                    "detail": f.expr("concat('the message of id ', id, ' is not the only one that has it')"),
                }
            )
        )

    def _elsewhere(self, ours: DataFrame, *by: str) -> DataFrame:
        """Rows of the window's messages that message_history has with transactions of other windows."""
        span = ours.agg(
            f.min("id").alias("low"), f.max("id").alias("high"), f.count("*").alias("count")
        ).first()
        low, high, count = (
            (span["low"], span["high"], span["count"]) if span and span["count"] else (0, -1, 0)
        )
        rows = self._target.read(MESSAGE_HISTORY).where(
            f"id BETWEEN {low} AND {high} AND NOT ({self._inside})"
        )
        keys = ours.select(*by)
        return rows.select(*NAMES).join(f.broadcast(keys) if count <= FEW else keys, [*by], "left_semi")

    def _extra(self, rows: DataFrame, later: DataFrame) -> None:
        """Rows that PostgreSQL does not have in this window: dropped there, changed since, lost, or never there.

        A message lost in a fail-over is listed with its id each time: no other certificate covers it.
        """
        moved = later.select("message_id").distinct()
        gone = rows.where(f"NOT ({self._exists('id')})")
        self._found.note("no_longer_in_postgres", gone.where("NOT lost"))
        rest = rows.where(f"lost OR {self._exists('id')}").join(moved, "message_id", "left_anti")
        rest = rest.withColumns(
            {
                "kind": f.expr("CASE WHEN lost THEN 'lost' ELSE 'extra' END"),
                "detail": f.expr(
                    "concat('message_history has id ', id, CASE WHEN lost THEN ' as LOST, since a rebase' "
                    "ELSE ', PostgreSQL does not' END)"
                ),
            }
        )
        self._found.collect(rest.where("lost"))
        self._found.collect(rest.where("NOT lost"))

    def _wrong_publications(self) -> DataFrame:
        keys = PUBLICATION_COLUMNS
        ours = self._source.publications.select(*keys, f.lit(1).alias("mine"))
        theirs = self._stored.publications.select(*keys, f.lit(0).alias("mine"))
        return (
            ours.unionByName(theirs)
            .groupBy(*keys)
            .agg(f.sum("mine").alias("mine"), f.sum(1 - f.col("mine")).alias("theirs"))
            .where("mine <> theirs")
        )

    def _publications(self) -> None:
        """Every publication of the window once."""
        wrong = self._suspected(self._wrong_publications(), "publications", "position")
        names = ["position", "message_id", "topic"]
        known = self._source.messages.where("state = 'COMMITTED'").select(*names)
        known = known.unionByName(
            self._stored.messages.where("state = 'COMMITTED' AND status <> 'LOST'").select(*names)
        )
        known = self._suspected(known, "publications", "position").distinct()
        lost = self._lost("state = 'COMMITTED'").select("position", f.lit(True).alias("lost")).distinct()
        told = self._keep(wrong.join(known, "position", "left").join(lost, "position", "left"))
        of_lost = "(mine = 0 AND coalesce(lost, false))"
        gone = f"(mine = 0 AND NOT ({self._exists('position')}))"
        self._found.note("publications_no_longer_in_postgres", told.where(f"{gone} AND NOT {of_lost}"))
        self._found.note("publications_of_lost_messages", told.where(of_lost))
        self._found.collect(
            told.where(f"NOT {gone} AND NOT {of_lost}").withColumns(
                {
                    "store": f.lit("warehouse"),
                    "kind": f.expr(KIND),
                    "detail": f.expr(
                        "concat('publications has its publication ', theirs, ' times, PostgreSQL ', mine, ' times')"
                    ),
                }
            )
        )

    def _suspected_firsts(self) -> DataFrame:
        """Positions of messages but those that show their one publication, and those that have none and show none."""
        shown = ["published_at", "partition", "offset"]
        messages = self._stored.messages.where("state = 'COMMITTED' AND status <> 'LOST'")
        each = messages.select(
            "position", *shown, f.lit(1).alias("mine"), f.expr("status = 'PUBLISHED'").alias("is")
        )
        there = self._stored.publications.where("NOT of_lost").select(
            "position", *shown, f.lit(0), f.lit(False)
        )
        same = reduce(Column.__and__, (f.min(name).eqNullSafe(f.max(name)) for name in shown))
        # A publication without its time counts as none.
        filled = (
            (f.count("published_at") == 2) & f.count("partition").isin(0, 2) & f.count("offset").isin(0, 2)
        )
        by = (
            each.union(there)
            .groupBy(f.col("position").alias("key"))
            .agg(
                f.sum("mine").alias("mine"),
                f.count("*").alias("both"),
                (same & filled).alias("same"),
                f.count("offset").alias("offsets"),
                f.max("is").alias("is"),
            )
        )
        return by.where(
            "mine > 0 AND NOT (mine = 1 AND both = 2 AND same AND is) AND NOT (both = mine AND offsets = 0)"
        )

    def _firsts(self) -> None:
        """message_history's partition and offset are those of the first publication.

        A backfill that died left publications of later transactions than the watermark's, and has merged them into some
        of the messages: they may be there, and need not.
        """
        committed = self._suspected(
            self._stored.messages.where("state = 'COMMITTED' AND status <> 'LOST'"), "firsts", "position"
        )
        beyond = self._target.read(PUBLICATIONS).where(f"xid >= {self._window.hi}")
        there = self._stored.publications.where("NOT of_lost")
        first = firsts_as(self._suspected(there, "firsts", "position"), "first")
        joined = committed.join(first, "position", "left").join(firsts_as(beyond, "next"), "position", "left")
        wrong = joined.where(
            f"CASE WHEN first_at IS NULL THEN offset IS NOT NULL AND {self._inside} AND NOT (published_at <=> next_at "
            "AND partition <=> next_partition AND offset <=> next_offset) "
            "WHEN status <> 'PUBLISHED' OR published_at IS NULL OR published_at > first_at THEN true "
            "WHEN published_at = first_at THEN NOT (partition <=> first_partition AND offset <=> first_offset) "
            "ELSE false END"
        )
        self._found.collect(
            wrong.withColumns(
                {
                    "kind": f.lit("altered"),
                    "store": f.lit("warehouse"),
                    "detail": f.expr(
                        "concat('message_history has status ', status, ', partition ', "
                        "coalesce(cast(partition AS string), '-'), ', offset ', coalesce(cast(offset AS string), '-'), "
                        "'; its first publication is ', "
                        "coalesce(concat('partition ', first_partition, ', offset ', first_offset), 'not there'))"
                    ),
                }
            )
        )

    def _wrong_events(self) -> DataFrame:
        ours = self._source.events.select("hash", f.lit(1).alias("mine"))
        theirs = self._stored.events.select("hash", f.lit(0).alias("mine"))
        both = ours.unionByName(theirs).groupBy("hash")
        counts = f.sum("mine").alias("mine"), f.sum(1 - f.col("mine")).alias("theirs")
        return both.agg(*counts).where("mine <> theirs")

    def _events(self) -> None:
        """Every event of the window once."""
        ours = self._suspected(self._source.events, "events", "hash").withColumn("mine", f.lit(1))
        theirs = self._suspected(self._stored.events, "events", "hash").withColumn("mine", f.lit(0))
        wrong = (
            ours.unionByName(theirs)
            .groupBy("id", "message_id", "hash")
            .agg(f.sum("mine").alias("mine"), f.sum(1 - f.col("mine")).alias("theirs"))
            .where(f"mine <> theirs AND NOT (mine = 0 AND NOT ({self._exists('id')}))")
        )
        lost = self._lost().select("id", "message_id", f.lit(True).alias("lost")).distinct()
        wrong = wrong.join(lost, ["id", "message_id"], "left").where(
            "NOT (mine = 0 AND coalesce(lost, false))"
        )
        self._found.collect(
            wrong.withColumns(
                {
                    **_none("topic", "partition", "offset"),
                    "store": f.lit("warehouse"),
                    "kind": f.expr(KIND),
                    "detail": f.expr(
                        "concat('transaction_events has its event ', theirs, ' times, PostgreSQL ', mine, ' times')"
                    ),
                }
            )
        )

    def _lost(self, condition: str = "true") -> DataFrame:
        """Messages that were lost in a fail-over: their publications and events are, too."""
        return self._target.read(MESSAGE_HISTORY).where(f"status = 'LOST' AND {condition}")

    def _exists(self, column: str) -> str:
        """A condition: PostgreSQL still has the partition of this id or position."""
        return lies_among(column, self._held)


def _none(*names: str) -> dict[str, Column]:
    return {name: f.lit(None).cast(NOWHERE[name]) for name in names}
