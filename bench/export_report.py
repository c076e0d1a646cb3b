"""The tables of the export benchmark, and the figures that docs/operations/warehouse-scale.md is worked out from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio, spread
from bench.load.history import Counts
from bench.load.warehouse import Exported

FLOOR, AIM = 2.0, 4.0
"""Times the rate of a single connection."""
LINEAR = 0.8
WINDOWS = {
    "new": ("window of {window:,} messages on {messages:,}", 20.0),
    "late": ("{late:,} late decisions on {messages:,}", 25.0),
}
"""Seconds that the whole command may take for a small window on top of the longest history."""
RECONCILE = 25.0
"""Seconds for a million messages."""
METHOD = (
    "A history of messages with bodies of some 220 B of JSON, key, header and tag; one in twenty was a half "
    "message, with its events, a fifth of them asked about once; published in batches (up to 1,000,000 messages "
    "by a real relay). A row of the rates is a message; an export writes the publications and events besides, "
    "joins them to the messages and looks whether each body is JSON. Export: `outbox etl run` into a new "
    "Iceberg warehouse, all options default, so new messages are copied and written as Arrow; "
    "its own wall time as it reports it (without marts), in brackets the whole command: process, Spark's start, "
    "export, marts. Single connection: Spark with the "
    "same session settings reads the same columns of the same three tables through one JDBC connection (5,000 "
    "rows per fetch, as the export) and writes Parquet, without a join or a look at a body; in brackets with "
    "process and Spark's start. COPY: the messages' columns, binary, by psycopg into a file. Every job in a "
    "process of its own, rounds interleaved, medians; ratios are medians of the ratios within a round. PostgreSQL "
    "shares the cores."
)


@dataclass(slots=True)
class Outcome:
    """What was found at one size."""

    counts: Counts
    postgres_bytes: int
    usual: bool = False
    """Whether it is the largest size of every run; --scale adds larger ones."""
    exports: list[Exported] = field(default_factory=list)
    singles: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    reconcile: float | str | None = None
    """Seconds, or why there are none; None: what is in the warehouse is not in Kafka."""
    parts: dict[str, Any] = field(default_factory=dict)
    windows: dict[str, Exported] = field(default_factory=dict)
    late: int = 0

    @property
    def export_rates(self) -> list[float]:
        """Messages per second of each round, by the export's own wall time."""
        return [self.counts.messages / each.seconds for each in self.exports]

    def rates(self, found: Sequence[dict[str, Any]], name: str = "seconds") -> list[float]:
        """Messages per second of a peer."""
        return [self.counts.messages / each[name] for each in found]

    @property
    def millions(self) -> float:
        """Messages, in millions."""
        return self.counts.messages / 1e6

    def step(self, name: str, before: str) -> float:
        """Median seconds of one step of the export."""
        return median(each.step(name, before) for each in self.exports)


def describe(outcomes: Sequence[Outcome], window: int) -> Section:
    """All tables, floors and raw figures."""
    section = Section("export", "Exporting to a warehouse", METHOD)
    section.tables += [_rates(outcomes), _costs(outcomes), _sizes(outcomes), _steps(outcomes)]
    if any(each.windows for each in outcomes):
        section.tables.append(_windows(outcomes, window))
    for each in outcomes:
        if each.parts:
            section.tables.append(_parts(each))
    section.figures = {str(each.counts.messages): asdict(each) for each in outcomes}
    section.floors += _floors(outcomes) + _window_floors(outcomes, window)
    return section


def _rates(outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        f"Messages per second; floor {FLOOR:.0f} x the single connection, aim {AIM:.0f} x",
        ["messages", "rounds", "export", "least to greatest", "single connection", "COPY", "export / single",
         "export / COPY", "rows/s of all three tables"],
    )  # fmt: skip
    for each in outcomes:
        own, wall = each.export_rates, [each.counts.messages / run.wall for run in each.exports]
        single, copies = each.rates(each.singles), each.rates(each.copies)
        table.rows.append(
            [
                f"{each.counts.messages:,}",
                f"{len(own)}",
                f"{median(own):,.0f} ({median(wall):,.0f})",
                spread(own),
                f"{median(single):,.0f} ({median(each.rates(each.singles, 'wall')):,.0f})" if single else "",
                f"{median(copies):,.0f}",
                f"{ratio(own, single):.2f}" if single else "",
                f"{ratio(own, copies):.2f}",
                f"{median(own) * each.counts.rows / each.counts.messages:,.0f}",
            ]
        )
    return table


def _costs(outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        "CPU of the whole command, µs per message: process, Spark's start and, of an export, marts included",
        ["", "PostgreSQL", "Java", "Python", "in all", "cores busy"],
    )
    for each in outcomes:
        sides = [("export", [(run.cpu, run.wall) for run in each.exports])]
        sides.append(("single connection", [(run["cpu"], run["wall"]) for run in each.singles]))
        for side, runs in sides:
            if not runs:
                continue
            used = {name: median(_used(cpu, name) for cpu, _ in runs) for name in ("postgres", "java", "")}
            busy = median(sum(cpu.values()) / wall for cpu, wall in runs)
            shown = [f"{seconds / each.millions:.2f}" for seconds in (*used.values(), sum(used.values()))]
            table.rows.append([f"{side}, {each.counts.messages:,}", *shown, f"{busy:.2f}"])
    return table


