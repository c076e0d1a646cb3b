"""Journals: what producers and the consumer write down while they work, one JSON array per line.

A producer notes each transaction after its end; the consumer notes each record as it was read; the demo notes
when it killed the relay. The proof knows nothing but these and the source. Times are seconds since 1970 of this
machine's clock, the record's own in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class FlightOutcome(StrEnum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"
    """The connection broke during COMMIT. Another entry follows when a later connection has found out."""


class Entry(NamedTuple):
    """One transaction of a producer."""

    producer: int
    flight: int
    aircraft: str
    sequence: int
    outcome: FlightOutcome
    began: float
    """Before the first statement."""
    ending: float
    """Before COMMIT or ROLLBACK was sent."""
    ended: float
    """After it was answered."""


class Record(NamedTuple):
    """One Kafka record, as a stock consumer read it."""

    partition: int
    offset: int
    timestamp: int
    """The record's own time in milliseconds: when a relay gave it to Kafka."""
    received: float
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]

    def header(self, name: str) -> str | None:
        """The last header of that name."""
        return next((value for found, value in reversed(self.headers) if found == name), None)


class Crash(NamedTuple):
    """The kill of a relay, whose successor was started right after."""

    at: float
    """After SIGKILL was delivered and before the successor started: all that one has published is older, all that
    the other publishes is newer."""


def line(value: tuple[Any, ...]) -> str:
    """One line of a journal."""
    return json.dumps(value, separators=(",", ":")) + "\n"


def entry(text: str) -> Entry:
    """Read a producer's line."""
    values = json.loads(text)
    values[4] = FlightOutcome(values[4])
    return Entry(*values)


def record(text: str) -> Record:
    """Read the consumer's line."""
    partition, offset, timestamp, received, key, value, headers = json.loads(text)
    return Record(partition, offset, timestamp, received, key, value, tuple(map(tuple, headers)))


def crash(path: Path) -> Crash | None:
    """When the relay was killed; None when it was not."""
    return Crash(*json.loads(path.read_text())) if path.exists() else None


def entries(paths: Iterable[Path]) -> Iterator[Entry]:
    """All transactions of several producers, one producer after the other."""
    for path in paths:
        with path.open() as lines:
            yield from map(entry, lines)


def records(path: Path) -> Iterator[Record]:
    """All records, in the order in which they were read."""
    with path.open() as lines:
        yield from map(record, lines)
