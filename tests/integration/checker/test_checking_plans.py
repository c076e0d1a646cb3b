"""A checker's statements stay cheap: planned while everything is empty, run when one group has flooded the table.

Of 30 partitions, and of a group with as many half messages as there is patience for in a test; what is asserted does
not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox.checking.transaction import SQL
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect
from tests.support.query_plans import Plan, Prepared, buffers, nodes, scans

# All in one process: its database takes longer to fill than the statements take.
pytestmark = pytest.mark.xdist_group("checking plans")

FLOOD = 30_000
SMALL = 20
FILL = """
    INSERT INTO outbox.message (topic, key, body, state, producer_group, born_at)
    SELECT 't', 'k', 'b', 'UNKNOWN', %s, clock_timestamp() - interval '1 minute' FROM generate_series(1, %s)
"""
TYPES = {
    "groups": (),
    "enqueue": ("text", "bigint", "integer", "float8", "float8", "integer", "float8", "boolean", "float8"),
    "tidy": ("text", "integer", "float8"),
    "claim": ("text", "integer", "timestamptz", "text", *("float8",) * 2, "integer", "bigint"),
    "settle": (*("text[]",) * 6, "float8", "float8", "integer", "float8", "float8"),
    "expire": ("text[]", "text", "text", "float8", "integer", "float8"),
}


class Stage:
    """One connection on which a statement was prepared while the tables were empty."""

    def __init__(self, dsn: str, name: str) -> None:
        self.conn: Connection = connect(dsn)
        self.conn.execute("SET outbox.actor = 'test'")
        self.conn.execute("BEGIN")
        self.conn.execute(SQL["begin"].replace("$1", "'test'").encode())
        self.prepared = Prepared(
            self.conn, SQL[name], {f"v{place}": kind for place, kind in enumerate(TYPES[name])}
        )
        values: dict[str, tuple[Any, ...]] = {
            "groups": (),
            "enqueue": ("none", 0, 1, 6.0, 1.0, 15, 30.0, True, 30.0),
            "tidy": ("none", 1, 1.0),
            "claim": ("none", 1, "infinity", "me", 1.0, 1.0, 15, 1),
            "settle": ([], [], [], [], [], [], 1.0, 1.0, 15, 1.0, 1.0),
            "expire": ([], "none", "ROLLED_BACK", 1.0, 15, 1.0),
        }
        for _ in range(2):
            self.prepared.run(_named(values[name]))
        self.conn.execute("COMMIT")

    def explain(self, *values: Any) -> Plan:
        """Run the statement as a checker does, and undo it."""
        self.conn.execute("BEGIN")
        self.conn.execute(SQL["begin"].replace("$1", "'test'").encode())
        try:
            return self.prepared.explain(_named(values))
        finally:
            self.conn.execute("ROLLBACK")


def _named(values: tuple[Any, ...]) -> dict[str, Any]:
    return {f"v{place}": value for place, value in enumerate(values)}


@pytest.fixture(scope="module")
def stages(request: pytest.FixtureRequest) -> Iterator[dict[str, Stage]]:
    """The statements, prepared on empty partitions; then a flood, half of it met by a checker before."""
    databases = request.getfixturevalue("_shared_databases")
    dsn = databases.make()
    with connect(dsn) as conn:
        narrow_partitions(conn, width=(FLOOD + 40 * SMALL) // 28, count=30)
        # Statistics that come in between would let a statement be planned anew: the worst case is that they do not.
        conn.execute("ALTER TABLE outbox.pending_check SET (autovacuum_enabled = off)")
        made = {name: Stage(dsn, name) for name in TYPES}
        for number in range(40):
            conn.execute(FILL, ["flood", FLOOD // 40])
            conn.execute(FILL, [f"small-{number:02}", SMALL])
        conn.execute(
            "INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at, answered_at) "
            "SELECT id, message_id, producer_group, clock_timestamp() - interval '1 second', clock_timestamp() "
            "FROM outbox.message WHERE mod(id, 2) = 0"
        )
        yield made
        for stage in made.values():
            stage.conn.close()
    databases.drop_made()


def most_rows(plan: Plan) -> int:
    """Most rows that any node has read from a table or an index: answered, or thrown away."""
    return max(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes(plan)
        if "Relation Name" in node and not node["Node Type"].startswith("ModifyTable")
    )


def no_table_is_read_through(plan: Plan) -> None:
    """No table that has rows is read without an index."""
    read = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    assert not read, [node.get("Relation Name") for node in read]


@pytest.mark.plan("outbox/sql/checking.sql", "groups")
@pytest.mark.feature("S-50", "S-56")
def test_finding_the_groups_does_not_read_the_flood(stages: dict[str, Stage]) -> None:
    plan = stages["groups"].explain()
    no_table_is_read_through(plan)
    assert most_rows(plan) < 42 * 40
    assert buffers(plan) < 42 * 30 * 4, "so many descents into an index at most, however large it is"


@pytest.mark.plan("outbox/sql/checking.sql", "enqueue")
@pytest.mark.feature("S-50")
@pytest.mark.parametrize("group", ["flood", "small-20"])
def test_a_page_reads_its_rows_and_no_other_group(stages: dict[str, Stage], group: str) -> None:
    plan = stages["enqueue"].explain(group, 0, 500, 6.0, 3600.0, 15, 30.0, True, 30.0)
    no_table_is_read_through(plan)
    expected = 500 if group == "flood" else SMALL
    assert most_rows(plan) <= expected
    indexes = {node["Index Name"] for node in scans(plan, "message_p") if node["Actual Rows"]}
    assert all(name.endswith("producer_group_id_idx") for name in indexes), indexes


@pytest.mark.feature("S-50")
def test_a_page_planned_beside_the_flood_reads_no_other_group(request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue("_shared_databases").make()
    with connect(database) as conn:
        for group, count in (("flood", FLOOD), ("small", SMALL)):
            conn.execute(FILL, [group, count])
        conn.execute("VACUUM ANALYZE outbox.message")  # what tells the planner that most rows are one group's
    stage = Stage(database, "enqueue")
    try:
        plan = stage.explain("small", 0, 500, 6.0, 3600.0, 15, 30.0, True, 30.0)
    finally:
        stage.conn.close()
    assert most_rows(plan) <= SMALL


@pytest.mark.feature("S-50")
def test_a_page_leaves_out_the_partitions_before_it(stages: dict[str, Stage]) -> None:
    row = stages["enqueue"].conn.execute("SELECT max(id) FROM outbox.message").fetchone()
    assert row is not None
    plan = stages["enqueue"].explain("flood", row[0] - 900, 500, 6.0, 3600.0, 15, 30.0, True, 30.0)
    assert len({node["Relation Name"] for node in scans(plan, "message_p")}) <= 3


@pytest.mark.plan("outbox/sql/checking.sql", "claim")
@pytest.mark.feature("S-50", "S-56")
@pytest.mark.parametrize("group", ["flood", "small-20"])
def test_a_claim_reads_what_is_due_and_looks_each_up_once(stages: dict[str, Stage], group: str) -> None:
    plan = stages["claim"].explain(group, 100, "infinity", "me", 10.0, 1.0, 15, 10**9)
    no_table_is_read_through(plan)
    assert most_rows(plan) <= 100
    (due,) = [node for node in nodes(plan) if node.get("Index Name") == "pending_check_due"]
    assert due["Actual Rows"] == (100 if group == "flood" else SMALL // 2)
    for node in scans(plan, "message_p"):
        assert node["Actual Rows"] <= 1, "one row in one partition for each"
    assert buffers(plan) < 100 * 60


@pytest.mark.plan("outbox/sql/checking.sql", "tidy")
@pytest.mark.feature("S-50")
def test_tidying_looks_each_up_once(stages: dict[str, Stage]) -> None:
    plan = stages["tidy"].explain("flood", 100, -3600.0)
    no_table_is_read_through(plan)
    assert most_rows(plan) <= 100
    assert all(node["Actual Rows"] <= 1 for node in scans(plan, "message_p"))


def ids(stage: Stage, group: str, count: int) -> list[str]:
    rows = stage.conn.execute(
        "SELECT id::text FROM outbox.pending_check WHERE producer_group = %s ORDER BY id LIMIT %s",
        [group, count],
    ).fetchall()
    return [id for (id,) in rows]


@pytest.mark.plan("outbox/sql/checking.sql", "settle")
@pytest.mark.feature("S-50")
@pytest.mark.parametrize("answer", ["COMMIT", "UNKNOWN"])
def test_settling_looks_each_up_once(stages: dict[str, Stage], answer: str) -> None:
    stage = stages["settle"]
    given = ids(stage, "flood", 100)
    stage.conn.execute(
        "UPDATE outbox.pending_check SET asked_by = 'me' WHERE id = ANY (%s::bigint[])", [given]
    )
    lists = (given, ["me"] * 100, [answer] * 100, [None] * 100, ["30.0"] * 100, ["false"] * 100)
    plan = stage.explain(*lists, 1.0, 3600.0, 15, 120.0, 600.0)
    no_table_is_read_through(plan)
    assert most_rows(plan) <= 100
    assert all(node["Actual Rows"] <= 1 for node in scans(plan, "message_p"))


@pytest.mark.plan("outbox/sql/checking.sql", "expire")
@pytest.mark.feature("S-50")
def test_the_policy_looks_each_up_once(stages: dict[str, Stage]) -> None:
    stage = stages["expire"]
    plan = stage.explain(ids(stage, "flood", 100), "flood", "ROLLED_BACK", 30.0, 15, 600.0)
    no_table_is_read_through(plan)
    assert most_rows(plan) <= 100
    assert all(node["Actual Rows"] <= 1 for node in scans(plan, "message_p"))
