"""Deciding stays cheap: one row by its primary key in one partition, however many half messages there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox.operations.ranges import within_range
from outbox.statements import load
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect
from tests.support.query_plans import FILL_HALVES, nodes

# All in one process: its database takes longer to fill than the statements take.
pytestmark = pytest.mark.xdist_group("half plans")

PARTITIONS = 12
WIDTH = 4_000
ONE = "SELECT id::text, message_id::text FROM outbox.message WHERE state = %s ORDER BY id DESC OFFSET 7777 LIMIT 1"


@pytest.fixture(scope="module")
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A database with tens of thousands of half messages over a dozen partitions."""
    databases = request.getfixturevalue("_shared_databases")
    with connect(databases.make()) as connection:
        connection.prepare_threshold = None
        narrow_partitions(connection, width=WIDTH, count=PARTITIONS)
        connection.execute(FILL_HALVES, [PARTITIONS * WIDTH - 100])
        connection.execute("UPDATE outbox.message SET state = 'ROLLED_BACK' WHERE id %% 3 = 1", [])
        connection.execute("VACUUM ANALYZE outbox.message")
        connection.execute("VACUUM ANALYZE outbox.event")
        yield connection
    databases.drop_made()


def plan_of(
    conn: Connection, file: str, name: str, values: list[str | None], mode: str
) -> list[dict[str, Any]]:
    """The nodes that ran when the prepared statement was executed in this plan mode; its writes are undone."""
    marks = ", ".join("NULL" if value is None else f"'{value}'" for value in values)
    conn.execute("BEGIN")
    try:
        conn.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
        conn.execute(f"PREPARE watched AS {within_range(load(file)[name], '1')}".encode())
        row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE watched ({marks})".encode()).fetchone()
        assert row is not None
        return [node for node in nodes(row[0][0]["Plan"]) if node["Actual Loops"]]
    finally:
        conn.execute("ROLLBACK")
        conn.execute("DEALLOCATE ALL")


@pytest.mark.feature("S-50")
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("file", "name", "state", "more"),
    [
        ("decide.sql", "decide", "UNKNOWN", ["COMMITTED", "why"]),
        ("decide.sql", "decide", "UNKNOWN", ["ROLLED_BACK", None]),
        ("decide.sql", "read_decision", "ROLLED_BACK", []),
        ("decide.sql", "join", "UNKNOWN", []),
        ("decide.sql", "lock_order_key_of", "UNKNOWN", []),
        ("cancel.sql", "cancel", "COMMITTED", ["why"]),
        ("cancel.sql", "cancel_overdue", "COMMITTED", ["why"]),
        ("cancel.sql", "read_cancelled", "ROLLED_BACK", []),
    ],
)
def test_row_is_found_by_its_primary_key_in_one_partition(
    conn: Connection, file: str, name: str, *, state: str, more: list[str | None], mode: str
) -> None:
    row = conn.execute(ONE, [state]).fetchone()
    assert row is not None
    ran = plan_of(conn, file, name, [*row, *more], mode)
    read = [node for node in ran if "Scan" in node["Node Type"] and "Relation Name" in node]
    messages = [node for node in read if node["Relation Name"].startswith("message_p")]
    assert [node["Actual Rows"] for node in messages] == [1]
    assert all(node["Index Name"].endswith("_pkey") for node in messages)
    events = [node for node in read if node["Relation Name"].startswith("event_p")]
    assert len(events) == (1 if name.startswith("read") else 0)
    assert all(node["Node Type"] in {"Index Scan", "Bitmap Heap Scan"} for node in events)
    assert sum(node.get("Rows Removed by Filter", 0) for node in read) <= 1


@pytest.mark.plan("outbox/sql/decide.sql", "find_foreign")
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_own_id_of_the_application_is_found_by_its_index(conn: Connection, mode: str) -> None:
    ran = plan_of(conn, "decide.sql", "find_foreign", ["4bf92f35-77b3-4da6-a3ce-929d0e0e4736"], mode)
    read = [node for node in ran if "Scan" in node["Node Type"] and "Relation Name" in node]
    assert len(read) == PARTITIONS
    assert {node["Node Type"] for node in read} <= {
        "Index Scan",
        "Index Only Scan",
        "Bitmap Heap Scan",
        "Bitmap Index Scan",
    }


@pytest.mark.plan("outbox/sql/groups.sql", "sends_normal_messages")
@pytest.mark.parametrize("group", ["orders", "unused"])
def test_the_look_for_normal_messages_of_a_group_reads_the_newest_only(conn: Connection, group: str) -> None:
    """With the limit that it has, it would read all of this database: the shape of the plan is what counts."""
    statement = load("groups.sql")["sends_normal_messages"]
    conn.execute("PREPARE watched (text) AS " + statement.replace("LIMIT 50000", "LIMIT 5000"))
    try:
        row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE watched ('{group}')").fetchone()
    finally:
        conn.execute("DEALLOCATE ALL")
    assert row is not None
    ran = [node for node in nodes(row[0][0]["Plan"]) if node["Actual Loops"]]
    assert "Sort" not in {node["Node Type"] for node in ran}
    read = [node for node in ran if node.get("Index Name", "").endswith("_pkey")]
    assert 1 <= len(read) <= 3
    assert sum(node["Actual Rows"] for node in read) <= 5000
