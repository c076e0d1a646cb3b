"""A producer: a process that takes flights from the board, enters each in a transaction and journals how it ended."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psycopg

from outbox import Message, Outbox
from outbox.statements import Statements
from outbox_local.demo import board, journal
from outbox_local.demo.flights import Flight
from outbox_local.demo.journal import Entry, FlightOutcome

Connection = psycopg.Connection[Any]
SQL = Statements("outbox_local/demo/demo.sql")
PRODUCER_GROUP = "maintenance-office"
PATIENCE_S = 60.0
"""How long a producer tries to reach a PostgreSQL that went away."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one producer has to do, as its command line states in JSON. The database comes from OUTBOX_DSN."""

    topic: str
    producer: int
    seed: int
    rate: float | None
    """Flights per second of this producer; None: as fast as it can."""
    journal: str

    def as_argument(self) -> str:
        """The command line's one argument."""
        return json.dumps(asdict(self))


def body_of(flight: Flight, sequence: int) -> str:
    """What a message contains: the flight's row in the source, and its place among those of its aircraft."""
    body = {"row": flight.number, "sequence": sequence, **flight.values}
    return json.dumps(body, separators=(",", ":"))


class Producer:
    """Enters flights. One transaction updates the aircraft's row and sends the message; some then roll back.

    What happens when the process dies or loses its connection, between any two lines:
    - before COMMIT was sent: nothing of the flight is there; it is entered again on the next connection.
    - after COMMIT was sent, before it was answered: the outcome is unknown, and journalled as such. The next
      attempt waits for the aircraft's row, which the lost transaction holds until it has ended, and then
      either finds the flight in the logbook (it had committed) or enters it.
    - after the answer, before the journal: only if the process is killed; the proof then misses an entry for
      the flight and fails, which is right, because what was promised is unknown.
    """

    def __init__(self, connect: Callable[[], Connection], work: Work, out: IO[str]) -> None:
        self._connect, self._work, self._out = connect, work, out
        self._outbox = Outbox(producer_group=PRODUCER_GROUP)
        self._conn = connect()

    def run(self, flights: Iterable[Flight]) -> None:
        """Enter the flights, at the rate asked for, and close the connection."""
        start = time.monotonic()
        try:
            for count, flight in enumerate(flights):
                if self._work.rate is not None:
                    time.sleep(max(0.0, start + count / self._work.rate - time.monotonic()))
                while not self._enter(flight):
                    self._reconnect()
        finally:
            self._conn.close()

    def _enter(self, flight: Flight) -> bool:
        """Try a flight; False when the connection broke and it has to be tried again."""
        began = time.time()
        try:
            try:
                sequence = self._write(flight)
            except psycopg.errors.UniqueViolation:
                self._conn.rollback()
                self._note(flight, self._entered(flight), FlightOutcome.COMMITTED, began, began)
                return True
            ending = time.time()
            if flight.rolls_back(self._work.seed):
                self._conn.rollback()
                self._note(flight, sequence, FlightOutcome.ROLLED_BACK, began, ending)
                return True
        except (psycopg.OperationalError, psycopg.InterfaceError):
            return False
        try:
            self._conn.commit()
        except psycopg.OperationalError:
            self._note(flight, sequence, FlightOutcome.UNKNOWN, began, ending)
            return False
        self._note(flight, sequence, FlightOutcome.COMMITTED, began, ending)
        return True

    def _write(self, flight: Flight) -> int:
        """The business transaction: the aircraft's row first, whose lock orders its flights, then the message."""
        values = flight.values
        sequence = self._one(
            "enter",
            tail=flight.aircraft,
            flight=flight.number,
            minutes=values["air_time"] or 0,
            seen=values["time_hour"],
        )
        self._outbox.send(
            self._conn,
            Message(
                self._work.topic,
                key=flight.aircraft,
                body=body_of(flight, sequence),
                tags=[str(values["carrier"]), str(values["origin"])],
            ),
        )
        return sequence

    def _entered(self, flight: Flight) -> int:
        sequence = self._one("entered", flight=flight.number)
        self._conn.rollback()
        return sequence

    def _one(self, statement: str, **values: Any) -> int:
        row = self._conn.execute(SQL[statement], values).fetchone()
        if row is None:
            raise RuntimeError(f"{statement} answered no row for {values}")
        return int(row[0])

    def _note(
        self, flight: Flight, sequence: int, outcome: FlightOutcome, began: float, ending: float
    ) -> None:
        entry = Entry(
            self._work.producer,
            flight.number,
            flight.aircraft,
            sequence,
            outcome,
            round(began, 6),
            round(ending, 6),
            round(time.time(), 6),
        )
        self._out.write(journal.line(entry))
        self._out.flush()

    def _reconnect(self) -> None:
        self._conn.close()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._conn = self._connect()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return


def connect() -> Connection:
    """Connect to the database of OUTBOX_DSN."""
    return psycopg.connect(os.environ["OUTBOX_DSN"], application_name="outbox demo producer")


def main(argument: str) -> None:
    """Run as `python -m outbox_local.demo.producer WORK`, the board as standard input."""
    work = Work(**json.loads(argument))
    with Path(work.journal).open("a") as out:
        Producer(connect, work, out).run(board.turns(sys.stdin.fileno()))


if __name__ == "__main__":
    main(sys.argv[1])
