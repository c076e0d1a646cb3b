"""What the recorder writes in one commit: statements, and changes of lanes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.lane_rows import Change
from outbox_relay.publisher.withheld import Kept


class Step(NamedTuple):
    """A statement and its values. Each carries the lease check: it touches no row of lanes that are not ours."""

    text: str
    values: dict[str, Any]
    locks: frozenset[int] = frozenset()
    """The lanes whose rows it locks."""


@dataclass(slots=True)
class Plan:
    """What there is to write."""

    steps: list[Step] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    messages: int = 0
    done: list[Batch] = field(default_factory=list)
    resumed: set[int] = field(default_factory=set)
    kept: list[Kept] = field(default_factory=list)
    """Claims and drains that are not written now."""
    is_barrier: bool = False
    """Whether a step checks the ownership of all lanes."""

    def is_only(self, text: str) -> bool:
        """Whether it is this statement and nothing else."""
        return len(self.steps) == 1 and self.steps[0].text == text and not self.changes
