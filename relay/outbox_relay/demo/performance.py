"""The performance: producers write, a relay publishes, is killed and replaced, a stock consumer reads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outbox_relay.demo import board, journal
from outbox_relay.demo.children import Child, ChildError, Children
from outbox_relay.demo.consumer import READY, Reading
from outbox_relay.demo.flights import Flight
from outbox_relay.demo.journal import Crash, Entry, Outcome, Record, Tail
from outbox_relay.demo.producer import Work
from outbox_relay.demo.venue import Venue

LOOK_EVERY_S = 0.05
PATIENCE_S = 30.0
"""How long nothing may arrive before the demo stops waiting; the proof then says what is missing."""
STOP_S = 40.0
KILL_AT = 0.48
"""The relay is killed when this share of the flights has arrived: 3 % never will."""


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

    def entries(self) -> Iterator[Entry]:
        """What the producers journalled."""
        return journal.entries(self.producer_journals)

    def records(self) -> Iterator[Record]:
        """What the consumer read."""
        return journal.records(self.consumer_journal)


class Watch:
    """Counts what the journals say so far."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self._producers = [Tail(path) for path in piece.producer_journals]
        self._consumer = Tail(piece.consumer_journal)
        self._arrived: set[str | None] = set()
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
                self.ended += outcome is not Outcome.UNKNOWN
                self.committed += outcome is Outcome.COMMITTED
        before = len(self._arrived)
        self._arrived.update(journal.record(line).value for line in self._consumer.new_lines())
        return len(self._arrived) > before


class Audience:
    """Watches a performance; this one without a word."""

    def look(self, watch: Watch) -> None:
        """See how far it is; called some twenty times a second."""

    def tell(self, line: str) -> None:
        """Hear what happens."""


def play(piece: Piece, venue: Venue, audience: Audience) -> Crash:
    """Play it to the end, and answer when the relay was killed and replaced.

    All processes are ours alone: whatever happens here, they are gone when this returns or raises.

    Raises:
        ChildError: one of them failed; with the end of its log.
    """
    board.write(piece.directory / "board", piece.flights)
    with Children(piece.directory, venue.environment) as children:
        return _Performance(piece, venue, audience, children).play()


class _Performance:
    """One performance while it runs."""

    def __init__(self, piece: Piece, venue: Venue, audience: Audience, children: Children) -> None:
        self._piece, self._audience, self._children = piece, audience, children
        self._venue = venue
        self._watch = Watch(piece)
        reading = Reading(venue.topic, venue.partitions, str(piece.consumer_journal))
        self._consumer = children.start("consumer", "-m", "outbox_relay.demo.consumer", reading.as_argument())
        self._relay = self._start_relay("relay 1")
        self._producers: list[Child] = []
        self._crash: Crash | None = None

    def play(self) -> Crash:
        """Play it."""
        self._wait_until_ready()
        with (self._piece.directory / "board").open("rb") as file:
            self._producers = [
                self._start_producer(number, file.fileno()) for number in range(self._piece.producers)
            ]
        self._wait_until_arrived()
        if self._crash is None:  # nothing at all has arrived: the proof has the word
            self._crash = self._kill()
        # In this order: when the relay has ended, nothing can come any more, and the consumer reads to the end.
        for child in (self._relay, self._consumer):
            child.ask_to_stop()
            child.wait(STOP_S)
        self._look()
        return self._crash

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (self._relay.has_said("lanes taken") and self._consumer.has_said(READY)):
            self._require_running()
            if time.monotonic() > deadline:
                raise ChildError(
                    f"relay or consumer not ready within {PATIENCE_S:.0f} s; see {self._piece.directory}"
                )
            time.sleep(LOOK_EVERY_S)

    def _wait_until_arrived(self) -> None:
        """Wait until every committed flight has arrived, and kill the relay half-way."""
        watch = self._watch
        last_news = time.monotonic()
        writing = True
        while writing or self._crash is None or watch.arrived < watch.committed:
            # Asked before looking: what was written by producers that have ended is then seen.
            writing = sum(producer.running for producer in self._producers) > 0
            if self._look() or writing:
                last_news = time.monotonic()
            self._require_running()
            if self._crash is None and watch.arrived >= len(self._piece.flights) * KILL_AT:
                self._crash = self._kill()
            if time.monotonic() - last_news > PATIENCE_S:
                self._audience.tell(f"nothing has arrived for {PATIENCE_S:.0f} s")
                return
            time.sleep(LOOK_EVERY_S)

    def _kill(self) -> Crash:
        self._relay.kill()
        killed = time.time()
        self._relay = self._start_relay("relay 2")
        self._audience.tell(
            f"relay killed (SIGKILL) when {self._watch.arrived:,} flights had arrived; started again"
        )
        return Crash(killed)

    def _look(self) -> bool:
        news = self._watch.look()
        self._audience.look(self._watch)
        return news

    def _require_running(self) -> None:
        for child in (self._consumer, self._relay):
            if not child.running:
                raise ChildError(f"{child.name} ended before its time:\n{child.last_lines()}")

    def _start_relay(self, name: str) -> Child:
        return self._children.start(name, "-m", "outbox_relay.cli", "relay", "run")

    def _start_producer(self, number: int, board_file: int) -> Child:
        piece = self._piece
        work = Work(
            topic=self._venue.topic,
            producer=number,
            seed=piece.seed,
            rate=None if piece.rate is None else piece.rate / piece.producers,
            journal=str(piece.producer_journals[number]),
        )
        return self._children.start(
            f"producer {number}",
            "-m",
            "outbox_relay.demo.producer",
            work.as_argument(),
            stdin=board_file,
        )
