"""Facts of a report that nobody had to run Spark for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from outbox_etl.report.facts import Facts, Figures, RunFacts

DAY = date(2026, 3, 1)
NASTY = '<script>alert("x")</script> & $\\frac{1}{0}$ \u202e\x07'
"""A name as somebody may give one: it wants to be HTML, a formula, and to turn the direction of writing."""

RECONCILED: dict[str, Any] = {
    "target": "/data/warehouse",
    "window_lo": 0,
    "window_hi": 900,
    "messages": 10,
    "records": 9,
    "problems": 0,
    "totals": {},
    "found": (),
    "allowed": (),
    "notes": {},
    "partitions": (),
    "certified": True,
}


def run(**changes: Any) -> RunFacts:
    """A run that ended well."""
    plain = RunFacts(
        command="run",
        target="/data/warehouse",
        source="postgresql://db.example.com:5432/shop",
        started=datetime(2026, 3, 2, 2, 0, tzinfo=UTC),
        seconds=12.5,
        version="0.1.0",
        answer={"window_lo": 0, "window_hi": 900, "messages": 10, "events": 4, "publications": 9},
    )
    return replace(plain, **changes)


def figures(topic: object = "orders", group: object = "shop", days: int = 2, **changes: Any) -> Figures:
    """The figures of one topic and one producer group."""
    every = [DAY + timedelta(place) for place in range(days)]
    half = {"half": 5, "committed": 2, "rolled_back": 1, "exhausted": 1, "undecided": 1}
    by = {"by_producer": 1, "by_checker": 1, "by_policy": 0, "by_operator": 1}
    asked = {"checks": 3, "answered_commit": 1, "answered_rollback": 1, "answered_unknown": 1, "dead": 2}
    flow = {"sent": 10, "published": 9, "bytes": 900}
    shares = {"top_share": 0.25, "top10_share": 0.75, "peak_share": 0.5, "peak_day": DAY, "peak_key": b"ann"}
    plain = Figures(
        first=every[0],
        last=every[-1],
        rate=[{"moment": moment(day), "sent": 5, "published": 4} for day in every],
        topics=[{"topic": topic, **flow, **over(flow)}],
        latency=[
            {"topic": topic, "day": day, "published": 4, "p50_ms": 0.0, "p95_ms": 20.5, "p99_ms": 900.0,
             "max_ms": 70_000.0, "everything": 1}
            for day in every
        ],
        histogram={9: 5, 13: 3, 20: 1},
        decided_by_day=[{"day": DAY, **half}],
        decided_by_group=[{"producer_group": group, **half, **by, **over({**half, **by})}],
        checks=[{"producer_group": group, **asked, **over(asked)}],
        skew=[{"topic": topic, "messages": 8, **shares, "everything": 1}],
        gaps=[
            {"topic": topic, "partition": 3, "first_offset": 0, "last_offset": 11, "seen": 9, "missing": 3,
             "repeated": 1, "everything": 1, "all_missing": 3, "all_repeated": 1}
        ],
    )  # fmt: skip
    return replace(plain, **changes)


def over(row: dict[str, int], times: int = 1) -> dict[str, int]:
    """What a row says of all rows."""
    return {"everything": times, **{f"all_{name}": value * times for name, value in row.items()}}


def moment(day: date) -> int:
    """A day's beginning, in seconds since 1970."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def facts(**changes: Any) -> Facts:
    """A report's facts."""
    given: dict[str, Any] = {
        "run": run(),
        "watermark": {"hi": 900, "top": 10},
        "figures": figures(),
        **changes,
    }
    return Facts(**given)
