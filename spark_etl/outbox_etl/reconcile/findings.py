"""What a comparison found: problems, each with message, place and a sentence; and notes, which are not problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

CAP = 10_000
"""Findings of one comparison that are listed one by one; the others are counted."""

KINDS = {
    "missing": "is not where it should be",
    "doubled": "is there more than once",
    "out_of_order": "lies behind a later message of its order key",
    "misplaced": "is in Kafka, but not at the offset that was recorded",
    "altered": "has another content",
    "extra": "is in the warehouse and not in PostgreSQL",
    "lost": "was in PostgreSQL until a fail-over lost it, and the warehouse kept it",
    "unverified": "was dropped from PostgreSQL before it was verified in this warehouse",
    "not_committed": "is in Kafka, and its message was never committed",
    "unknown": "carries an outbox-id of no known message",
    "checksum": "the sums differ although every message was found",
}


NOTED = {
    "doubled in kafka": "doubled",
    "doubled in postgres": "sent_twice",
    "lost in warehouse": "lost_in_a_failover",
}
"""Findings that are no problems, and the notes that count them. Exactly once promises that nothing is doubled."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: what (see KINDS), in which of the three, which message, where, and a sentence."""

    kind: str
    store: str
    """kafka, warehouse or postgres: where the message is missing, doubled, …"""
    message_id: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    detail: str

    def __str__(self) -> str:
        """One line for people."""
        place = f" {self.topic}[{self.partition}]@{self.offset}" if self.topic is not None else ""
        return f"{self.kind} in {self.store}: {self.message_id or '-'}{place}: {self.detail}"


COLUMNS = {
    "kind": "string",
    "store": "string",
    "message_id": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "detail": "string",
}


@dataclass(frozen=True, slots=True)
class _Query:
    """Rows that `settle` collects: findings, or the count of a note."""

    rows: DataFrame
    note: str | None = None


@dataclass(slots=True)
class Findings:
    """All findings of a run: the first of each kind in full, all of them counted."""

    limit: int
    """Findings of one kind and store that are listed."""
    exactly_once: bool = False
    """Doubled records in Kafka are problems. At-least-once allows them after a crash: then they are noted."""
    listed: list[Finding] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    allowed: list[Finding] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    _asked: list[_Query] = field(default_factory=list)

    @property
    def problems(self) -> int:
        """How many problems there are."""
        return self.totals.total()

    def add(self, finding: Finding, times: int = 1) -> None:
        """Count a finding, and list it if there is room."""
        name = f"{finding.kind} in {finding.store}"
        note = NOTED.get(name)
        if note and not (finding.kind == "doubled" and self.exactly_once):
            if self.notes[note] < self.limit:
                self.allowed.append(finding)
            self.notes[note] += times
            return
        if self.totals[name] < self.limit:
            self.listed.append(finding)
        self.totals[name] += times

    def collect(self, rows: DataFrame) -> None:
        """Ask for findings that Spark is to find; `rows` has the columns of `Finding`. See `settle`."""
        self._asked.append(_Query(rows.select(*COLUMNS)))

    def note(self, name: str, rows: DataFrame) -> None:
        """Ask for a count of rows that are no problem. See `settle`."""
        counted = rows.agg(f.count("*").alias("count"))
        nothing = (f"cast(NULL AS {kind}) {column}" for column, kind in COLUMNS.items() if column != "detail")
        self._asked.append(_Query(counted.selectExpr(*nothing, "cast(count AS string) detail"), name))

    def settle(self) -> None:
        """Find all that was asked for in one job of Spark: of a small window, planning and starting are the cost."""
        asked, self._asked = self._asked, []
        parts = [
            each.rows.limit(CAP + 1).withColumn("of", f.lit(number)) for number, each in enumerate(asked)
        ]
        taken: dict[int, list[Any]] = {number: [] for number in range(len(asked))}
        if parts:
            for row in reduce(DataFrame.unionByName, parts).collect():
                taken[row["of"]].append(row)
        for number, each in enumerate(asked):
            self._take(each, taken[number])

    def _take(self, asked: _Query, taken: list[Any]) -> None:
        if asked.note is not None:
            self.notes[asked.note] += int(taken[0]["detail"])
            return
        for row in taken[:CAP]:
            self.add(Finding(*(row[name] for name in COLUMNS)))
        if len(taken) > CAP:
            more = asked.rows.count() - CAP
            text = f"{more} more findings like these: {taken[CAP]['kind']}"
            name = taken[CAP]["kind"] if taken[CAP]["kind"] in {"doubled", "lost"} else "unlisted"
            self.add(Finding(name, taken[CAP]["store"], None, None, None, None, text), more)


def chunks(rows: DataFrame) -> Iterator[list[Any]]:
    """Yield rows, CAP at a time."""
    each = rows.toLocalIterator()
    while some := list(islice(each, CAP)):
        yield some
