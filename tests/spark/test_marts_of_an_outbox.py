"""The marts of a real outbox, made by the job, agree with its rows counted in plain Python, whoever reads them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from outbox_etl.main import main
from outbox_etl.warehouse.manifest import LocalManifests
from tests.support.export_runs import jars
from tests.support.mart_rows import QUICKEST
from tests.support.plain_inserts import Connection, connect, decide, insert
from tests.support.publications import positions, record, snapshot
from tests.support.spark_marks import MARKS

pytestmark = MARKS

MESSAGES = """
    SELECT (born_at AT TIME ZONE 'UTC')::date AS day, topic, producer_group, state, key,
           coalesce(octet_length(key), 0) + coalesce(octet_length(body), 0) AS bytes
    FROM outbox.message
"""


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_marts_of_a_run_agree_with_the_outbox_and_a_second_run_changes_nothing(
    database: str, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "warehouse"
    with connect(database) as conn:
        for number in range(20):
            insert(conn, "orders", f"k{number % 3}", f"body {number}")
        for verdict in ("COMMITTED", "COMMITTED", "ROLLED_BACK", None):
            half = insert(conn, "orders", "h", "half", state="UNKNOWN", producer_group="g")
            if verdict:
                assert decide(conn, half, verdict) == 1
        record(conn, positions(conn), seen=snapshot(conn), batch=1)
        rows = conn.execute(MESSAGES).fetchall()
        first = run(database, where, form, capsys)
        day = rows[0][0]
        assert first["mart_days"] == [day.isoformat()]
        found = {
            name: contents(where, form, name) for name in ("throughput", "decisions", "key_skew", "gaps")
        }
        published = [row for row in rows if row[3] == "COMMITTED"]
        assert found["throughput"] == [(day, "orders", len(rows), 22, sum(row[5] for row in published))]
        assert found["decisions"] == [(day, "g", 4, 2, 1, 0, 1, 3, 0, 0, 0)]
        assert found["gaps"] == [(day, "orders", 0, 0, 21, 22, 0, 0)]
        times = Counter(row[4] for row in rows)
        assert found["key_skew"] == [(day, "orders", 24, 4, b"k0", times[b"k0"] / 24, 1.0)]
        assert latency(where, form) == [("orders", 22, True)]
        insert_elsewhere(conn)
    second = run(database, where, form, capsys)
    assert second["mart_days"] == []
    assert {name: contents(where, form, name) for name in found} == found


def insert_elsewhere(conn: Connection) -> None:
    """Move the horizon of transactions, and nothing of the outbox."""
    conn.execute("CREATE TABLE public.elsewhere AS SELECT 1 AS one")


def run(dsn: str, warehouse: Path, form: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the job in this process; answer its JSON."""
    options = ["--dsn", dsn, "--warehouse", str(warehouse), "--format", form, "--master", "local[2]"]
    small = ["--driver-memory", "1g", "--partitions", "1"]
    small += [option for name, value in QUICKEST.items() for option in ("--spark", f"{name}={value}")]
    capsys.readouterr()
    code = main(["run", "--json", *options, *small, "--jars", ",".join(jars())])
    told = capsys.readouterr()
    assert code == 0, told.err
    answer: dict[str, Any] = json.loads(told.out)
    return answer


def arrow(warehouse: Path, form: str, mart: str) -> pa.Table:
    """A mart as somebody without Spark reads it."""
    if form == "iceberg":
        return StaticTable.from_metadata(str(warehouse / "outbox" / f"mart_{mart}")).scan().to_arrow()
    files = LocalManifests(warehouse).newest().tables[f"mart_{mart}"].files
    return duckdb.read_parquet([str(warehouse / file.path) for file in files]).to_arrow_table()


def contents(warehouse: Path, form: str, mart: str) -> list[tuple[Any, ...]]:
    """A mart's rows, through DuckDB."""
    table = arrow(warehouse, form, mart)
    return duckdb.from_arrow(table).order("1, 2").fetchall()


def latency(warehouse: Path, form: str) -> list[tuple[Any, ...]]:
    """What cannot be known beforehand, as a rule: percentiles grow, none is below 0."""
    mart = arrow(warehouse, form, "latency")
    rule = "0 <= p50_ms AND p50_ms <= p95_ms AND p95_ms <= p99_ms AND p99_ms <= max_ms"
    return duckdb.from_arrow(mart).project(f"topic, published, {rule}").fetchall()
