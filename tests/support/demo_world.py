"""A small world for tests of the demo's proof: flights that were written, published and read as they should be."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from outbox_local.demo.claims import ProofResult
from outbox_local.demo.flights import Flight, read_flights
from outbox_local.demo.journal import Crash, Entry, FlightOutcome, Record
from outbox_local.demo.producer import body_of
from outbox_local.demo.proof import prove

PARTITIONS = 3
KILLED_AT = 1_000.0
"""Seconds; flights are published every 10 ms, the middle one at this time."""


@dataclass
class World:
    """Source, journals and records; tests change one of them."""

    seed: int
    source: list[Flight]
    entries: list[Entry] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    crash: Crash | None = None

    def prove(self) -> ProofResult:
        """What the proof says of it."""
        return prove(self.source, self.entries, self.records, seed=self.seed, crash=self.crash)

    def entry(self, record: Record) -> Entry:
        """The journal's entry of a record's flight."""
        row = json.loads(record.value or "")["row"]
        return next(entry for entry in self.entries if entry.flight == row)

    def renumber(self) -> None:
        """Give the records offsets by their order in the list."""
        following: Counter[int] = Counter()
        for place, record in enumerate(self.records):
            self.records[place] = record._replace(offset=following[record.partition])
            following[record.partition] += 1


def world(count: int = 120, *, seed: int = 1, chance: int = 1) -> World:
    """A clean world: `chance` decides the order in which flights commit and which producer writes each."""
    dice = random.Random(chance)
    source = _flights(count)
    made = World(seed, source)
    turns: Counter[str] = Counter()
    for step, flight in enumerate(dice.sample(source, count)):
        at = KILLED_AT + (step - count // 2) / 100
        rolled_back = flight.rolls_back(seed)
        sequence = turns[flight.aircraft] + 1
        outcome = FlightOutcome.ROLLED_BACK if rolled_back else FlightOutcome.COMMITTED
        made.entries.append(
            Entry(dice.randrange(3), flight.number, flight.aircraft, sequence, outcome, at, at, at)
        )
        if not rolled_back:
            turns[flight.aircraft] = sequence
            made.records.append(_record(flight, sequence, at))
    dice.shuffle(made.entries)
    made.renumber()
    return made


@cache
def _flights(count: int) -> list[Flight]:
    """Flights of the aircraft that fly most, so that there is an order to keep."""
    flights = read_flights(6_000)
    often = Counter(flight.aircraft for flight in flights).most_common(count // 10)
    aircraft = {name for name, _ in often}
    return [flight for flight in flights if flight.aircraft in aircraft][:count]


def _record(flight: Flight, sequence: int, at: float) -> Record:
    values = flight.values
    return Record(
        partition=sum(flight.aircraft.encode()) % PARTITIONS,
        offset=0,
        timestamp=int(at * 1000),
        received=at,
        key=flight.aircraft,
        value=body_of(flight, sequence),
        headers=(
            ("outbox-id", f"id-{flight.number}"),
            ("outbox-tags", f"{values['carrier']}||{values['origin']}"),
        ),
    )
