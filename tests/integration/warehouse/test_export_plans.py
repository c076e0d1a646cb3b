"""Plans of the warehouse job's reads: what happened to known messages is found by indexes, whatever else is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_etl.source.reader import KNOWN, SQL, Ids, _limits, part, query
from outbox_etl.source.window import Cluster, Window
from outbox_etl.statements import statement
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect
from tests.support.query_plans import Plan, Prepared, nodes, removed, scans

WIDTH = 10_000
PARTITIONS = 3
DECIDED = 6
FILL = """
    INSERT INTO outbox.message (topic, key, body, producer_group, state)
    SELECT 't', convert_to('k' || i, 'UTF8'), 'x', 'g', CASE WHEN i % 10 = 0 THEN 'UNKNOWN' ELSE 'COMMITTED' END
    FROM generate_series(1, 29000) i
"""
DECIDE = """
    UPDATE outbox.message m SET state = d.state, remark = 'why'
    FROM (SELECT id, CASE WHEN row_number() OVER (ORDER BY id) % 2 = 0 THEN 'COMMITTED' ELSE 'ROLLED_BACK' END state
          FROM outbox.message WHERE state = 'UNKNOWN' AND id BETWEEN 12000 AND 12059) d
    WHERE m.id = d.id
"""


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """Tens of thousands of messages in three partitions, all of them older than the window but six."""
    with connect(database) as conn:
        narrow_partitions(conn, width=WIDTH, count=PARTITIONS)
        conn.execute(FILL)
        conn.execute("VACUUM ANALYZE outbox.message")
        conn.execute("VACUUM ANALYZE outbox.event")
        yield conn


def number(conn: Connection, what: str) -> int:
    row = conn.execute(f"SELECT {what}::text::bigint".encode()).fetchone()
    assert row is not None
    return int(row[0])


def window_of(conn: Connection, lo: int) -> Window:
    """All that was written since `lo`. Not up to the snapshot's xmin only: tests beside this one hold that back."""
    hi = number(conn, "pg_snapshot_xmax(pg_current_snapshot())")
    top = number(conn, "(SELECT max(id) FROM outbox.message)")
    return Window(lo, hi, top, top, Cluster("1", 1))


def read(conn: Connection, window: Window, table: str, condition: str) -> Plan:
    """The plan of one of the parallel reads, in the form that Spark sends."""
    where = part(Ids(WIDTH + 1, 2 * WIDTH + 1), window, condition)
    columns = ", ".join(f'"{name}"' for name in KNOWN[table] if name not in {"check_after", "lo", "hi"})
    watched = Prepared(conn, f"SELECT {columns} FROM ({query(table, window)}) q WHERE {where}", {})
    plan = watched.explain({})
    conn.execute("DEALLOCATE watched")
    return plan


def test_changed_messages_are_found_by_indexes_in_their_partition(conn: Connection) -> None:
    lo = number(conn, "pg_snapshot_xmax(pg_current_snapshot())")
    conn.execute(DECIDE)
    window = window_of(conn, lo)
    committed = read(conn, window, "message", "is_committed")
    decided = read(conn, window, "message", "was_decided")
    assert committed["Actual Rows"] + decided["Actual Rows"] == DECIDED
    [scan] = scans(committed, "message_p")
    assert "xid" in scan.get("Index Cond", "") or any(
        "xid" in node.get("Index Cond", "") for node in nodes(committed)
    )
    assert removed(committed) <= 1
    looked_up = scans(decided, "message_p")
    assert {scan["Relation Name"] for scan in (*looked_up, scan)} == {"message_p000000000010001"}
    assert all("id" in scan.get("Index Cond", "") for scan in looked_up)
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in looked_up) <= DECIDED
    assert {scan["Relation Name"] for scan in scans(decided, "event_p")} == {"event_p000000000010001"}


@pytest.mark.parametrize("table", ["message", "event", "publication"])
def test_a_range_of_ids_is_read_in_its_partition(conn: Connection, table: str) -> None:
    plan = read(conn, window_of(conn, 0), table, "")
    assert {scan["Relation Name"] for scan in scans(plan, f"{table}_p")} == {f"{table}_p000000000010001"}


def test_whether_a_window_touched_known_messages_is_seen_in_its_own_rows(conn: Connection) -> None:
    lo = number(conn, "pg_snapshot_xmax(pg_current_snapshot())")
    conn.execute(DECIDE)
    window = window_of(conn, lo)
    text = statement(SQL, "touches_known", limits=_limits(window), known=window.known)
    watched = Prepared(conn, text, {})
    plan = watched.explain({})
    conn.execute("DEALLOCATE watched")
    looked_at = scans(plan, "message_p")
    assert looked_at
    assert all("xid" in scan.get("Index Cond", "") for scan in looked_at)
    assert removed(plan) <= 1
