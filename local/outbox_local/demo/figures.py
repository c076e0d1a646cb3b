"""Figures: rates, latencies and their course over time, from the same journals that the proof reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outbox_local.demo.journal import Crash, Entry, FlightOutcome, Record

COLUMNS = 60
"""Steps of time in a chart, at most."""
SHORTEST_STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Latency:
    """From COMMIT being sent to the consumer having the message, in milliseconds."""

    p50: float
    p95: float
    p99: float
    highest: float
    count: int


@dataclass(frozen=True, slots=True)
class Course:
    """How it went over time: one value per step, times in seconds since the first transaction."""

    step: float
    committed: list[int]
    read: list[int]
    latency: list[float | None]
    """The median of what was committed in the step, in milliseconds."""
    killed: float
    recovered: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates per second, each over the time from its first to its last."""

    seconds: float
    transactions_per_s: float
    """Committed and rolled back."""
    committed_per_s: float
    published_per_s: float
    read_per_s: float
    read_per_s_at_best: float
    """In the best step of the course: what catching up after the kill reached."""
    contended: int
    """Transactions that overlapped with another producer's for the same aircraft."""
    steady: Latency | None
    """Of the messages that were not held up by the kill; None without any."""
    held_up: int
    """Messages that waited for the next relay."""
    recovery_s: float | None
    """From the kill to the first message of the next relay, in the consumer's hands; None: there was none."""
    course: Course


def measure(entries: Iterable[Entry], records: Iterable[Record], crash: Crash | None) -> Figures:
    """Work out the figures of one performance.

    Raises:
        ValueError: nothing was committed or nothing was read.
    """
    transactions = [entry for entry in entries if entry.outcome is not FlightOutcome.UNKNOWN]
    sent = {entry.flight: entry.ending for entry in transactions if entry.outcome is FlightOutcome.COMMITTED}
    committed = len(sent)
    arrivals: list[tuple[float, float]] = []
    """COMMIT sent, message read."""
    published: list[int] = []
    recovered: float | None = None
    for record in records:
        if recovered is None and crash is not None and record.timestamp >= int(crash.at * 1000):
            recovered = record.received
        # Taken out at its first appearance: a repeat has no latency.
        ending = sent.pop(_flight(record), None)
        if ending is not None:
            arrivals.append((ending, record.received))
            published.append(record.timestamp)
    if not arrivals:
        raise ValueError("nothing was read")
    start = min(entry.began for entry in transactions)
    written = max(entry.ended for entry in transactions)
    end = max([written, *(read for _, read in arrivals)])
    killed = end if crash is None else crash.at
    until = end if recovered is None else recovered
    steady = [
        read - ending for ending, read in arrivals if crash is None or read < crash.at or ending > until
    ]
    course = _course(start, end, arrivals, killed, recovered)
    writing = written - start
    return Figures(
        seconds=end - start,
        transactions_per_s=len(transactions) / writing,
        committed_per_s=committed / writing,
        published_per_s=_rate([time / 1000 for time in published]),
        read_per_s=_rate([read for _, read in arrivals]),
        read_per_s_at_best=max(course.read) / course.step,
        contended=_contended(transactions),
        steady=_latency(steady),
        held_up=len(arrivals) - len(steady),
        recovery_s=None if recovered is None else recovered - killed,
        course=course,
    )


def _flight(record: Record) -> int:
    """The flight's row in the source; 0, which no flight has, when the message is none of ours."""
    try:
        number = json.loads(record.value or "")["row"]
    except (ValueError, KeyError, TypeError):
        return 0
    return number if type(number) is int else 0


def _rate(times: Sequence[float]) -> float:
    return len(times) / max(max(times) - min(times), 0.001)


def _latency(seconds: Iterable[float]) -> Latency | None:
    ordered = sorted(1000 * value for value in seconds)
    if not ordered:
        return None
    p50, p95, p99 = (_percentile(ordered, share) for share in (0.5, 0.95, 0.99))
    return Latency(p50, p95, p99, ordered[-1], len(ordered))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least that share of all values does not exceed."""
    return ordered[math.ceil(len(ordered) * share) - 1]


def _contended(transactions: Sequence[Entry]) -> int:
    count = 0
    last: dict[str, Entry] = {}
    for entry in sorted(transactions, key=lambda entry: entry.began):
        before = last.get(entry.aircraft)
        if before is not None and before.producer != entry.producer and entry.began < before.ended:
            count += 1
        if before is None or entry.ended > before.ended:
            last[entry.aircraft] = entry
    return count


def _course(
    start: float,
    end: float,
    arrivals: Sequence[tuple[float, float]],
    killed: float,
    recovered: float | None,
) -> Course:
    step = max(SHORTEST_STEP_S, (end - start) / COLUMNS)
    steps = int((end - start) / step) + 1
    committed, read = [0] * steps, [0] * steps
    waits: list[list[float]] = [[] for _ in range(steps)]
    for sent, received in arrivals:
        place = int((sent - start) / step)
        committed[place] += 1
        waits[place].append(1000 * (received - sent))
        read[int((received - start) / step)] += 1
    return Course(
        step,
        committed,
        read,
        [_percentile(sorted(values), 0.5) if values else None for values in waits],
        killed - start,
        None if recovered is None else recovered - start,
    )
