"""The performance: producers write, a relay publishes, is killed and replaced, a stock consumer reads."""

from __future__ import annotations

import time

from outbox_local.demo import board, journal
from outbox_local.demo.journal import Crash
from outbox_local.demo.pages import Pages
from outbox_local.demo.piece import Piece, Watch
from outbox_local.demo.producer import Work
from outbox_local.demo.venue import Venue
from outbox_relay.proving.children import Child, ChildError, Children
from outbox_relay.proving.reader import READY, ReaderWork

LOOK_EVERY_S = 0.05
PATIENCE_S = 30.0
"""How long nothing may arrive before the demo stops waiting; the proof then lists what is missing."""
STOP_S = 40.0
KILL_AT = 0.48
"""The relay is killed when this share of the flights has arrived: 3 % never will."""


class Audience:
    """Watches a performance; this one without a word."""

    def look(self, watch: Watch) -> None:
        """See how far it is; called some twenty times a second."""

    def tell(self, line: str) -> None:
        """Hear what happens."""


def play(piece: Piece, venue: Venue, audience: Audience) -> None:
    """Play it to the end; the journals in the piece's directory have the rest.

    All processes are ours alone: whatever happens here, they are gone when this returns or raises.

    Raises:
        ChildError: one of them failed; with the end of its log.
    """
    board.write(piece.directory / "board", piece.flights)
    with Children(piece.directory, venue.environment) as children:
        _Performance(piece, venue, audience, children).play()


class _Performance:
    """One performance while it runs."""

    def __init__(self, piece: Piece, venue: Venue, audience: Audience, children: Children) -> None:
        self._piece, self._audience, self._children = piece, audience, children
        self._venue = venue
        self._watch = Watch(piece)
        reading = ReaderWork(venue.topic, venue.partitions, str(piece.consumer_journal))
        self._consumer = children.start("consumer", "-m", "outbox_local.demo.consumer", reading.as_argument())
        self._relay = self._start_relay("relay 1")
        self._pages = Pages(children, audience.tell, "--read-only")
        self._producers: list[Child] = []
        self._crash: Crash | None = None

    def play(self) -> None:
        """Play it."""
        self._audience.tell(f"starting a relay, a stock consumer and {self._piece.producers} producers")
        self._wait_until_ready()
        with (self._piece.directory / "board").open("rb") as file:
            self._producers = [
                self._start_producer(number, file.fileno()) for number in range(self._piece.producers)
            ]
        self._wait_until_arrived()
        # A process that has only just been started does not know yet what SIGTERM asks of it.
        self._wait_until_ready()
        # In this order: when the relay has ended, nothing can come any more, and the consumer reads to the end.
        for child in (self._relay, self._consumer):
            child.ask_to_stop()
            child.wait(STOP_S)
        self._look()

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
                self._kill()
            if time.monotonic() - last_news > PATIENCE_S:
                self._audience.tell(f"nothing has arrived for {PATIENCE_S:.0f} s")
                return
            time.sleep(LOOK_EVERY_S)

    def _kill(self) -> None:
        self._relay.kill()
        self._crash = Crash(time.time())
        self._piece.relay_journal.write_text(journal.line(self._crash))
        self._relay = self._start_relay("relay 2")
        self._audience.tell(
            f"relay killed (SIGKILL) when {self._watch.arrived:,} flights had arrived; started again"
        )

    def _look(self) -> bool:
        news = self._watch.look()
        self._audience.look(self._watch)
        self._pages.announce()
        return news

    def _require_running(self) -> None:
        for child in (self._consumer, self._relay):
            if not child.running:
                raise ChildError(f"{child.name} ended before its time:\n{child.last_lines()}")

    def _start_relay(self, name: str) -> Child:
        return self._children.start(name, "-m", "outbox_relay.cli.main", "relay", "run")

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
            "outbox_local.demo.producer",
            work.as_argument(),
            stdin=board_file,
        )
