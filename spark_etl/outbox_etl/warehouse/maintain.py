"""Maintenance of a warehouse: small files become few, old snapshots and orphaned files go; no row changes.

Under the lock of a run, so that none writes meanwhile. Every step is a commit of its own or deletes what nothing names
any more: maintenance may die anywhere, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from outbox_etl.errors import OtherClusterError, TargetError
from outbox_etl.source.reader import Source
from outbox_etl.warehouse.maintain_request import MaintenanceRequest, MaintenanceResult, TableResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.target import Target


class Maintenance(Protocol):
    """The maintenance of one kind of warehouse."""

    def run(self) -> Sequence[TableResult]:
        """Maintain all tables that there are."""


def maintain(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    request: MaintenanceRequest,
    say: Callable[[str], None],
) -> MaintenanceResult:
    """Maintain every table of the warehouse.

    Raises:
        ConcurrentRunError: a run, reconcile or maintenance has the warehouse.
        TargetError: the warehouse is empty, or cannot be written.
        OtherClusterError: the database is not the one whose lock keeps runs away.
    """
    source, began = Source(spark, settings), monotonic()
    with source.lock(settings.target):
        mark = target.watermark()
        if mark is None:
            raise TargetError("the warehouse is empty: `outbox etl run` fills it")
        here = source.cluster()
        if here.system_identifier != mark.cluster.system_identifier or here.is_beside(mark.cluster):
            raise OtherClusterError(
                f"the warehouse was filled from {mark.cluster}, the --dsn leads to {here}: "
                "give the --dsn that its runs use, because maintenance takes their lock there"
            )
        tables = tuple(_maintenance(spark, settings, target, request, say).run())
    # (one state of a Parquet warehouse is all its tables')
    count = sum if settings.format == "iceberg" else max
    expired = count(each.expired for each in tables) if tables else 0
    return MaintenanceResult(settings.target, tables, expired, round(monotonic() - began, 3))


def _maintenance(
    spark: SparkSession,
    settings: Settings,
    target: Target,
    request: MaintenanceRequest,
    say: Callable[[str], None],
) -> Maintenance:
    if settings.format == "iceberg":
        from outbox_etl.warehouse.maintain_iceberg import IcebergMaintenance  # noqa: PLC0415  (one of the two is loaded)

        return IcebergMaintenance(spark, settings, target, request, say)
    from outbox_etl.warehouse.maintain_parquet import ParquetMaintenance  # noqa: PLC0415

    return ParquetMaintenance(spark, settings, request, say)
