"""Every table says in itself what its columns mean, and people without Spark read it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from outbox_etl.source.window import Cluster, Watermark
from outbox_etl.warehouse.mart_tables import DAYS, DECISIONS, LATENCY, MARTS
from outbox_etl.warehouse.tables import CORE, Table
from tests.support.export_runs import NOWHERE, Exports
from tests.support.spark_marks import MARKS
from tests.support.warehouse_guide import blocks
from tests.support.warehouse_readers import duckdb_parquet, iceberg_arrow, parquet_files

pytestmark = MARKS
ALL = (*CORE, *MARTS, DAYS)
ICEBERG = {"bigint": "long", "array<string>": "list<string>", "map<string,string>": "map<string, string>"}
"""Iceberg's names where they are not Spark's."""
TIME = "timestamptz"


def iceberg_type(table: Table, name: str) -> str:
    """What Iceberg calls the type of a column."""
    given = next(column.type for column in table.columns if column.name == name)
    return TIME if given == "timestamp" else ICEBERG.get(given, given)


VALUES: dict[str, Any] = {
    "bigint": 7,
    "int": 3,
    "double": 0.25,
    "string": "ü",
    "binary": b"\x00\xff",
    "array<string>": ["a", "b"],
    "map<string,string>": {"a": "b"},
    "timestamp": datetime(2026, 3, 1, 23, 59, 59, 123456, tzinfo=UTC),
    "date": date(2026, 3, 1),
}
EMPTY = DECISIONS
PLACE = "/data/warehouse"


@pytest.fixture(scope="module")
def iceberg(small_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Iceberg warehouse with all tables, each of them empty."""
    warehouse = tmp_path_factory.mktemp("iceberg") / "warehouse"
    Exports(small_spark, NOWHERE, warehouse).target.prepare(*ALL)
    return warehouse


@pytest.fixture(scope="module")
def parquet(small_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet warehouse with one row in each table but one, in which there is none."""
    warehouse = tmp_path_factory.mktemp("parquet") / "warehouse"
    made = Exports(small_spark, NOWHERE, warehouse, {"format": "parquet"})
    target = made.target
    target.prepare(*ALL)
    for table in ALL:
        if table != EMPTY:
            values = tuple(VALUES[column.type] for column in table.columns)
            target.replace(table, made.spark.createDataFrame([values], table.schema), "false")
    target.mark(Watermark(8, 7, Cluster("7", 1)))
    return warehouse


def test_pyiceberg_reads_every_column_with_its_type_and_its_meaning(iceberg: Path) -> None:
    for table in ALL:
        found = StaticTable.from_metadata(str(iceberg / "outbox" / table.name))
        assert [(field.name, field.doc) for field in found.schema().fields] == [
            (column.name, column.comment) for column in table.columns
        ]
        assert [str(field.field_type) for field in found.schema().fields] == [
            iceberg_type(table, name) for name in table.names
        ]
        assert found.properties["comment"] == table.comment
        assert iceberg_arrow(iceberg, table.name).num_rows == 0


def test_duckdb_reads_every_column_of_the_parquet_target(parquet: Path) -> None:
    for table in ALL:
        if table == EMPTY:
            assert parquet_files(parquet, table.name) == []
            continue
        (row,) = duckdb_parquet(parquet, table.name).to_arrow_table().to_pylist(maps_as_pydicts="strict")
        assert row == {column.name: VALUES[column.type] for column in table.columns}


def typed(example: str, *further: str) -> str:
    """Run an example of the guide as a reader would; answer what it shows."""
    text = "\n".join([example, *(f"duckdb.sql({query!r}).show()" for query in further)])
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stderr}"
    return done.stdout


def test_the_guides_examples_read_each_kind_of_warehouse(
    iceberg: Path, parquet: Path, small_spark: SparkSession, database: str, tmp_path: Path
) -> None:
    in_a_path, filtered, files, in_a_catalog = blocks("python")
    assert "0 rows" in typed(in_a_path.replace(PLACE, str(iceberg)))
    assert typed(filtered.replace(PLACE, str(iceberg))) == "0\n"
    assert "2026-03-01" in typed(files.replace(PLACE, str(parquet)), *blocks("sql"))
    made = Exports(small_spark, database, tmp_path / "jdbc", {"catalog": "jdbc"})
    made.target.prepare(LATENCY)
    address = database.replace("postgresql://", "postgresql+psycopg://")
    assert typed(in_a_catalog.replace("postgresql+psycopg://etl@db.example.com/shop", address)) == "0\n"
