"""Daily marts: rebuilt for the days that later windows touched, each day replaced as a whole.

Up to which window they were made stands in mart_days, written last. A run that dies before it leaves the days to the
next; one that finds nothing new writes nothing. The watermark of message_history is not enough: a run may die after it.

A window changes rows on the days that its rows are on. A backfill may change any row, and move one to another day: it
empties mart_days before it writes, and the next run makes all days, in the place of all that there is.

A mart that fails leaves the others as they are made, and mart_days as it was: the next run makes its days again.

Where the files of the warehouse are on the driver's machine DuckDB counts, and Spark where it cannot: the statements
are the same, and so are their rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from outbox_etl.source.reader import Source
from outbox_etl.statements import statement
from outbox_etl.warehouse.duck import Duck, opened
from outbox_etl.warehouse.files import Between
from outbox_etl.warehouse.mart_queries import SQL, MartQueries, condition
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
from outbox_etl.warehouse.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.source.window import Watermark
    from outbox_etl.warehouse.target import Target

NOWHERE = (0, -1)
Days = Sequence[date]
Values = Mapping[str, int | str]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MartsOfRun:
    """The days whose marts were made, and the marts that could not be, each with its error."""

    days: Days = ()
    faults: Mapping[str, Exception] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Touched:
    """The days whose rows changed: by insert, by publication, by what happened to half messages."""

    born: Days
    published: Days
    happened: Days

    @property
    def sent(self) -> Days:
        """The days on which something was inserted or published."""
        return sorted({*self.born, *self.published})

    @property
    def all(self) -> Days:
        """All of them."""
        return sorted({*self.sent, *self.happened})


def forget(target: Target) -> None:
    """Have the marts of all days rebuilt next time: what they were made of is about to change."""
    target.prepare(DAYS)
    known = target.read(DAYS)
    if not known.isEmpty():
        target.replace(DAYS, known.where("false"), condition(None))


def refresh(
    spark: SparkSession, settings: Settings, target: Target, say: Say, *, everything: bool = False
) -> MartsOfRun:
    """Bring the marts up to the warehouse's watermark; whatever goes wrong is a fault of theirs alone.

    With `everything`, all days are rebuilt, also those that are up to date.
    """
    try:
        with Source(spark, settings).lock(settings.target):
            mark = target.watermark()
            if mark is None or mark.hi == 0:
                return MartsOfRun()
            target.prepare(*MARTS, DAYS)
            duck = opened(spark, say, "marts are counted")
            with contextlib.closing(duck) if duck else contextlib.nullcontext():
                return Refresh(spark, target, mark, say, duck=duck).run(everything=everything)
    except Exception as error:  # noqa: BLE001  (what was exported is there, and is verified next)
        return MartsOfRun(faults={"marts": error})


class Refresh:
    """The making of all marts for the days that were touched."""

    def __init__(
        self, spark: SparkSession, target: Target, mark: Watermark, say: Say, *, duck: Duck | None = None
    ) -> None:
        self._queries = MartQueries(spark, target, say, duck)
        self._mark, self._say = mark, say
        cluster = mark.cluster
        self._cluster = f"{cluster.system_identifier}/{cluster.timeline}/{cluster.database}"
        self._everything = False
        self._spans: dict[str, tuple[int, int]] = {}

    def run(self, *, everything: bool) -> MartsOfRun:
        """Replace the days of each mart, or all that is in it, then record it in mart_days."""
        since, began = -1 if everything else self._since(), monotonic()
        self._everything = since < 0
        if since == self._mark.hi:
            return MartsOfRun()
        touched = self.look(since)
        if not touched.all:
            return MartsOfRun()
        born, published, happened = touched.born, touched.published, touched.happened
        of_sent = {name: within(f"h.{name}_at", touched.sent) for name in ("born", "published")}
        of_published = {"published": within("h.published_at", published)}
        of_born = {"born": within("h.born_at", born)}
        of_happened = {"happened": within("e.happened_at", happened)}
        faults: dict[str, Exception] = {}
        for table, days, values in (
            (THROUGHPUT, touched.sent, of_sent),
            (LATENCY, published, of_published),
            (DECISIONS, born, of_born | self._span("decisions")),
            (CHECKS, happened, of_happened | self._span("checks")),
            (KEY_SKEW, born, of_born),
            (GAPS, published, {}),
        ):
            try:
                if table is GAPS:
                    self._fill_gaps(days)
                else:
                    self._fill(table, table.name.removeprefix("mart_"), days, values)
            except Exception as error:  # noqa: BLE001  (it is a fault of this mart)
                faults[table.name] = error
        if faults:
            return MartsOfRun(faults=faults)
        made = ", ".join(f"({_date(day)})" for day in touched.all)
        until: Values = {"dates": made, "window_hi": self._mark.hi, "cluster": self._cluster}
        self._fill(DAYS, "days", touched.all, until)
        self._say(f"marts of {len(touched.all)} days after {monotonic() - began:.1f} s")
        return MartsOfRun(touched.all)

    def _since(self) -> int:
        """Up to which window the marts are made; -1: this cluster has none yet, so every day is to be made."""
        self._queries.see({"made": None})
        [known] = self._queries.rows("made", cluster=self._cluster)
        highest = known["hi"]
        return -1 if highest is None or highest > self._mark.hi else int(highest)

    def look(self, since: int) -> Touched:
        """Find the days that windows above `since` touched, and where their rows lie: in one query each."""
        later = [Between("window_hi", since + 1, 1 << 62)]
        self._queries.see(dict.fromkeys(("history", "events", "publications"), later))
        found: dict[str, set[date]] = {"born": set(), "published": set(), "happened": set()}
        for row in self._queries.rows("touched", since=since):
            found[row["what"]].add(row["day"])
        touched = Touched(*(sorted(days) for days in found.values()))
        if not touched.all:
            return touched
        seen: dict[str, list[Between]] = {
            "history": between("born_at", touched.born),
            "events": between("happened_at", touched.happened),
            "publications": between("published_at", touched.published),
        }
        self._queries.see(seen)
        spans = self._queries.rows(
            "spans",
            born=within("h.born_at", touched.born),
            happened=within("e.happened_at", touched.happened),
            recorded=within("p.published_at", touched.published),
        )
        self._spans = {row["mart"]: (row["low"], row["high"]) for row in spans}
        # (what was sent and published on a day is counted together, whichever of the two touched it)
        seen["history"] = [*between("born_at", touched.sent), *between("published_at", touched.sent)]
        for name, column, mart in (
            ("history", "id", "checks"),
            ("history", "position", "gaps"),
            ("events", "id", "decisions"),
        ):
            low, high = self._spans.get(mart, NOWHERE)
            seen[name].append(Between(column, low, high + 1))
        self._queries.see({**seen, "gaps_before": () if self._everything else None})
        return touched

    def _span(self, mart: str) -> dict[str, int | str]:
        low, high = self._spans.get(mart, NOWHERE)
        return {"low": low, "high": high}

    def _fill_gaps(self, days: Days) -> None:
        """Replace the days from the first of these on: what follows them is held against them."""
        if not days:
            self._fill(GAPS, "gaps", days, {})
            return
        when: Values = {
            "published": within("h.published_at", days),
            "recorded": within("p.published_at", days),
        }
        [once] = self._queries.rows("published_once", **when)
        offsets = {"offsets": statement(SQL, "first_offsets" if once["is_so"] else "offsets")}
        other = {"dates": _dates(days), "first": _date(days[0])}
        after = [Between("day", str(days[0]), str(date.max))]
        self._fill(GAPS, "gaps", days, {**offsets, **when, **other, **self._span("gaps")}, after)

    def _fill(
        self, table: Table, name: str, days: Days, values: Values, ranges: Sequence[Between] = ()
    ) -> None:
        """Replace the rows of these days, or of other ranges; whatever there is when everything is made."""
        if days:
            kept = ranges or [Between("day", str(start), str(end)) for start, end in _ranges(days)]
            self._queries.fill(table, None if self._everything else kept, name, **values)
        elif self._everything:
            self._queries.empty(table)


def within(column: str, days: Days) -> str:
    """The condition that a time is on one of these days: as ranges, by which whole files can be left out."""
    ranges = [
        f"({column} >= TIMESTAMP'{start} 00:00:00' AND {column} < TIMESTAMP'{end} 00:00:00')"
        for start, end in _ranges(days)
    ]
    return f"({' OR '.join(ranges) or 'false'})"


def between(column: str, days: Days) -> list[Between]:
    """The same for those who ask for the files."""
    return [
        Between(column, f"{start}T00:00:00+00:00", f"{end}T00:00:00+00:00") for start, end in _ranges(days)
    ]


def _ranges(days: Days) -> list[tuple[date, date]]:
    """The first day and the day after the last one, of days that follow each other."""
    one = timedelta(1)
    starts = [day for day in days if day - one not in days]
    ends = [day + one for day in days if day + one not in days]
    return list(zip(starts, ends, strict=True))


def _dates(days: Days) -> str:
    return ", ".join(_date(day) for day in days)


def _date(day: date) -> str:
    return f"DATE'{day.isoformat()}'"
