"""What maintenance is requested to do, and what it did; its options on the command line."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from outbox_etl.options.option import Option, twin_of
from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.tables import CORE

ALL = (*CORE, *MARTS, DAYS)
FILE = 128 << 20
"""Bytes that a file shall have: large enough to be read in one go, small enough for one task."""
SMALL = 48 << 20
"""Bytes below which a file is joined with others. Less than half of FILE: what compaction writes is not small."""
KEEP, ORPHANS, LEAST, MOST = 7, 3, 1, 3_650
"""Days: both defaults, and the limits of both. A file younger than a day may belong to a run or a reader of today."""


@dataclass(frozen=True, slots=True)
class MaintenanceRequest:
    """What maintenance keeps."""

    keep: timedelta = timedelta(days=KEEP)
    """So long a state of the warehouse stays readable after it was replaced."""
    orphans: timedelta = timedelta(days=ORPHANS)
    """So long a file stays that nothing names."""
    newest: int = 10
    """So many of the newest states stay, however old they are."""


@dataclass(frozen=True, slots=True)
class TableResult:
    """What was done to one table."""

    table: str
    files_before: int
    files: int
    bytes: int
    """Of these files."""
    expired: int = 0
    """States that cannot be read any more; a Parquet warehouse has its states as a whole."""
    deleted: int = 0
    """Files that only such states named."""
    orphans: int = 0
    """Files that nothing named."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What was done."""

    target: str
    tables: tuple[TableResult, ...]
    expired: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.target}: {self.expired} snapshots expired in {self.seconds:.1f} s",
            *(
                f"  {each.table}: {each.files_before} files, now {each.files} of {each.bytes} bytes; "
                f"deleted {each.deleted}, and {each.orphans} orphans"
                for each in self.tables
            ),
        ]


OPTIONS = (
    Option(
        "--keep",
        "States of the warehouse that were replaced so long ago cannot be read any more; the newest ten stay.",
        twin=twin_of("--keep"),
        metavar="DAYS",
        default=KEEP,
        limits=(LEAST, MOST),
    ),
    Option(
        "--orphans",
        "Files that nothing names, left by runs that died, are deleted at this age.",
        twin=twin_of("--orphans"),
        metavar="DAYS",
        default=ORPHANS,
        limits=(LEAST, MOST),
    ),
)
"""The options that only maintain has."""


def requested(given: argparse.Namespace) -> MaintenanceRequest:
    """Build the request from the options that were given.

    Raises:
        SettingsError: naming the option and what is allowed.
    """
    for option in OPTIONS:
        option.check(given, " days; younger files may be in use")
    return MaintenanceRequest(timedelta(days=given.keep), timedelta(days=given.orphans))
