"""Maintenance of a warehouse: small files become few, old snapshots and orphaned files go; no row changes.

Under the lock of a run, so that none writes meanwhile. Every step is a commit of its own or deletes what nothing names
any more: maintenance may die anywhere, and the next one goes on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from outbox_etl.errors import OtherClusterError, SettingsError, TargetError
from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.tables import CORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options import Settings
    from outbox_etl.warehouse.target import Target

ALL = (*CORE, *MARTS, DAYS)
FILE = 128 << 20
"""Bytes that a file shall have: large enough to be read in one go, small enough for one task."""
SMALL = 48 << 20
"""Bytes below which a file is joined with others. Less than half of FILE: what compaction writes is not small."""
KEEP, ORPHANS, LEAST, MOST = 7, 3, 1, 3_650
"""Days: both defaults, and the limits of both. A file younger than a day may belong to a run or a reader of today."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What maintenance shall leave."""

    keep: timedelta = timedelta(days=KEEP)
    """So long a state of the warehouse stays readable after it was replaced."""
    orphans: timedelta = timedelta(days=ORPHANS)
    """So long a file stays that nothing names."""
    newest: int = 10
    """So many of the newest states stay, however old they are."""


@dataclass(frozen=True, slots=True)
class Tended:
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
class Outcome:
    """What was done."""

    target: str
    tables: tuple[Tended, ...]
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


class Maintenance(Protocol):
    """How it is done to one kind of warehouse."""

    def run(self) -> Sequence[Tended]:
        """Tend all tables that there are."""


def add_maintain_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only maintain has."""
    for name, default, text in (
        ("keep", KEEP, "states of the warehouse that were replaced so many days ago cannot be read any more"),
        ("orphans", ORPHANS, "files that nothing names, left by runs that died, are deleted at this age"),
    ):
        twin = f"OUTBOX_ETL_{name.upper()}"
        parser.add_argument(
            f"--{name}",
            type=int,
            default=os.environ.get(twin, str(default)),
            metavar="DAYS",
            help=f"{text} [{twin}; {default}]",
        )


def upkeep(given: argparse.Namespace) -> Upkeep:
    """Check what was given.

    Raises:
        SettingsError: naming the option and what is allowed.
    """
    for option in ("keep", "orphans"):
        days = getattr(given, option)
        if not LEAST <= days <= MOST:
            raise SettingsError(
                f"--{option} {days} is out of range: {LEAST} to {MOST} days; younger files may be in use"
            )
    return Upkeep(timedelta(days=given.keep), timedelta(days=given.orphans))


def maintain(
    spark: SparkSession, settings: Settings, target: Target, wanted: Upkeep, say: Callable[[str], None]
) -> Outcome:
    """Tend every table of the warehouse.

    Raises:
        ConcurrentRunError: a run, reconcile or maintenance has the warehouse.
        TargetError: the warehouse is empty, or cannot be written.
        OtherClusterError: the database is not the one whose lock keeps runs away.
    """
    from outbox_etl.source.reader import Source  # noqa: PLC0415  (options are read before Spark is loaded)

    source, began = Source(spark, settings), monotonic()
    with source.lock(settings.target):
        mark = target.watermark()
        if mark is None:
            raise TargetError("the warehouse is empty: `outbox etl run` fills it")
        here = source.cluster()
        if here.system_identifier != mark.cluster.system_identifier or here.is_beside(mark.cluster):
            raise OtherClusterError(
                f"the warehouse was filled from {mark.cluster}, this is {here}: give the "
                "--dsn that its runs have, or no lock keeps them away meanwhile"
            )
        tables = tuple(_maintenance(spark, settings, target, wanted, say).run())
    # (one state of a Parquet warehouse is all its tables')
    count = sum if settings.format == "iceberg" else max
    expired = count(each.expired for each in tables) if tables else 0
    return Outcome(settings.target, tables, expired, round(monotonic() - began, 3))


def _maintenance(
    spark: SparkSession, settings: Settings, target: Target, wanted: Upkeep, say: Callable[[str], None]
) -> Maintenance:
    if settings.format == "iceberg":
        from outbox_etl.warehouse.maintain_iceberg import IcebergMaintenance  # noqa: PLC0415  (one of the two is loaded)

        return IcebergMaintenance(spark, settings, target, wanted, say)
    from outbox_etl.warehouse.maintain_parquet import ParquetMaintenance  # noqa: PLC0415

    return ParquetMaintenance(spark, settings, wanted, say)
