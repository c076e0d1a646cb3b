"""What must have arrived: worked out from the source and the producers' journals, and both held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from outbox_local.demo.flights import Flight
from outbox_local.demo.journal import Entry, FlightOutcome


@dataclass(slots=True)
class Expected:
    """The flights by their number in the source, and what became of each."""

    flights: dict[int, Flight]
    committed: dict[int, Entry] = field(default_factory=dict)
    rolled_back: set[int] = field(default_factory=set)
    unknown: dict[int, Entry] = field(default_factory=dict)


def expect(
    source: Sequence[Flight], entries: Iterable[Entry], seed: int, offend: Callable[[str], None]
) -> Expected:
    """Work out what must have arrived; call `offend` where the journals contradict the source or each other.

    Why the journals are doubted too: a producer that forgot a flight, or journalled an order that cannot be,
    would otherwise make a proof of nothing.
    """
    expected = Expected({flight.number: flight for flight in source})
    for entry in entries:
        flight = expected.flights.get(entry.flight)
        if flight is None:
            offend(
                f"row {entry.flight}: journalled by producer {entry.producer}, and not among the flights played"
            )
        elif entry.aircraft != flight.aircraft:
            offend(f"{flight.name}: journalled for aircraft {entry.aircraft}, it flew with {flight.aircraft}")
        elif entry.outcome is FlightOutcome.UNKNOWN:
            expected.unknown[entry.flight] = entry
        elif entry.flight in expected.committed or entry.flight in expected.rolled_back:
            offend(f"{flight.name}: journalled twice")
        elif entry.outcome is FlightOutcome.COMMITTED:
            expected.committed[entry.flight] = entry
        else:
            expected.rolled_back.add(entry.flight)
    # What was unknown first and is settled now is unknown no more.
    for number in [*expected.committed, *expected.rolled_back]:
        expected.unknown.pop(number, None)
    _compare_with_plan(expected, seed, offend)
    _compare_sequences(expected, offend)
    return expected


def _compare_with_plan(expected: Expected, seed: int, offend: Callable[[str], None]) -> None:
    for number, flight in expected.flights.items():
        planned = flight.rolls_back(seed)
        if number in expected.unknown:
            continue
        if number not in expected.committed and number not in expected.rolled_back:
            offend(f"{flight.name}: in no producer's journal")
        elif planned != (number in expected.rolled_back):
            offend(
                f"{flight.name}: {'committed' if planned else 'rolled back'}, which was not the plan for it"
            )


def _compare_sequences(expected: Expected, offend: Callable[[str], None]) -> None:
    """The numbers under which an aircraft's flights committed are 1, 2, 3 …, each once."""
    taken: dict[str, dict[int, int]] = {}
    for number, entry in expected.committed.items():
        numbers = taken.setdefault(entry.aircraft, {})
        if entry.sequence in numbers:
            offend(
                f"{expected.flights[number].name}: number {entry.sequence} of aircraft {entry.aircraft}, "
                f"which row {numbers[entry.sequence]} has too"
            )
        numbers[entry.sequence] = number
    maybe = {(entry.aircraft, entry.sequence) for entry in expected.unknown.values()}
    for aircraft, numbers in taken.items():
        for sequence in range(1, max(numbers) + 1):
            if sequence not in numbers and (aircraft, sequence) not in maybe:
                offend(f"aircraft {aircraft}: no flight was journalled as number {sequence}")
