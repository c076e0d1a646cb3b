"""The guide's queries fit the tables as they are: DuckDB runs each over tables of the same columns and types."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.tables import CORE
from tests.support.warehouse_guide import blocks

TYPES = {
    "string": "VARCHAR",
    "binary": "BLOB",
    "array<string>": "VARCHAR[]",
    "map<string,string>": "MAP(VARCHAR, VARCHAR)",
    "timestamp": "TIMESTAMPTZ",
}


@pytest.fixture
def warehouse() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as conn:
        for table in (*CORE, *MARTS, DAYS):
            columns = ", ".join(
                f'"{column.name}" {TYPES.get(column.type, column.type)}' for column in table.columns
            )
            conn.execute(f"CREATE TABLE {table.name} ({columns})")
        yield conn


@pytest.mark.parametrize("query", blocks("sql"))
def test_every_query_of_the_guide_fits_the_tables(warehouse: duckdb.DuckDBPyConnection, query: str) -> None:
    assert warehouse.execute(query).fetchall() == []


def test_the_guide_asks_every_mart() -> None:
    text = " ".join(blocks("sql"))
    assert not [table.name for table in MARTS if table.name not in text]
