"""PostgreSQL and the warehouse against each other: messages, publications and events of a window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from outbox_etl.rows import first_publications
from outbox_etl.tables import MESSAGE_HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from outbox_etl.findings import Finding, Findings
    from outbox_etl.sides import Side
    from outbox_etl.source import Ids
    from outbox_etl.target import Target
    from outbox_etl.window import Window

KIND = "CASE WHEN mine > theirs THEN 'missing' WHEN mine = 0 THEN 'extra' ELSE 'doubled' END"
NOWHERE = {"topic": "string", "partition": "int", "offset": "bigint"}


class WarehouseComparison:
    """Compares the two sides of one window.

    Rows of ids that PostgreSQL no longer has (its history was dropped) cannot be compared: they are told, and the
    certificate that let them be dropped speaks for them.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        window: Window,
        held: Sequence[Ids],
        later: DataFrame,
        *,
        found: Findings,
        keep: Callable[[DataFrame], DataFrame],
    ) -> None:
        """Take PostgreSQL's side and the warehouse's, the ids that PostgreSQL holds, and its later messages.

        What is found is asked of `found`; `keep` makes rows that several comparisons need once.
        """
        (self._source, self._stored), self._window, self._held = sides, window, held
        self._later, self._found, self._keep = later, found, keep
        self._inside = f"xid >= {window.lo} AND xid < {window.hi}"

    def messages(self, target: Target) -> None:
        """Every message of the window once, with the same content; none besides."""
        ours = self._source.messages.where(self._inside).withColumn("mine", f.lit(1))
        theirs = self._stored.messages.where(self._inside).withColumn("mine", f.lit(0))
        columns = ["id", "message_id", "topic", "hash", "mine"]
        both = self._keep(
            ours.select(*columns)
            .unionByName(theirs.select(*columns))
            .groupBy("id", "message_id")
            .agg(
                f.first("topic").alias("topic"),
                f.sum("mine").alias("mine"),
                f.sum(1 - f.col("mine")).alias("theirs"),
                f.countDistinct("hash").alias("contents"),
            )
            .where("mine <> theirs OR contents > 1")
        )
        here = both.withColumn("store", f.lit("warehouse")).withColumns(_none("partition", "offset"))
        missing = here.where("theirs = 0").withColumns({"kind": f.lit("missing"), "detail": f.lit("")})
        self._found.collect(missing, lambda found: self._missing(found, target))
        doubled = here.where("theirs > 1").withColumn("kind", f.lit("doubled"))
        self._found.collect(
            doubled.withColumn("detail", f.expr("concat('message_history has ', theirs, ' rows of id ', id)"))
        )
        altered = here.where("mine = 1 AND theirs >= 1 AND contents > 1").withColumn("kind", f.lit("altered"))
        self._found.collect(
            altered.withColumn(
                "detail",
                f.expr("concat('the row of id ', id, ' in message_history is not what PostgreSQL has')"),
            )
        )
        self._extra(here.where("mine = 0"))

    def _missing(self, found: Sequence[tuple[int, Finding]], target: Target) -> Iterator[Finding]:
        """Tell whether message_history lacks a message, or has it with another transaction's state."""
        looked_up = [id_ for id_, _ in found[:1_000]]
        rows = target.read(MESSAGE_HISTORY).where(f.col("id").isin(looked_up))
        has = {
            row["message_id"]: row["xid"]
            for row in rows.groupBy("message_id").agg(f.max("xid").alias("xid")).collect()
        }
        for id_, finding in found:
            xid = has.get(finding.message_id)
            if xid is None:
                yield replace(finding, detail=f"message_history has no row of id {id_}")
            else:
                text = f"message_history has id {id_} with the state of transaction {xid}"
                yield replace(finding, kind="altered", detail=text)

    def _extra(self, rows: DataFrame) -> None:
        """Rows that PostgreSQL does not have in this window: dropped there, changed since, or never there."""
        moved = self._later.select("message_id").distinct()
        gone = rows.where(f"NOT ({self._exists('id')})")
        self._found.note("no_longer_in_postgres", gone)
        rest = rows.where(self._exists("id")).join(moved, "message_id", "left_anti")
        rest = rest.withColumns({"kind": f.lit("extra"), "store": f.lit("warehouse")})
        self._found.collect(
            rest.withColumn(
                "detail", f.expr("concat('message_history has id ', id, ', PostgreSQL does not')")
            )
        )

    def publications(self) -> None:
        """Every publication of the window once; message_history tells of the first."""
        keys = ["position", "partition", "offset", "xid"]
        ours = self._source.publications.select(*keys, f.lit(1).alias("mine"))
        theirs = self._stored.publications.select(*keys, f.lit(0).alias("mine"))
        wrong = (
            ours.unionByName(theirs)
            .groupBy(*keys)
            .agg(f.sum("mine").alias("mine"), f.sum(1 - f.col("mine")).alias("theirs"))
            .where("mine <> theirs")
        )
        names = ["position", "message_id", "topic"]
        known = self._source.messages.where("state = 'COMMITTED'").select(*names)
        known = known.unionByName(
            self._stored.messages.where("state = 'COMMITTED'").select(*names)
        ).distinct()
        told = self._keep(wrong.join(known, "position", "left"))
        gone = f"mine = 0 AND NOT ({self._exists('position')})"
        self._found.note("publications_no_longer_in_postgres", told.where(gone))
        self._found.collect(
            told.where(f"NOT ({gone})").withColumns(
                {
                    "store": f.lit("warehouse"),
                    "kind": f.expr(KIND),
                    "detail": f.expr(
                        "concat('publications has its publication ', theirs, ' times, PostgreSQL ', mine, ' times')"
                    ),
                }
            )
        )
        self._firsts()

    def _firsts(self) -> None:
        """message_history's partition and offset are those of the first publication."""
        committed = self._stored.messages.where("state = 'COMMITTED'")
        first = first_publications(self._stored.publications).select(
            "position",
            f.col("partition").alias("first_partition"),
            f.col("offset").alias("first_offset"),
            f.col("published_at").alias("first_at"),
        )
        joined = committed.join(first, "position", "left")
        wrong = joined.where(
            "CASE WHEN first_at IS NULL THEN offset IS NOT NULL AND "
            f"{self._inside} WHEN status <> 'PUBLISHED' OR published_at IS NULL OR published_at > first_at THEN true "
            "WHEN published_at = first_at THEN NOT (partition <=> first_partition AND offset <=> first_offset) "
            "ELSE false END"
        )
        self._found.collect(
            wrong.withColumns(
                {
                    "kind": f.lit("altered"),
                    "store": f.lit("warehouse"),
                    "detail": f.expr(
                        "concat('message_history says status ', status, ', partition ', "
                        "coalesce(cast(partition AS string), '-'), ', offset ', coalesce(cast(offset AS string), '-'), "
                        "'; its first publication is ', "
                        "coalesce(concat('partition ', first_partition, ', offset ', first_offset), 'not there'))"
                    ),
                }
            )
        )

    def events(self) -> None:
        """Every event of the window once."""
        ours = self._source.events.withColumn("mine", f.lit(1))
        theirs = self._stored.events.withColumn("mine", f.lit(0))
        wrong = (
            ours.unionByName(theirs)
            .groupBy("id", "message_id", "hash")
            .agg(f.sum("mine").alias("mine"), f.sum(1 - f.col("mine")).alias("theirs"))
            .where(f"mine <> theirs AND NOT (mine = 0 AND NOT ({self._exists('id')}))")
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

    def _exists(self, column: str) -> str:
        """A condition: PostgreSQL still has the partition of this id or position."""
        return (
            " OR ".join(f"({column} >= {ids.lower} AND {column} < {ids.upper})" for ids in self._held)
            or "false"
        )


def _none(*names: str) -> dict[str, Column]:
    return {name: f.lit(None).cast(NOWHERE[name]) for name in names}
