"""What `outbox dlq ls` and `summary` read: the dead letters, however many messages wait to be tried again."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_relay.operations.dlq import STATEMENTS as SQL
from tests.support.plain_inserts import Connection
from tests.support.query_plans import Plan, rows_read

DEAD = 40
FILL = f"""
    INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES ('g', '{{}}', false);
    INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t');
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, header_names,
            header_values, published_at, state, attempts, due_at, fingerprint, failed_at)
        SELECT 1, gen_random_uuid(), '2026-11-01', 1, 0, i, 'd', '{{}}', '{{}}', now(),
            CASE WHEN i % 500 = 0 THEN 'dead' ELSE 'retry' END, 1, CASE WHEN i % 500 <> 0 THEN now() END, 'f', now()
        FROM generate_series(1, {DEAD * 500}) i
"""
FILTERS = ("ids", "group", "topic", "failure", "since", "until")


def explain(conn: Connection, name: str, **values: Any) -> Plan:
    """Run a statement as the command does, and return its plan."""
    row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL[name]}", values).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


@pytest.mark.parametrize("analyzed", [False, True])
def test_dead_letters_are_found_without_reading_what_waits(conn: Connection, analyzed: bool) -> None:
    conn.execute(FILL)
    if analyzed:
        conn.execute("ANALYZE outbox.inbox_parked")
    everything = dict.fromkeys(FILTERS)
    page = explain(conn, "ls", **everything, after=0, limit=1000)
    assert page["Actual Rows"] == DEAD
    assert rows_read(page, "inbox_parked") == DEAD
    # Without statistics PostgreSQL may sort all of them for a page of ten.
    assert rows_read(explain(conn, "ls", **everything, after=500, limit=10), "inbox_parked") < DEAD
    assert rows_read(explain(conn, "summary", group=None), "inbox_parked") == DEAD
