"""Opens a warehouse: the one place that chooses between Iceberg and Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_etl.options.settings import Settings
from outbox_etl.warehouse.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_target(spark: SparkSession, settings: Settings) -> Target:
    """Open the warehouse that the settings name."""
    from outbox_etl.warehouse.iceberg import IcebergTarget  # noqa: PLC0415  (one of the two is loaded)

    if settings.format == "iceberg":
        return IcebergTarget(spark)
    from outbox_etl.warehouse.parquet import ParquetTarget  # noqa: PLC0415

    return ParquetTarget(spark, settings)
