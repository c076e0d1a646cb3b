"""One Spark for the tests of the export; each test has a session, and with it a catalog, of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.exporting import Exports, base_settings, start_small


@pytest.fixture(scope="module")
def small_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark on two threads; compiling costs more than it brings for a handful of rows."""
    spark = start_small(base_settings(tmp_path_factory.mktemp("base")))
    yield spark
    spark.stop()


@pytest.fixture
def make_exports(small_spark: SparkSession, tmp_path: Path) -> Callable[..., Exports]:
    """Give a test warehouses of its own, each by its DSN, a name and its settings."""

    def make(dsn: str, name: str = "warehouse", **options: str) -> Exports:
        return Exports(small_spark, dsn, tmp_path / name, options)

    return make
