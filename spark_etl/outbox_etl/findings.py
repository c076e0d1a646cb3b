"""What a comparison found: problems, each with message, place and a sentence; and what is told and no problem."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CAP = 10_000
"""Findings of one comparison that are looked at one by one; the others are counted."""

KINDS = {
    "missing": "is not where it should be",
    "doubled": "is there more than once",
    "out_of_order": "lies behind a later message of its order key",
    "misplaced": "is in Kafka, but not at the offset that was recorded",
    "altered": "has another content",
    "extra": "is in the warehouse and not in PostgreSQL",
    "not_committed": "is in Kafka, and its message was never committed",
    "unknown": "carries an outbox-id that nobody knows",
    "checksum": "the sums differ although every message was found",
}


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


@dataclass(slots=True)
class Findings:
    """All findings of a run: the first of each kind in full, all of them counted."""

    limit: int
    """Findings of one kind and store that are listed."""
    allow_doubled: bool = False
    """Doubled records in Kafka are told, and are no problem: at-least-once allows them after a crash."""
    listed: list[Finding] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    allowed: list[Finding] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def problems(self) -> int:
        """How many problems there are."""
        return self.totals.total()

    def add(self, finding: Finding, times: int = 1) -> None:
        """Count a finding, and list it if there is room."""
        name = f"{finding.kind} in {finding.store}"
        if self.allow_doubled and name == "doubled in kafka":
            self.notes["doubled"] += times
            if len(self.allowed) < self.limit:
                self.allowed.append(finding)
            return
        if self.totals[name] < self.limit:
            self.listed.append(finding)
        self.totals[name] += times

    def collect(self, rows: DataFrame) -> None:
        """Take findings that Spark has found; `rows` has the columns of `Finding`."""
        rows = rows.select("kind", "store", "message_id", "topic", "partition", "offset", "detail")
        taken = rows.limit(CAP + 1).collect()
        for row in taken[:CAP]:
            self.add(Finding(*row))
        if len(taken) > CAP:
            more = rows.count() - CAP
            self.add(
                Finding("unlisted", taken[CAP]["store"], None, None, None, None, f"{more} more findings"),
                more,
            )
