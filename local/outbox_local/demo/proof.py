"""The proof: what a stock consumer read is exactly what follows from the source and the producers' journals.

A pure function. It reads nothing else: not the database, not the relay, least of all the outbox's tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outbox_local.demo.claims import Claim, ProofResult, new_claims
from outbox_local.demo.expected import Expected, expect
from outbox_local.demo.flights import Flight, line_of
from outbox_local.demo.journal import Crash, Entry, Record
from outbox_local.demo.repeats import Repeats


@dataclass(slots=True)
class _Aircraft:
    """What was read of one aircraft so far."""

    partition: int
    arrived: int = 0
    """The highest sequence that has appeared."""


def prove(
    source: Sequence[Flight],
    entries: Iterable[Entry],
    records: Iterable[Record],
    *,
    seed: int,
    crash: Crash | None = None,
) -> ProofResult:
    """Compare what was read with what was written.

    Args:
        source: the flights that were played.
        entries: the producers' journals, in any order.
        records: what the consumer read, each partition in the order of reading.
        seed: decides which flights roll back.
        crash: the kill of the relay, which explains repeats.
    """
    claims = new_claims()
    expected = expect(source, entries, seed, claims["accounted"].offend)
    claims["accounted"].checked = len(source)
    reading = _Reading(expected, claims, crash)
    count = 0
    for record in records:
        reading.take(record)
        count += 1
    reading.end()
    return ProofResult(
        claims,
        committed=len(expected.committed),
        rolled_back=len(expected.rolled_back),
        unknown=len(expected.unknown),
        aircraft=len(reading.aircraft),
        read=count,
        repeated=reading.repeats.count,
    )


class _Reading:
    """Takes one record after the other and holds it against what is expected."""

    def __init__(self, expected: Expected, claims: dict[str, Claim], crash: Crash | None) -> None:
        self.expected, self.claims = expected, claims
        self.repeats = Repeats(crash)
        self.aircraft: dict[str, _Aircraft] = {}
        self._first: dict[int, tuple[str | None, int]] = {}
        """Message id and time of each flight's first appearance."""
        self._offsets: dict[int, int] = {}

    def take(self, record: Record) -> None:
        """Judge one record."""
        place = f"partition {record.partition}, offset {record.offset}"
        claims, expected = self.claims, self.expected
        if record.offset <= self._offsets.get(record.partition, -1):
            claims["order"].offend(f"{place} was read after offset {self._offsets[record.partition]}")
        self._offsets[record.partition] = record.offset
        body = _body(record.value)
        claims["nothing else"].checked += 1
        row = body.get("row")
        flight = expected.flights.get(row) if type(row) is int else None
        if flight is None:
            claims["nothing else"].offend(f"{place}: no flight of the source, key {record.key!r}")
            return
        number = flight.number
        if number in expected.rolled_back:
            claims["rolled back"].offend(f"{flight.name}: rolled back, and yet at {place}")
            return
        entry = expected.committed.get(number) or expected.unknown.get(number)
        if entry is None:
            claims["nothing else"].offend(f"{flight.name}: in no producer's journal, and yet at {place}")
            return
        claims["content"].checked += 1
        if wrong := _wrong_content(record, body, flight, entry):
            claims["content"].offend(f"{flight.name}: {wrong}, at {place}")
        aircraft = self.aircraft.setdefault(entry.aircraft, _Aircraft(record.partition))
        if aircraft.partition != record.partition:
            claims["partition"].offend(
                f"{flight.name}: aircraft {entry.aircraft} was in partition {aircraft.partition}, this is {place}"
            )
        self._place(record, flight, entry, aircraft, place)

    def _place(self, record: Record, flight: Flight, entry: Entry, aircraft: _Aircraft, place: str) -> None:
        """Judge the record's place among those of its aircraft: a first appearance, or a repeat."""
        message_id = record.header("outbox-id")
        self.claims["once"].checked += 1
        first = self._first.get(flight.number)
        if first is not None:
            if first[0] != message_id:
                self.claims["once"].offend(
                    f"{flight.name}: again under another message id, {message_id} after {first[0]}, at {place}"
                )
            elif unexplained := self.repeats.judge(entry, first[1], record.timestamp, aircraft.arrived):
                self.claims["once"].offend(f"{flight.name}: again, {unexplained}, at {place}")
            return
        self._first[flight.number] = (message_id, record.timestamp)
        if message_id is None:
            self.claims["once"].offend(f"{flight.name}: without a message id, at {place}")
        if unfinished := self.repeats.unfinished(entry.aircraft):
            self.claims["once"].offend(f"{flight.name}: {unfinished}, at {place}")
        self.claims["order"].checked += 1
        if entry.sequence != aircraft.arrived + 1:
            self.claims["order"].offend(
                f"{flight.name}: number {entry.sequence} of aircraft {entry.aircraft} came after number "
                f"{aircraft.arrived}, at {place}"
            )
        aircraft.arrived = max(aircraft.arrived, entry.sequence)

    def end(self) -> None:
        """Judge what did not come."""
        arrived = self.claims["arrived"]
        for number, entry in self.expected.committed.items():
            arrived.checked += 1
            if number not in self._first:
                arrived.offend(
                    f"{self.expected.flights[number].name}: committed by producer {entry.producer} as number "
                    f"{entry.sequence} of aircraft {entry.aircraft}, never arrived"
                )
        for aircraft in self.repeats.aircraft():
            if unfinished := self.repeats.unfinished(aircraft):
                self.claims["once"].offend(f"aircraft {aircraft}: {unfinished}, at the end")
        self.claims["partition"].checked = len(self.aircraft)
        self.claims["rolled back"].checked = len(self.expected.rolled_back)


def _body(value: str | None) -> dict[str, Any]:
    try:
        body = json.loads(value or "")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _wrong_content(record: Record, body: dict[str, Any], flight: Flight, entry: Entry) -> str | None:
    """Return what of a record is not as the source row and the journal say."""
    columns = flight.line.split(",")
    for what, found, right in (
        ("row", line_of(body), flight.line),
        ("key", record.key, entry.aircraft),
        ("sequence", body.get("sequence"), entry.sequence),
        ("tags", record.header("outbox-tags"), f"{columns[9]}||{columns[12]}"),
    ):
        if found != right:
            return f"its {what} is {found!r}, not {right!r}"
    return None
