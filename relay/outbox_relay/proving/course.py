"""The course of a run over time: rates, latencies and faults, from the journals that the checker reads, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outbox_relay.proving.history import Fate, ReadRecord, SentMessage

COLUMNS = 120
"""Steps of time, at most."""
SHORTEST_STEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Course:
    """One value per step of time."""

    begin: float
    step: float
    committed: list[int]
    read: list[int]
    p50: list[float | None]
    """The median of what was committed in the step: milliseconds from COMMIT being sent to the reader having it."""
    p99: list[float | None]

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.step * len(self.read)


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Of all messages whose producer decided them, in milliseconds; those that waited for a fault to end included."""

    p50: float
    p99: float
    highest: float


def course_of(
    sent: Iterable[SentMessage], read: Iterable[ReadRecord]
) -> tuple[Course, LatencySummary] | None:
    """Work out the course; None when nothing arrived."""
    known = {one.message_id: one for one in sent if one.fate is Fate.COMMITTED}
    pairs: list[tuple[float, float]] = []
    timed: list[tuple[float, float]] = []
    for record in read:
        # Taken out at its first appearance: a repeat has no latency.
        message = known.pop(record.message_id, None)
        if message is not None:
            pairs.append((message.ending, record.received))
            # A half message without a counter is left to the checker, which asks a second later.
            if message.counter is not None:
                timed.append(pairs[-1])
    if not pairs:
        return None
    begin = min(at for at, _ in pairs)
    length = max(received for _, received in pairs) - begin
    step = max(SHORTEST_STEP_S, length / COLUMNS)
    steps = int(length / step) + 1
    committed, arrived = [0] * steps, [0] * steps
    waits: list[list[float]] = [[] for _ in range(steps)]
    for at, received in pairs:
        committed[int((at - begin) / step)] += 1
        arrived[int((received - begin) / step)] += 1
    for at, received in timed:
        waits[int((at - begin) / step)].append(1000 * (received - at))
    every = sorted(1000 * (received - at) for at, received in timed)
    return (
        Course(
            begin,
            step,
            committed,
            arrived,
            [_percentile(sorted(each), 0.5) for each in waits],
            [_percentile(sorted(each), 0.99) for each in waits],
        ),
        LatencySummary(_percentile(every, 0.5) or 0.0, _percentile(every, 0.99) or 0.0, max([*every, 0.0])),
    )


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[math.ceil(len(ordered) * share) - 1] if ordered else None
