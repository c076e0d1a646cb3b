"""A window's few events and publications, as the driver copies them: the columns of their tables, in one pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_etl.arrow import task
from outbox_etl.options.dsn import parse
from outbox_etl.source.reader import few
from outbox_etl.source.window import Cluster, Window
from outbox_etl.warehouse.tables import PUBLICATIONS, TRANSACTION_EVENTS, Table
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import record, snapshot
from tests.support.query_plans import Prepared, nodes, scans

WIDTH = 10_000
WINDOW = Window(0, 2**40, 2 * WIDTH, 0, Cluster("1", 1))

READING = {"Limit", "Nested Loop", "Append", "Seq Scan", "Index Scan", "Function Scan"}
"""What a plan is made of that sorts and hashes nothing, besides scans by bitmaps."""


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """Two messages, two half messages and a batch, in two partitions."""
    with connect(database) as conn:
        narrow_partitions(conn, width=WIDTH, count=2)
        for value in (1, WIDTH + 5):
            conn.execute("SELECT setval('outbox.position', %s)", (value,))
            insert(conn, "t", "k", "{}")
            insert(conn, "t", "k", "{}", state="UNKNOWN", producer_group="g")
        record(conn, [1, 2], seen=snapshot(conn), batch=1)
        yield conn


@pytest.mark.parametrize("table", [TRANSACTION_EVENTS, PUBLICATIONS])
def test_few_rows_have_the_columns_of_their_table(conn: Connection, database: str, table: Table) -> None:
    conn.commit()
    [batch] = task.read(parse(database).conninfo, (), few(table.name, WINDOW, 100))
    assert set(batch.schema.names) | {"window_hi"} == set(table.names)
    kinds = {column.name: str(batch.schema.field(column.name).type) for column in table.columns[:-1]}
    expected = {"bigint": "int64", "int": "int32", "string": "string", "timestamp": "timestamp[us, tz=UTC]"}
    assert kinds == {column.name: expected[column.type] for column in table.columns[:-1]}
    [one] = task.read(parse(database).conninfo, (), few(table.name, WINDOW, 1))
    assert one.num_rows == 1 < batch.num_rows


@pytest.mark.parametrize(("table", "source"), [(TRANSACTION_EVENTS, "event"), (PUBLICATIONS, "publication")])
def test_few_rows_are_read_in_one_pass_over_their_table(conn: Connection, table: Table, source: str) -> None:
    plan = Prepared(conn, few(table.name, WINDOW, 100), {}).explain({})
    read = scans(plan, f"{source}_p")
    assert sorted(scan["Relation Name"] for scan in read) == sorted({scan["Relation Name"] for scan in read})
    assert all(scan["Actual Loops"] == 1 for scan in read)
    kinds = {node["Node Type"] for node in nodes(plan)}
    assert not {kind for kind in kinds if kind not in READING and not kind.startswith("Bitmap")}