def _used(cpu: Mapping[str, float], name: str) -> float:
    """CPU seconds of one program, or of all that are not named: Python's processes."""
    return cpu.get(name, 0.0) if name else sum(cpu.values()) - _used(cpu, "postgres") - _used(cpu, "java")


def _sizes(outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        "Linear: rate, memory and size as the history grows",
        ["messages", "publications", "events", "rate / rate at the usual size", "driver's peak memory",
         "warehouse B/message", "of it message_history", "its files", "PostgreSQL B/message"],
    )  # fmt: skip
    usual = _usual(outcomes)
    for each in outcomes:
        files, size = each.files.get("message_history", (0, 0))
        table.rows.append(
            [
                f"{each.counts.messages:,}",
                f"{each.counts.publications:,}",
                f"{each.counts.events:,}",
                f"{median(each.export_rates) / median(usual.export_rates):.2f}",
                f"{max(run.peak for run in each.exports) / 1e6:,.0f} MB",
                f"{each.files['all'][1] / each.counts.messages:.0f}",
                f"{size / each.counts.messages:.0f}",
                f"{files}",
                f"{each.postgres_bytes / each.counts.messages:.0f}",
            ]
        )
    return table


def _steps(outcomes: Sequence[Outcome]) -> Table:
    table = Table(
        "Seconds of each step (per million messages); new messages are written beside the first",
        [
            "messages",
            "until events and publications",
            "then new messages",
            "older, watermark",
            "marts",
            "reconcile",
        ],
    )
    for each in outcomes:
        steps = [
            each.step(name, before)
            for name, before in (("both", "window"), ("new", "both"), ("done", "new"), ("marts", "done"))
        ]
        cells = [_per_million(seconds, each) for seconds in steps]
        proof = each.reconcile
        cells.append(_per_million(proof, each) if isinstance(proof, float) else "failed" if proof else "")
        table.rows.append([f"{each.counts.messages:,}", *cells])
    return table


def _per_million(seconds: float, each: Outcome) -> str:
    return f"{seconds:.1f} ({seconds / each.millions:.1f})"


def _windows(outcomes: Sequence[Outcome], window: int) -> Table:
    table = Table(
        "Small windows on top: seconds of the export (of the whole command)",
        ["messages before", f"{window:,} new messages", "late decisions, all over", "their window"],
    )
    for each in outcomes:
        if each.windows:
            new, late = each.windows["new"], each.windows["late"]
            table.rows.append(
                [
                    f"{each.counts.messages:,}",
                    f"{new.seconds:.1f} ({new.wall:.1f})",
                    f"{each.late:,}",
                    f"{late.seconds:.1f} ({late.wall:.1f})",
                ]
            )
    return table


def _parts(each: Outcome) -> Table:
    parts = each.parts
    cores, messages, size = parts["cores"], parts["messages"], parts["bytes"]
    table = Table(
        f"What one task does, {messages:,} messages, {cores} tasks at once on {cores} cores shared with PostgreSQL",
        ["", "seconds", "messages/s in all", "messages/s per task"],
    )
    for name, what, tasks in (
        ("read_one", "read through one connection", 1),
        ("read_all", "read through one connection per task", cores),
        ("prepare_all", "read and prepare: headers, JSON", cores),
        ("scan_all", "scan message_history", cores),
        ("rewrite_all", "scan and write message_history again, zstd", cores),
    ):
        rate = messages / parts[name]
        table.rows.append([what, f"{parts[name]:.1f}", f"{rate:,.0f}", f"{rate / tasks:,.0f}"])
    written = size / 1e6 / parts["rewrite_all"]
    table.rows.append(["the same in MB/s written", "", f"{written:.1f} MB/s", f"{written / cores:.1f} MB/s"])
    return table


def _floors(outcomes: Sequence[Outcome]) -> list[Floor]:
    floors = [
        Floor(
            f"export of {each.counts.messages:,} (aim {AIM:.0f})",
            ratio(each.export_rates, each.rates(each.singles)),
            FLOOR,
            "x the single connection",
            at_least=True,
        )
        for each in outcomes
        if each.singles
    ]
    usual, last = _usual(outcomes), outcomes[-1]
    if last is not usual:
        rate = median(last.export_rates) / median(usual.export_rates)
        floors.append(
            Floor(
                f"export's rate at {last.counts.messages:,}",
                rate,
                LINEAR,
                f"of that at {usual.counts.messages:,}",
                at_least=True,
            )
        )
    return floors


def _window_floors(outcomes: Sequence[Outcome], window: int) -> list[Floor]:
    usual, last = _usual(outcomes), outcomes[-1]
    floors = []
    for name, (what, seconds) in WINDOWS.items():
        if name in last.windows:
            text = what.format(window=window, late=last.late, messages=last.counts.messages)
            floors.append(Floor(text, last.windows[name].wall, seconds, "s, whole command"))
    if (proof := usual.reconcile) is not None:
        seconds = proof / usual.millions if isinstance(proof, float) else math.inf  # (it failed)
        floors.append(Floor("reconcile", seconds, RECONCILE, "s per million"))
    return floors


def _usual(outcomes: Sequence[Outcome]) -> Outcome:
    return next(each for each in outcomes if each.usual)
