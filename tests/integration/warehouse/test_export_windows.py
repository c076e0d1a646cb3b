"""What one window of the warehouse job reads of a database that was restored: what the restore brought, and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_etl.source.reader import SQL, query
from outbox_etl.source.window import Cluster, Window
from outbox_etl.statements import statement
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import positions, record, snapshot, value

AHEAD = 1_000_000
"""How far the other cluster was ahead of this one, in transactions."""
BROUGHT = "UPDATE outbox.{table} SET xid = (xid::text::bigint + %s)::text::xid8"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """The owner's session; triggers are off, as in a restore."""
    with connect(database) as conn:
        conn.execute("SET session_replication_role = replica")
        yield conn


def brought(conn: Connection, *tables: str) -> None:
    """Let all that is there come from a cluster that was ahead."""
    for table in tables:
        conn.execute(BROUGHT.format(table=table).encode(), [AHEAD])


def window_of(conn: Connection) -> Window:
    """All that there is, as a first run or a backfill sees it."""
    newest = int(value(conn, statement(SQL, "newest")))
    now = conn.execute(statement(SQL, "horizon").encode()).fetchone()
    assert now is not None
    hi, following, top = now[:3]
    foreign = newest if newest >= following else 0
    return Window(0, hi, top, 0, Cluster("1", 1), next=following, foreign=foreign)


def read(conn: Connection, table: str, window: Window) -> list[int]:
    """The ids that a window reads of a table."""
    rows = conn.execute(f"SELECT id FROM ({query(table, window)}) q ORDER BY 1".encode()).fetchall()
    return [row[0] for row in rows]


def test_rows_written_while_a_restored_database_is_read_wait_for_the_next_window(
    conn: Connection,
) -> None:
    for _ in range(3):
        insert(conn, "t", "k", "v", lane=0)
    published = positions(conn)
    record(conn, published, seen=snapshot(conn), batch=1)
    brought(conn, "message", "publication")
    window = window_of(conn)
    assert window.restored
    # A transaction of this cluster's own, later than any that was brought.
    insert(conn, "t", "k", "v", lane=0, xid=str(window.foreign + 1))
    record(conn, [published[0]], seen=snapshot(conn), batch=2)
    conn.execute(
        "UPDATE outbox.publication SET xid = %s::text::xid8 WHERE batch = 2", [str(window.foreign + 1)]
    )
    assert read(conn, "message", window) == published
    assert read(conn, "publication", window) == [published[0]]


def test_a_half_message_from_a_restore_is_read_though_nothing_else_is_as_new(
    conn: Connection,
) -> None:
    insert(conn, "t", "k", "v", lane=0, state="UNKNOWN", producer_group="g")
    brought(conn, "message")
    window = window_of(conn)
    assert read(conn, "message", window) == [1]
