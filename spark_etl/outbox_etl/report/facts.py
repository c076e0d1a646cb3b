"""What a report contains: plain values, gathered once, that everything else is drawn and written from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

Row = Mapping[str, Any]

MOST_DAYS = 31
"""Days that a report shows at most, up to the newest one in the warehouse."""
MOST_SHOWN = 12
"""Topics, or producer groups, that are listed; what the others add up to is called OTHER."""
OTHER = "all others"
MINUTELY = 3 * 3_600
"""Seconds up to which throughput is listed by the minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run itself."""

    command: str
    target: str
    source: str
    """The database, without user and password."""
    started: datetime
    seconds: float
    version: str
    """Of the job."""
    answer: Row = field(default_factory=dict)
    """What the command answered (see its `as_dict`); empty when it failed."""
    error: str = ""
    """What went wrong, without secrets; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of the days of the report, out of the warehouse. Rows are those of sql/report.sql."""

    first: date
    last: date
    earlier: bool = False
    """Whether the warehouse has days before `first`."""
    step: int = 86_400
    """Seconds of one point of `rate`."""
    rate: Sequence[Row] = ()
    topics: Sequence[Row] = ()
    latency: Sequence[Row] = ()
    histogram: Mapping[int, int] = field(default_factory=dict)
    """Messages by bucket; see text.edge for what a bucket is."""
    decided_by_day: Sequence[Row] = ()
    decided_by_group: Sequence[Row] = ()
    checks: Sequence[Row] = ()
    skew: Sequence[Row] = ()
    gaps: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it."""

    run: RunFacts
    watermark: Row | None = None
    """Up to where the warehouse is filled; None: it is empty, or was not read."""
    figures: Figures | None = None
    """None: no day has marts, or they could not be read."""
    certificates: Sequence[Row] = ()
    """Newest first: lo, hi, messages, problems, doubled, topics, partitions, checksum, verified_at."""
    unread: Sequence[str] = ()
    """What could not be read, and why; one sentence each."""


def folded(rows: Sequence[Row], name: str, *columns: str) -> list[dict[str, Any]]:
    """The rows, and a last one for what they leave out of `all_<column>`, the sums over everything."""
    kept = [dict(row) for row in rows]
    left = kept[0]["everything"] - len(kept) if kept else 0
    if left > 0:
        rest = {column: kept[0][f"all_{column}"] - sum(row[column] for row in kept) for column in columns}
        kept.append({name: f"{OTHER} ({left:,})", **rest})
    return kept


def column(rows: Sequence[Row], of: str) -> list[Any]:
    """One column's values."""
    return [row[of] for row in rows]


def sums(rows: Sequence[Row], *columns: str) -> dict[str, int]:
    """The columns' sums."""
    return {of: sum(int(row[of]) for row in rows) for of in columns}


def every_day(days: Iterable[date]) -> list[date]:
    """All days from the first of them to the last."""
    known = sorted(days)
    return [known[0] + timedelta(place) for place in range((known[-1] - known[0]).days + 1)]


def step_of(minutes: Sequence[Row]) -> int:
    """Return the step, in seconds, in which these minutes are listed."""
    span = minutes[-1]["moment"] - minutes[0]["moment"] if minutes else 0
    return 60 if span <= MINUTELY else 3_600
