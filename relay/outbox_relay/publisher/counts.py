"""What a session has done so far: for the log, for metrics and for tests."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Upper bounds of the classes of a `Times`, in seconds."""


class Times:
    """How often something took how long; one thread adds, others read."""

    def __init__(self) -> None:
        self.classes = [0] * (len(BOUNDS) + 1)
        """How many were at most each bound and more than the one before; the last: more than all."""
        self.total = 0.0
        """Their sum, in seconds."""

    def add(self, seconds: float) -> None:
        """Count one; a negative one, from two clocks, counts as nothing."""
        seconds = max(0.0, seconds)
        self.classes[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Counts:
    """What this session has done so far."""

    published: int = 0
    recorded: int = 0
    batches: int = 0
    polls: int = 0
    released: int = 0
    last_found: float = field(default_factory=time.monotonic)
    ack: Times = field(default_factory=Times)
    """From handing a batch to Kafka to its acknowledgement."""
    age: Times = field(default_factory=Times)
    """From the insertion of a batch's oldest message to its acknowledgement."""

    def acknowledged(self, since: float, at: float | None, born: float | None) -> None:
        """Count the times of a batch that Kafka acknowledged.

        Args:
            since: when it was given to Kafka, as of `time.monotonic()`.
            at: when that was acknowledged, by the same clock; None: now.
            born: when its oldest message was inserted, in seconds since 1970, if that is known.
        """
        now = time.monotonic()
        at = now if at is None else at
        self.ack.add(at - since)
        if born is not None:
            self.age.add(time.time() - (now - at) - born)

    def plus(self, other: Counts) -> Counts:
        """Return the sum of the numbers of two sessions."""
        return Counts(
            self.published + other.published,
            self.recorded + other.recorded,
            self.batches + other.batches,
            self.polls + other.polls,
            self.released + other.released,
        )
