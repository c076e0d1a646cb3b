"""Plans of what operators do about single messages, with young statistics and with good ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox_relay.operations.dead_letters import STATEMENTS as DEAD_LETTERS
from tests.support.bare_reader import narrow_partitions
from tests.support.held_keys import hold_key
from tests.support.plain_inserts import Connection, connect
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.query_plans import Plan, rows_read, scans

# All in one process: its database takes longer to fill than the statements take.
pytestmark = pytest.mark.xdist_group("plans of operators")

WIDTH, PARTITIONS = 4_000, 6
CONDITIONS = {
    "dead": "state = 'DEAD'",
    "published": "state = 'COMMITTED' AND id % 3 = 1 AND id < 20000",
    "committed": "state = 'COMMITTED' AND id % 3 = 2",
}
"""What is in each partition."""
FILL = """
    INSERT INTO outbox.message (topic, key, body, deliver_at)
    SELECT 't', convert_to('k' || i, 'UTF8'), 'x', CASE WHEN i %% 3 = 0 THEN now() + interval '1 day' END
    FROM generate_series(1, %s) i
"""


@pytest.fixture(scope="module", params=["young statistics", "analyzed"])
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """Thousands of messages that were published, that are committed, and that are DEAD, in each partition."""
    databases = request.getfixturevalue("_shared_databases")
    with connect(databases.make()) as conn:
        narrow_partitions(conn, width=WIDTH, count=PARTITIONS)
        conn.execute("ANALYZE outbox.message")
        conn.execute("ANALYZE outbox.event")
        own_lanes(conn)
        conn.execute(FILL, [PARTITIONS * WIDTH - 200])
        conn.execute("UPDATE outbox.message SET state = 'DEAD' WHERE deliver_at IS NOT NULL")
        done, seen = positions(conn, CONDITIONS["published"]), snapshot(conn)
        for place in range(0, len(done), 4):
            record(conn, done[place : place + 4], batch=place // 4, seen=seen)
        if request.param == "analyzed":
            conn.execute("VACUUM ANALYZE")
        yield conn
    databases.drop_made()


def explain(conn: Connection, statement: str, values: dict[str, Any]) -> Plan:
    """Execute a statement as an operator's session does, and undo it."""
    with conn.transaction(force_rollback=True):
        row = conn.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


def one(conn: Connection, condition: str) -> dict[str, Any]:
    """The id and message id of a message in the middle."""
    row = conn.execute(
        f"SELECT id, message_id FROM outbox.message WHERE id > 12000 AND {condition} ORDER BY id LIMIT 1"
    ).fetchone()
    assert row is not None
    return {"id": row[0], "message_id": row[1]}


@pytest.mark.plan("relay/outbox_relay/operations/dead_letters.sql", "change")
@pytest.mark.parametrize(
    ("before", "after"), [("DEAD", "SKIPPED"), ("DEAD", "COMMITTED"), ("COMMITTED", "DEAD")]
)
def test_a_transition_reads_its_message_alone(conn: Connection, before: str, after: str) -> None:
    message = one(conn, CONDITIONS[before.lower()])
    with conn.transaction(force_rollback=True):
        if before == "COMMITTED":
            hold_key(conn, message["id"])
        values = {**message, "before": before, "after": after, "reason": "why"}
        plan = explain(conn, DEAD_LETTERS["change"], values)
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "message_p") == 1


@pytest.mark.plan("relay/outbox_relay/operations/dead_letters.sql", "read_state")
@pytest.mark.parametrize("rest", CONDITIONS)
def test_a_state_is_read_from_one_message_its_audit_and_its_publication(conn: Connection, rest: str) -> None:
    plan = explain(conn, DEAD_LETTERS["read_state"], one(conn, CONDITIONS[rest]))
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "message_p") == 1
    assert rows_read(plan, "event_p") <= 1
    assert rows_read(plan, "publication_p") <= 2, "publications whose span of positions holds it"
    assert {node["Relation Name"] for node in scans(plan, "event_p")} == {"event_p000000000012001"}
