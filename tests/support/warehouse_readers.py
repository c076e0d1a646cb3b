"""A warehouse as people read it who have no Spark: with pyiceberg, and with DuckDB over either kind of target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.table import StaticTable

from outbox_etl.warehouse.manifest import LocalManifests

Rows = list[dict[str, Any]]
Look = Callable[[Path, str], Rows]


def iceberg_arrow(warehouse: Path, table: str) -> pa.Table:
    """A table of an Iceberg warehouse in a path, as pyiceberg reads it."""
    return StaticTable.from_metadata(str(warehouse / "outbox" / table)).scan().to_arrow()


def parquet_files(warehouse: Path, table: str) -> list[str]:
    """The files that are a table of a Parquet warehouse."""
    return [str(warehouse / file.path) for file in LocalManifests(warehouse).newest().tables[table].files]


def duckdb_parquet(warehouse: Path, table: str) -> duckdb.DuckDBPyRelation:
    """A table of a Parquet warehouse, for DuckDB."""
    return duckdb.read_parquet(parquet_files(warehouse, table))


def by_pyiceberg(warehouse: Path, table: str) -> Rows:
    """The rows, through pyiceberg alone."""
    rows: Rows = iceberg_arrow(warehouse, table).to_pylist()
    return rows


def by_duckdb_over_pyiceberg(warehouse: Path, table: str) -> Rows:
    """The rows, as DuckDB sees what pyiceberg found."""
    return _rows(duckdb.from_arrow(iceberg_arrow(warehouse, table)))


def by_duckdb(warehouse: Path, table: str) -> Rows:
    """The rows of a Parquet warehouse, through DuckDB alone."""
    return _rows(duckdb_parquet(warehouse, table))


def _rows(relation: duckdb.DuckDBPyRelation) -> Rows:
    rows: Rows = relation.to_arrow_table().to_pylist()
    return rows
