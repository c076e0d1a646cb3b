"""The figures of a report out of the warehouse, counted by Spark: what comes to the driver does not grow with it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from outbox_etl.reconcile import certificate
from outbox_etl.report.facts import MOST_DAYS, MOST_SHOWN, Figures, step_of
from outbox_etl.source.reader import Source
from outbox_etl.statements import statement
from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.marts import within
from outbox_etl.warehouse.tables import MESSAGE_HISTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.source.window import Watermark
    from outbox_etl.warehouse.target import Target

SQL = "report.sql"
CLOSE = 3
"""Days up to which throughput is listed by the hour, or the minute."""
PARTITIONS = 20
CERTIFICATES = 20


def figures(spark: SparkSession, target: Target) -> Figures | None:
    """Read the newest days of the marts, and what the history adds to them; None without a day."""
    for table in (*MARTS, DAYS):
        target.read(table).createOrReplaceTempView(table.name)
    [span] = _ask(spark, "days")
    if span["last"] is None:
        return None
    last = span["last"]
    first = max(span["first"], last - timedelta(MOST_DAYS - 1))
    inside = f"day BETWEEN DATE'{first}' AND DATE'{last}'"
    target.read(MESSAGE_HISTORY).createOrReplaceTempView("history")
    days = [first + timedelta(place) for place in range((last - first).days + 1)]
    published = within("h.published_at", days)
    rate, step = _rate(spark, days, inside)
    buckets = _ask(spark, "histogram", published=published)
    return Figures(
        first=first,
        last=last,
        earlier=span["first"] < first,
        step=step,
        rate=rate,
        histogram={row["bucket"]: row["messages"] for row in buckets},
        **{
            name: _ask(spark, name, inside=inside, most=PARTITIONS if name == "gaps" else MOST_SHOWN)
            for name in ("topics", "latency", "decided_by_day", "decided_by_group", "checks", "skew", "gaps")
        },
    )


def _rate(spark: SparkSession, days: list[date], inside: str) -> tuple[list[dict[str, Any]], int]:
    if len(days) > CLOSE:
        return _ask(spark, "per_day", inside=inside), 86_400
    rows = _ask(spark, "per_minute", born=within("h.born_at", days), published=within("h.published_at", days))
    return rows, step_of(rows)


def _ask(spark: SparkSession, name: str, **values: int | str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.sql(statement(SQL, name, **values)).collect()]


def watermark(mark: Watermark) -> dict[str, Any]:
    """Return up to where the warehouse is filled."""
    return asdict(mark)


def certificates(spark: SparkSession, settings: Settings, mark: Watermark) -> list[dict[str, Any]]:
    """Read the newest certificates of the warehouse from PostgreSQL."""
    found = certificate.present(certificate.read(Source(spark, settings), settings.target), mark.cluster)
    newest = sorted(found, key=lambda each: each.xid, reverse=True)[:CERTIFICATES]
    return [
        {
            "lo": each.lo,
            "hi": each.hi,
            "messages": each.messages,
            "problems": each.problems,
            "doubled": each.doubled,
            "topics": len(each.ends),
            "partitions": sum(len(ends) for ends in each.ends.values()),
            "checksum": each.sums.get("messages", ""),
            "verified_at": each.verified_at,
        }
        for each in newest
    ]
