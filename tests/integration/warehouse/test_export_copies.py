"""What a task copies: the columns of message_history in types of Arrow, by the plan of the read through JDBC."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from adbc_driver_postgresql import dbapi

from outbox_etl.arrow import task
from outbox_etl.options.dsn import parse
from outbox_etl.source.reader import SQL, Ids, new_messages
from outbox_etl.source.window import Cluster, Window
from outbox_etl.statements import statement
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.query_plans import Prepared, scans

WIDTH = 10_000
ADDED = {"body_json", "status", "window_hi"}
"""Columns that the task makes."""
HELD = [Ids(1, WIDTH + 1), Ids(WIDTH + 1, 2 * WIDTH + 1)]


def copied(window: Window, ids: Ids) -> str:
    return statement(SQL, "copied", messages=new_messages(ids, HELD, window))


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """Messages in two partitions."""
    with connect(database) as conn:
        narrow_partitions(conn, width=WIDTH, count=2)
        insert(conn, "t", "k", "{}")
        conn.execute("SELECT setval('outbox.position', %s)", (WIDTH + 5,))
        insert(conn, "t", "k", "{}", headers="{}", tags=["a"])
        yield conn


def test_a_copy_reads_its_partition_only(conn: Connection) -> None:
    ids = HELD[1]
    plan = Prepared(conn, copied(Window(0, 2**40, 2 * WIDTH, 0, Cluster("1", 1)), ids), {}).explain({})
    for table in ("message", "publication", "event"):
        assert {scan["Relation Name"] for scan in scans(plan, f"{table}_p")} <= {f"{table}_p000000000010001"}
    assert plan["Actual Rows"] == 1


def test_a_copy_has_the_columns_of_the_table(conn: Connection, database: str) -> None:
    conn.commit()
    with dbapi.connect(parse(database).conninfo) as copy, copy.cursor() as cursor:
        cursor.execute(statement(SQL, "joining"))
        cursor.execute(copied(Window(0, 2**40, 2 * WIDTH, 0, Cluster("1", 1)), HELD[0]))
        table = cursor.fetch_arrow_table()
    assert set(table.column_names) | ADDED == set(MESSAGE_HISTORY.names)
    assert table.num_rows == 1
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert kinds["born_at"] == "timestamp[us, tz=UTC]"
    assert kinds["message_id"] == kinds["headers"] == "string"
    assert kinds["body"] == "binary"
    assert kinds["tags"] == "list<item: string>"


def test_what_begins_a_transaction_holds_for_its_copy(database: str) -> None:
    begin = ("SELECT set_config('outbox.test', 'here', true)", "DO $$ BEGIN PERFORM 1; END $$")
    [batch] = task.read(parse(database).conninfo, begin, "SELECT current_setting('outbox.test') AS at")
    assert batch.to_pydict() == {"at": ["here"]}


def test_a_copy_takes_nothing_from_the_environment(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=elsewhere")
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    [batch] = task.read(parse(database).conninfo, (), "SELECT current_setting('search_path') AS path")
    assert batch.to_pydict()["path"] != ["elsewhere"]
    assert os.environ["PGHOSTADDR"] == "192.0.2.1"


@pytest.mark.parametrize(
    "ends", ["1 / (100000 - g)", "CASE WHEN g = 100000 THEN pg_terminate_backend(pg_backend_pid()) END"]
)
def test_a_copy_that_ends_early_is_an_error(database: str, ends: str) -> None:
    """Not a shorter result: by an error after many rows, or by a server that closes the connection."""
    query = f"SELECT repeat('x', 1000) AS filling, {ends} AS ends FROM generate_series(1, 150000) g"
    batches = task.read(parse(database).conninfo, (), query)
    assert next(batches).num_rows < 100_000
    with pytest.raises(OSError, match=r"division by zero|terminating connection|closed the connection"):
        list(batches)


def test_threads_that_connect_at_once_take_nothing_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    entered = threading.Barrier(2)

    def seen(_: int) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            entered.wait(10)
        with task.no_variables():
            return "PGHOSTADDR" in os.environ

    kept = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            assert not any(threads.map(seen, range(2_000)))
    finally:
        sys.setswitchinterval(kept)
    assert os.environ["PGHOSTADDR"] == "192.0.2.1"
