"""The flights of the demo, entered by its own producers: in shares, into two topics, while a test does other things."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from outbox_local.demo import board, journal
from outbox_local.demo.flights import Flight
from outbox_local.demo.journal import Entry
from outbox_local.demo.producer import SQL, Work
from outbox_relay.proving.children import Child, Children
from tests.support.plain_inserts import connect

SEED = 7
EACH = 2
"""Producers per topic."""
LIMIT_S = 240.0


class Office:
    """The maintenance office: every aircraft belongs to one of its topics, so that both keep its order."""

    def __init__(self, dsn: str, topics: Sequence[str], flights: Sequence[Flight], directory: Path) -> None:
        self.topics, self.flights = topics, flights
        self._directory, self._dsn = directory, dsn
        with connect(dsn) as conn:
            conn.execute(SQL["create"])

    def of(self, topic: str) -> list[Flight]:
        """The flights that are sent to a topic."""
        return [flight for flight in self.flights if self._topic(flight) == topic]

    def entries(self, topic: str) -> list[Entry]:
        """What the producers of a topic journalled."""
        return list(journal.entries(self._journals(topic)))

    @contextlib.contextmanager
    def entering(self, share: slice, *, rate: float | None = None) -> Iterator[None]:
        """Enter a share of the flights while the block runs; all of them are entered when it ends.

        With `rate`, so many flights per second and producer.
        """
        with Children(self._directory, {"OUTBOX_DSN": self._dsn}) as children:
            started = [child for topic in self.topics for child in self._start(children, topic, share, rate)]
            yield
            for child in started:
                child.wait(LIMIT_S)

    def _start(self, children: Children, topic: str, share: slice, rate: float | None) -> Iterator[Child]:
        shared = self._directory / f"board-{topic}-{share.start}"
        board.write(shared, [flight for flight in self.flights[share] if self._topic(flight) == topic])
        with shared.open("rb") as file:
            for number, path in enumerate(self._journals(topic)):
                work = Work(topic, number, SEED, rate, str(path)).as_argument()
                name = f"producer {topic} {number} {share.start}"
                yield children.start(name, "-m", "outbox_local.demo.producer", work, stdin=file.fileno())

    def _topic(self, flight: Flight) -> str:
        return self.topics[zlib.crc32(flight.aircraft.encode()) % len(self.topics)]

    def _journals(self, topic: str) -> list[Path]:
        return [self._directory / f"{topic}-{number}.jsonl" for number in range(EACH)]
