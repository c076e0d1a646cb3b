"""The board: all flights in the order in which they are entered, a file from which the producers take turns.

The producers share one open file, and so its place in it: each read takes the next flight, and no two get the same one
(Linux locks the place of a shared file while it reads). Batches of some days follow each other, each sorted by
aircraft: neighbours are mostly of one aircraft and go to different producers at the same moment, so that the lock of
the aircraft's row, and not luck, has to order them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from outbox_local.demo.flights import Flight

WIDTH = 128
"""Bytes of an entry; the longest flight takes 109."""
BATCH = 2_000
"""Flights that are sorted by aircraft together: about two days."""


def write(path: Path, flights: Sequence[Flight]) -> None:
    """Write the board."""
    with path.open("w", encoding="ascii", newline="") as file:
        for start in range(0, len(flights), BATCH):
            for flight in sorted(flights[start : start + BATCH], key=lambda flight: flight.aircraft):
                file.write(_entry(flight))


def _entry(flight: Flight) -> str:
    text = f"{flight.number} {flight.line}".ljust(WIDTH - 1) + "\n"
    if len(text) != WIDTH:
        raise ValueError(f"row {flight.number} does not fit into {WIDTH} bytes")
    return text


def turns(file: int) -> Iterator[Flight]:
    """Take one flight after the other from the shared open file, until it is empty."""
    while text := os.read(file, WIDTH):
        number, _, line = text.decode("ascii").rstrip().partition(" ")
        yield Flight(int(number), line)
