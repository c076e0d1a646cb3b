"""What was read of a warehouse: the rows that its proof checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""One row of a table, by its columns' names: bytes for what is binary, datetime for times, date for days."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of the warehouse's tables, of one topic."""

    history: Sequence[Row]
    throughput: Sequence[Row]
    latency: Sequence[Row]
    key_skew: Sequence[Row]
    gaps: Sequence[Row]

    def of(self, topic: str) -> Tables:
        """The rows of one topic."""
        names = ("history", "throughput", "latency", "key_skew", "gaps")
        return Tables(*([row for row in getattr(self, name) if row["topic"] == topic] for name in names))
