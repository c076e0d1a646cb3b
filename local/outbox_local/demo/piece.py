"""The piece that is played: which flights, by how many, where the journals lie; and how far it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outbox_local.demo import journal
from outbox_local.demo.flights import Flight
from outbox_local.demo.journal import Crash, Entry, FlightOutcome, Record
from outbox_relay.proving.tails import JournalTail


@dataclass(frozen=True, slots=True)
class Piece:
    """What is played."""

    flights: Sequence[Flight]
    producers: int
    seed: int
    rate: float | None
    """Flights per second of all producers together; None: as fast as they can."""
    directory: Path
    """Where the journals are written."""

    @property
    def producer_journals(self) -> list[Path]:
        """One for each producer."""
        return [self.directory / f"producer-{number}.jsonl" for number in range(self.producers)]

    @property
    def consumer_journal(self) -> Path:
        """What was read."""
        return self.directory / "consumer.jsonl"

    @property
    def relay_journal(self) -> Path:
        """When the relay was killed."""
        return self.directory / "relay.jsonl"

    def crash(self) -> Crash | None:
        """The kill of the relay."""
        return journal.crash(self.relay_journal)

    def entries(self) -> Iterator[Entry]:
        """What the producers journalled."""
        return journal.entries(self.producer_journals)

    def records(self) -> Iterator[Record]:
        """What the consumer read."""
        return journal.records(self.consumer_journal)


class Watch:
    """Counts what the journals hold so far."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self._producers = [JournalTail(path) for path in piece.producer_journals]
        self._consumer = JournalTail(piece.consumer_journal)
        self._arrived: set[int] = set()
        self.ended = self.committed = 0

    @property
    def arrived(self) -> int:
        """How many messages were read, repeats not counted."""
        return len(self._arrived)

    def look(self) -> bool:
        """Read on; answer whether something has arrived."""
        for tail in self._producers:
            for line in tail.new_lines():
                outcome = journal.entry(line).outcome
                self.ended += outcome is not FlightOutcome.UNKNOWN
                self.committed += outcome is FlightOutcome.COMMITTED
        before = len(self._arrived)
        # Their hashes: a whole year of bodies would take memory for a progress bar.
        self._arrived.update(hash(journal.record(line).value) for line in self._consumer.new_lines())
        return len(self._arrived) > before
