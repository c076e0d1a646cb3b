"""The report: tables and floors of all benchmarks, as Markdown for people and as JSON for machines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Table:
    """One table; cells are text already, the first column is the row's name."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """The table in Markdown, aligned so that it can be read as it is."""
        lines = [list(self.columns), *(list(row) for row in self.rows)]
        widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(self.columns))]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        shown = [
            "| "
            + " | ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            + " |"
            for line in [lines[0], rule, *lines[1:]]
        ]
        return "\n".join([f"**{self.title}**", "", *shown])


@dataclass(slots=True)
class Floor:
    """What a figure must at least reach, or at most be, on the machine that the project is measured on."""

    what: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure keeps to its floor."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def row(self) -> list[str]:
        """The floor as a row of the summary."""
        sign = "≥" if self.at_least else "≤"
        shown = [
            f"{number:,.0f}" if number >= 1000 else f"{number:.3g}" for number in (self.measured, self.limit)
        ]
        return [
            self.what,
            f"{shown[0]} {self.unit}",
            f"{sign} {shown[1]} {self.unit}",
            "yes" if self.met else "NO",
        ]


@dataclass(slots=True)
class Section:
    """What one benchmark found: how it was measured, tables, floors, and the raw figures of every round."""

    name: str
    title: str
    method: str
    tables: list[Table] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, found: dict[str, Any]) -> Section:
        """Read a section of the report's JSON."""
        floors = [{name: value for name, value in each.items() if name != "met"} for each in found["floors"]]
        given = {
            **found,
            "tables": [Table(**each) for each in found["tables"]],
            "floors": [Floor(**each) for each in floors],
        }
        return cls(**given)

    def markdown(self) -> str:
        """The section in Markdown."""
        return "\n\n".join([f"## {self.title}", self.method, *(table.markdown() for table in self.tables)])


@dataclass(slots=True)
class Report:
    """All sections of one run and the machine they ran on."""

    machine: dict[str, Any]
    sections: list[Section]

    @property
    def floors(self) -> list[Floor]:
        """The floors of all sections."""
        return [floor for section in self.sections for floor in section.floors]

    def summary(self) -> str:
        """The floors as one table."""
        table = Table(
            "Floors", ["figure", "measured", "floor", "met"], [floor.row() for floor in self.floors]
        )
        return table.markdown()

    def into(self, earlier: str, order: Sequence[str]) -> Report:
        """Put these sections into an earlier report (its JSON), in place of those of the same names.

        The machine is the earlier run's; a section of another run says of which. A section of a benchmark that `order`
        does not name, because it exists no more, is left out.
        """
        found = json.loads(earlier)
        names = {section.name for section in self.sections}
        kept = [Section.of(each) for each in found["sections"] if each["name"] in {*order} - names]
        load = self.machine.get("load before the run (1 min)", "unknown")
        note = f"(Of a run of its own, {self.machine.get('date', 'undated')}, load before it {load}.) "
        new = [dataclasses.replace(section, method=note + section.method) for section in self.sections]
        both = sorted([*kept, *new], key=lambda section: list(order).index(section.name))
        return Report(found["machine"], both)

    def markdown(self) -> str:
        """The whole report in Markdown."""
        machine = Table(
            "Machine", ["", "value"], [[name, str(value)] for name, value in self.machine.items()]
        )
        head = (
            "# Benchmark results\n\nWritten by `make bench`. Peers and limits were measured in the same run: "
            "compare ratios; absolute figures are this machine's."
        )
        parts = [head, machine.markdown(), self.summary(), *(section.markdown() for section in self.sections)]
        return "\n\n".join(parts) + "\n"

    def json(self) -> str:
        """The whole report, raw figures included."""
        floors = [{**dataclasses.asdict(floor), "met": floor.met} for floor in self.floors]
        content = {**dataclasses.asdict(self), "floors": floors}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
