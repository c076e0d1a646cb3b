"""From what one machine did to what a cluster would: the two tables of docs/operations/warehouse-scale.md.

`python -m bench.export_plan` copies them from bench/results.json into the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.export_report import Outcome
from bench.harness.report import Section, Table
from bench.harness.statistics import median
from outbox_etl.source.reader import MOST_RANGE

MESSAGES = 10_000_000_000
PER_DAY = MESSAGES / 30
WINDOW = 900
"""Seconds between two runs."""
CORES = 64
"""Sixteen executors of four cores."""
FILE = 128 << 20
SLICE = 40_000_000
"""What `--slice-rows` is on the cluster."""
CHECKED = 3
"""Days that a half message may stay undecided (a producer group's max_age, 72 hours)."""

ABSENT = "not measured"
MARKS = ("measured", "extrapolated")
"""The tables by their first columns, and the places that they have in the document."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its letter in the document, what it is, and its value as text."""

    letter: str
    what: str
    value: str

    def row(self) -> list[str]:
        """The figure as a row."""
        return [f"{self.letter} {self.what}", self.value]


def tables(usual: Outcome, last: Outcome) -> list[Table]:
    """What was measured, and what follows from it; `usual` has the figures of single tasks."""
    known = measured(usual, last)
    machine = Table(
        f"Figures for docs/operations/warehouse-scale.md, measured at {last.counts.messages:,} messages "
        f"(those of a task at {usual.counts.messages:,})",
        ["measured", "value"],
        [figure.row() for figure in _shown(known)],
    )
    cluster = Table(
        f"The same at {MESSAGES:,} messages in 30 days, {CORES} cores: extrapolated, never run",
        ["extrapolated", "value"],
        [figure.row() for figure in extrapolated(known)],
    )
    return [machine, cluster]


def measured(usual: Outcome, last: Outcome) -> dict[str, float]:
    """The figures by their letters; M is 0 when reconcile was not measured."""
    parts, messages = usual.parts, usual.parts["messages"]
    cores = parts["cores"]
    files, size = last.files.get("message_history", (0, 0))
    proof = usual.reconcile if isinstance(usual.reconcile, float) else 0.0
    return {
        "A": median(last.export_rates),
        "B": messages / parts["read_one"],
        "C": messages / parts["read_all"] / cores,
        "D": messages / parts["prepare_all"] / cores,
        "E": parts["bytes"] / 1e6 / parts["rewrite_all"] / cores,
        "F": size / last.counts.messages,
        "G": last.files["all"][1] / last.counts.messages,
        "H": size / max(files, 1) / 2**20,
        "I": max(each.peak for each in last.exports) / 1e6,
        "J": last.windows["new"].seconds,
        "K": last.windows["late"].seconds / last.millions,
        "L": last.step("marts", "done") / last.millions,
        "M": proof / usual.millions,
        "N": last.postgres_bytes / last.counts.messages,
        "O": parts["cores"],
    }


def _shown(known: Mapping[str, float]) -> list[Figure]:
    texts = {
        "A": ("export, the whole machine", "{:,.0f} messages/s"),
        "B": ("reading, one connection alone", "{:,.0f} messages/s"),
        "C": ("reading, each of as many connections as cores", "{:,.0f} messages/s"),
        "D": ("reading and preparing, each task", "{:,.0f} messages/s"),
        "E": ("scanning and writing again, each task", "{:.1f} MB/s of Parquet"),
        "F": ("message_history", "{:.0f} B/message"),
        "G": ("warehouse in all", "{:.0f} B/message"),
        "H": ("files of message_history, as an export leaves them", "{:.0f} MiB"),
        "I": ("driver's peak memory, 2 GB of heap", "{:,.0f} MB"),
        "J": ("window of new messages on top", "{:.1f} s"),
        "K": ("late decisions spread over all files", "{:.2f} s per million messages of the history"),
        "L": ("daily marts", "{:.2f} s per million messages of the day"),
        "M": ("reconcile", "{:.2f} s per million messages"),
        "N": ("PostgreSQL, indexes and publications included", "{:.0f} B/message"),
        "O": ("cores, PostgreSQL on the same ones", "{:.0f}"),
    }
    return [
        Figure(letter, what, form.format(known[letter]) if known[letter] else ABSENT)
        for letter, (what, form) in texts.items()
    ]


def extrapolated(known: Mapping[str, float]) -> list[Figure]:
    """What follows, each by the formula in its name; the letters are those of what was measured."""
    cores = known["O"]
    rate = known["A"] / cores * CORES
    per_window = PER_DAY / 86_400 * WINDOW
    share = cores / CORES
    day_files = PER_DAY * known["F"] / FILE
    rewritten = PER_DAY * known["F"] / 1e6 / known["E"] / 3600
    day_late = CHECKED * PER_DAY / 1e6 * known["K"] * share
    proof = f"{PER_DAY / 1e6 * known['M'] * share / 60:,.0f} min" if known["M"] else ABSENT
    return [
        Figure("a", f"rate of the cluster: A / O x {CORES}", f"{rate:,.0f} messages/s"),
        Figure("b", "first export of all: messages / a", f"{MESSAGES / rate / 3600:.1f} h"),
        Figure("c", "what PostgreSQL has to read meanwhile: a x N", f"{rate * known['N'] / 1e6:,.0f} MB/s"),
        Figure("d", "warehouse in all: messages x G", f"{MESSAGES * known['G'] / 1e12:.2f} TB"),
        Figure("e", "the same history in PostgreSQL: messages x N", f"{MESSAGES * known['N'] / 1e12:.2f} TB"),
        Figure("f", "files of 128 MiB of message_history per day", f"{day_files:,.0f}"),
        Figure("g", "in 30 days", f"{30 * day_files:,.0f}"),
        Figure("h", f"commits of the first export, slices of {SLICE:,} ids", f"{MESSAGES / SLICE:,.0f}"),
        Figure("i", f"tasks of such a slice, of {MOST_RANGE:,} ids each", f"{SLICE / MOST_RANGE:,.0f}"),
        Figure("j", "what a task writes of it", f"{MOST_RANGE * known['F'] / 2**20:.0f} MiB"),
        Figure("k", "messages of a window of 15 minutes", f"{per_window:,.0f}"),
        Figure("l", "its export on the one machine: k / A", f"{per_window / known['A']:.0f} s"),
        Figure("m", "its export on the cluster: k / a, at least J", f"{max(per_window / rate, known['J']):.0f} s"),
        Figure("n", "late decisions in every file of three days, cluster: K", f"{day_late:,.0f} s"),
        Figure("o", "marts of a full day, one machine: L", f"{PER_DAY / 1e6 * known['L']:,.0f} s"),
        Figure("p", "marts of a full day, cluster: L", f"{PER_DAY / 1e6 * known['L'] * share:,.0f} s"),
        Figure("q", "reconcile of a day, cluster: M", proof),
        Figure("r", "compaction of a day: day's bytes / E", f"{rewritten:.1f} core hours"),
    ]  # fmt: skip


def copied(results: str, document: str) -> str:
    """The document with the tables of the results (JSON) between its marks.

    Raises:
        ValueError: the results have no such tables, or the document no such marks.
    """
    sections = [Section.of(each) for each in json.loads(results)["sections"] if each["name"] == "export"]
    found = [table for section in sections for table in section.tables if table.columns[0] in MARKS]
    if len(found) != len(MARKS):
        raise ValueError(
            "no figures of the export: run `python -m bench --only export --scale --output bench`"
        )
    for table in found:
        name = table.columns[0]
        place = re.search(rf"<!-- {name}: begin[^>]*-->\n(.*?)\n<!-- {name}: end -->", document, re.DOTALL)
        if place is None:
            raise ValueError(f"the document has no place for what was {name}, between begin and end")
        document = document[: place.start(1)] + table.markdown() + document[place.end(1) :]
    return document


def main() -> None:
    """Copy the tables."""
    here = Path(__file__).parent
    document = here.parent / "docs" / "operations" / "warehouse-scale.md"
    document.write_text(copied((here / "results.json").read_text(), document.read_text()))


if __name__ == "__main__":
    main()
