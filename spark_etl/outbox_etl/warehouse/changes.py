"""What a window changes in message_history: new states, publications of older messages, counts of checks.

There is one change per id.

The rules of merging stand here once, as SQL expressions over the target's row `t` and the change `s`:

- The state with the higher xid wins, so that a window merged again changes nothing. A row whose xid is not below the
  window that wrote it came from another cluster (a rebase): its xid is meaningless, and what is read now wins.
- A publication belongs to the message that is COMMITTED at its position. The first one counts.
- A count of checks is a count of all events there are, never an addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from outbox_etl.errors import READ_AGAIN
from outbox_etl.warehouse.rows import first_publications
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from outbox_etl.source.window import Window
    from outbox_etl.warehouse.target import Target

IDENTITY = ("id", "message_id")
"""ids can be given out again after a fail-over, message ids are not; the id finds the file."""
PUBLICATION = ("published_at", "partition", "offset")
JOINED = {*IDENTITY, *PUBLICATION, "status", "checks", "window_hi"}
LARGE, FEW = 500_000, 200_000
"""Positions of a window from which on the messages concerned are counted, and how many keys are few: each executor is
sent a copy."""

BYTES_OF_CHANGES = """sum(2 * coalesce(octet_length(body), 0) + coalesce(octet_length(key), 0)
    + coalesce(octet_length(order_key), 0) + coalesce(octet_length(to_json(headers)), 0)
    + octet_length(concat_ws('', tags, index_keys, remark)) + 1000)"""
"""About how many bytes changes have: bodies count twice, because they may be there as JSON too."""

STATE = [name for name in MESSAGE_HISTORY.names if name not in JOINED]
"""The columns that come with a message's state."""


def with_publications(messages: DataFrame, publications: DataFrame) -> DataFrame:
    """Messages with their first publication, if they have one."""
    first = first_publications(publications)
    return published(messages.drop(*PUBLICATION, "status").join(first, "position", "left"))


def published(rows: DataFrame) -> DataFrame:
    """Leave the publication to COMMITTED messages only, and set their status."""
    counts = f.col("state") == "COMMITTED"
    kept = {name: f.when(counts, f.col(name)) for name in PUBLICATION}
    status = f.when(counts & f.col("published_at").isNotNull(), "PUBLISHED").otherwise(f.col("state"))
    return rows.withColumn("status", status).withColumns(kept).select(*MESSAGE_HISTORY.names)


def with_checks(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Messages with the number of times their producer was asked about them."""
    joined = messages.drop("checks").join(_counts(events), [*IDENTITY], "left")
    return joined.withColumn("checks", f.coalesce("checks", f.lit(0))).select(*MESSAGE_HISTORY.names)


def _counts(events: DataFrame) -> DataFrame:
    return events.where("kind = 'check'").groupBy(*IDENTITY).agg(f.count("*").cast("int").alias("checks"))


def of_older(target: Target, window: Window, *, top: int, asked: bool, told: bool) -> DataFrame:
    """What a window adds to messages that it need not hold: publications at their positions, counts of checks.

    Publications and events of the window are in the target already; so are the new messages, those with ids above
    `top`, with theirs. `asked`, `told`: whether the window has events, and publications.
    """
    events = target.read(TRANSACTION_EVENTS).where(f"kind = 'check' AND id <= {top if asked else -1}")
    recent = events.where(window.written).select(*IDENTITY).distinct()
    checks = _counts(events.join(recent, [*IDENTITY], "left_semi"))
    if not told:
        return checks
    publications = target.read(PUBLICATIONS).where(window.written)
    span = publications.agg(f.min("position").alias("low"), f.max("position").alias("high")).first()
    low, high = (span["low"], span["high"]) if span and span["high"] is not None else (0, -1)
    known = target.read(MESSAGE_HISTORY).where(
        f"state = 'COMMITTED' AND status <> 'LOST' AND position >= {low} AND position <= {high} AND id <= {top}"
    )
    known = known.select(*IDENTITY, "position", f.col("published_at").alias("before"))
    if high - low > LARGE and known.limit(FEW + 1).count() <= FEW:
        # Nearly all belong to new messages, which have them; to group every publication would be most of the work.
        publications = publications.join(f.broadcast(known.select("position")), "position", "left_semi")
    published = known.join(first_publications(publications), "position")
    published = published.where("before IS NULL OR before > published_at").drop("before")
    return published.join(checks, [*IDENTITY], "full_outer")


def all_changes(messages: DataFrame, older: DataFrame | None) -> DataFrame:
    """One row per id: its new state if it has one (`is_message`), else what is added to an older message."""
    if older is None:
        return messages.withColumn("is_message", f.lit(True))
    given = set(older.columns) - {*IDENTITY}
    theirs = older.select(*IDENTITY, *(f.col(name).alias(f"older_{name}") for name in given))
    both = messages.withColumn("is_message", f.lit(True)).join(theirs, [*IDENTITY], "full_outer")
    return both.select(
        *(
            f.when(f.col("is_message"), f.col(name)).otherwise(f.col(f"older_{name}")).alias(name)
            if name in given
            else f.col(name)
            for name in MESSAGE_HISTORY.names
        ),
        f.coalesce("is_message", f.lit(False)).alias("is_message"),
    )


NEWER = "(s.is_message AND (s.xid >= t.xid OR t.xid >= t.window_hi))"
"""Whether a change brings the newer state."""

ASKED_OF_ROW = sorted({*JOINED, "position", "xid"})
"""The columns of a row that a change asks for which brings a newer state."""


def merged(window_hi: int, *, rebase: bool = False, all_newer: bool = False) -> dict[str, str]:
    """What becomes of each column of `t` under the change `s`, as SQL expressions of Spark's and DuckDB's.

    `all_newer`: every change brings a newer state. Then `t` is asked for numbers, times and names only. A change that
    does not is refused: the part of a lost executor, read again, may have become an addition to an older message.
    """
    newer = "s.is_message" if rebase else NEWER
    result = {
        name: f"s.{name}" if all_newer else f"CASE WHEN {newer} THEN s.{name} ELSE t.{name} END"
        for name in STATE
    }
    position = result["position"]
    mine = f"(t.published_at IS NOT NULL AND t.position = {position})"
    theirs = f"(s.published_at IS NOT NULL AND s.position = {position})"
    counts = f"{result['state']} = 'COMMITTED'"
    earlier = f"{theirs} AND (NOT {mine} OR s.published_at < t.published_at)"
    stays = "NOT s.is_message AND t.status = 'LOST'"
    for name in PUBLICATION:
        result[name] = (
            f"CASE WHEN {stays} THEN t.{name} WHEN NOT ({counts}) THEN NULL "
            f"WHEN {earlier} THEN s.{name} WHEN {mine} THEN t.{name} END"
        )
    result["status"] = (
        f"CASE WHEN {stays} THEN t.status WHEN {counts} AND ({mine} OR {theirs}) THEN 'PUBLISHED' "
        f"ELSE {result['state']} END"
    )
    stamp = f"CAST({window_hi} AS BIGINT)"
    result["checks"] = "coalesce(s.checks, t.checks)"
    result["window_hi"] = (
        f"CASE WHEN {NEWER} THEN {stamp} ELSE raise_error('{READ_AGAIN}') END" if all_newer else stamp
    )
    return result
