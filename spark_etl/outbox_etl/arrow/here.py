"""Where Arrow may take the place of Spark's rows, and how it is reported that it did not."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from outbox_etl.failures import masked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings

PACKAGES = ("adbc_driver_postgresql", "orjson", "pyarrow")
SHOWN = 200
"""Characters of a reason that are reported."""


def is_here(spark: SparkSession, settings: Settings) -> bool:
    """Whether tasks have the driver's packages and files, and nothing is set that only Spark's writer knows."""
    return (
        str(spark.sparkContext.master).startswith("local")
        and not any(name.startswith("spark.sql.iceberg.") for name in settings.spark)
        and all(importlib.util.find_spec(name) is not None for name in PACKAGES)
    )


def shown(reason: str, settings: Settings) -> str:
    """The reason why Spark reads something, on one line and without the password."""
    return " ".join(masked(reason, (settings.source.password,)).split())[:SHOWN]
