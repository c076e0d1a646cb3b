"""Daily marts: rebuilt for the days that later windows touched, each day replaced as a whole.

Up to which window they were made stands in mart_days, written last. A run that dies before it leaves the days to the
next; one that finds nothing new writes nothing. The watermark of message_history is not enough: a run may die after it.

A window changes rows on the days that its rows are on. A backfill may change any row, and move one to another day: it
empties mart_days before it writes, and the next run makes all days, in the place of all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from outbox_etl.source.reader import Source
from outbox_etl.statements import statement
from outbox_etl.warehouse.mart_tables import (
    CHECKS,
    DAYS,
    DECISIONS,
    GAPS,
    KEY_SKEW,
    LATENCY,
    MARTS,
    THROUGHPUT,
)
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.source.window import Watermark
    from outbox_etl.warehouse.target import Target

SQL = "marts.sql"
VIEWS = {"history": MESSAGE_HISTORY, "events": TRANSACTION_EVENTS, "publications": PUBLICATIONS}
EVERYTHING = "true"
"""The condition that names all rows of a mart."""
Days = Sequence[date]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Touched:
    """The days whose rows changed: by insert, by publication, by what happened to half messages."""

    born: Days
    published: Days
    happened: Days

    @property
    def all(self) -> Days:
        """All of them."""
        return sorted({*self.born, *self.published, *self.happened})


def forget(target: Target) -> None:
    """Have the marts of all days rebuilt next time: what they were made of is about to change."""
    target.prepare(DAYS)
    known = target.read(DAYS)
    if not known.isEmpty():
        target.replace(DAYS, known.where("false"), EVERYTHING)


def refresh(
    spark: SparkSession, settings: Settings, target: Target, say: Say, *, everything: bool = False
) -> list[date]:
    """Bring the marts up to the warehouse's watermark; return the days that were rebuilt.

    With `everything`, all days are rebuilt, also those that are up to date.

    Raises:
        ConcurrentRunError: another run is writing this warehouse.
        TargetError: there is something else under a mart's name.
    """
    with Source(spark, settings).lock(settings.target):
        mark = target.watermark()
        if mark is None or mark.hi == 0:
            return []
        target.prepare(*MARTS, DAYS)
        return Refresh(spark, target, mark, say).run(everything=everything)


class Refresh:
    """The making of all marts for the days that were touched."""

    def __init__(self, spark: SparkSession, target: Target, mark: Watermark, say: Say) -> None:
        self._spark, self._target, self._mark, self._say = spark, target, mark, say
        cluster = mark.cluster
        self._cluster = f"{cluster.system_identifier}/{cluster.timeline}/{cluster.database}"
        self._everything = False
        self._spans: dict[str, tuple[int, int]] = {}

    def run(self, *, everything: bool) -> list[date]:
        """Replace the days of each mart, or all that is in it, then record it in mart_days."""
        since, began = -1 if everything else self._since(), monotonic()
        self._everything = since < 0
        if since == self._mark.hi:
            return []
        touched = self.look(since)
        if not touched.all:
            return []
        for table, days, rows in (
            (THROUGHPUT, sorted({*touched.born, *touched.published}), self._throughput),
            (LATENCY, touched.published, self._latency),
            (DECISIONS, touched.born, self._decisions),
            (CHECKS, touched.happened, self._checks),
            (KEY_SKEW, touched.born, self._key_skew),
        ):
            if days:
                self._replace(table, rows(days), f"day IN ({_dates(days)})")
            elif self._everything:
                self._empty(table)
        if touched.published:
            first = _date(touched.published[0])
            self._replace(GAPS, self._gaps(touched.published), f"day >= {first}")
        elif self._everything:
            self._empty(GAPS)
        self._note(touched.all)
        self._say(f"marts of {len(touched.all)} days after {monotonic() - began:.1f} s")
        return list(touched.all)

    def _since(self) -> int:
        """Up to which window the marts are made; -1: this cluster has none yet, so every day is to be made."""
        known = self._target.read(DAYS).where(f"cluster = '{self._cluster}'")
        highest = known.selectExpr("max(window_hi) AS hi").collect()[0]["hi"]
        return -1 if highest is None or highest > self._mark.hi else int(highest)

    def look(self, since: int) -> Touched:
        """Find the days that windows above `since` touched, and where their rows lie: in one query each."""
        for name, table in VIEWS.items():
            self._target.read(table).createOrReplaceTempView(name)
        found: dict[str, set[date]] = {"born": set(), "published": set(), "happened": set()}
        for row in self._ask("touched", since=since).collect():
            found[row["what"]].add(row["day"])
        touched = Touched(*(sorted(days) for days in found.values()))
        if not touched.all:
            return touched
        spans = self._ask(
            "spans",
            born=within("h.born_at", touched.born),
            happened=within("e.happened_at", touched.happened),
            published=within("p.published_at", touched.published),
        )
        self._spans = {row["mart"]: (row["low"], row["high"]) for row in spans.collect()}
        return touched

    def _throughput(self, days: Days) -> DataFrame:
        return self._ask(
            "throughput", born=within("h.born_at", days), published=within("h.published_at", days)
        )

    def _latency(self, days: Days) -> DataFrame:
        return self._ask("latency", published=within("h.published_at", days))

    def _decisions(self, days: Days) -> DataFrame:
        low, high = self._span("decisions")
        return self._ask("decisions", born=within("h.born_at", days), low=low, high=high)

    def _checks(self, days: Days) -> DataFrame:
        low, high = self._span("checks")
        return self._ask("checks", happened=within("e.happened_at", days), low=low, high=high)

    def _key_skew(self, days: Days) -> DataFrame:
        return self._ask("key_skew", born=within("h.born_at", days))

    def _gaps(self, days: Days) -> DataFrame:
        before = self._target.read(GAPS).where("false" if self._everything else "true")
        before.createOrReplaceTempView("gaps_before")
        low, high = self._span("gaps")
        published = within("p.published_at", days)
        return self._ask(
            "gaps",
            published=published,
            low=low,
            high=high,
            mart="gaps_before",
            days=_dates(days),
            first=_date(days[0]),
        )

    def _span(self, mart: str) -> tuple[int, int]:
        return self._spans.get(mart, (0, -1))

    def _ask(self, name: str, **values: int | str) -> DataFrame:
        return self._spark.sql(statement(SQL, name, **values))

    def _note(self, days: Days) -> None:
        rows = self._ask("days", days=_dates(days), window_hi=self._mark.hi, cluster=self._cluster)
        self._replace(DAYS, rows, f"day IN ({_dates(days)})")

    def _replace(self, table: Table, rows: DataFrame, condition: str) -> None:
        typed = [rows[column.name].cast(column.type) for column in table.columns]
        where = EVERYTHING if self._everything else condition
        self._target.replace(table, rows.select(*typed).coalesce(1), where)

    def _empty(self, table: Table) -> None:
        """Empty a table whose figures no longer exist."""
        before = self._target.read(table)
        if not before.isEmpty():
            self._target.replace(table, before.where("false"), EVERYTHING)


def within(column: str, days: Days) -> str:
    """The condition that a time is on one of these days: as ranges, by which whole files can be left out."""
    one = timedelta(1)
    starts = [day for day in days if day - one not in days]
    ends = [day + one for day in days if day + one not in days]
    ranges = [
        f"({column} >= TIMESTAMP'{start} 00:00:00' AND {column} < TIMESTAMP'{end} 00:00:00')"
        for start, end in zip(starts, ends, strict=True)
    ]
    return f"({' OR '.join(ranges) or 'false'})"


def _dates(days: Days) -> str:
    return ", ".join(_date(day) for day in days)


def _date(day: date) -> str:
    return f"DATE'{day.isoformat()}'"
