"""What `outbox dlq` and `outbox status` read of dead letters and retries, however many of the others there are."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_relay.operations.consumers import STATEMENTS as OF_GROUPS
from outbox_relay.operations.dlq import STATEMENTS as SQL
from tests.support.plain_inserts import Connection
from tests.support.query_plans import Plan, rows_read, scans

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


def explain(conn: Connection, text: str, **values: Any) -> Plan:
    """Run a statement as the command does, and return its plan."""
    row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", values).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


@pytest.mark.parametrize("analyzed", [False, True])
def test_dead_letters_are_found_without_reading_what_waits(conn: Connection, analyzed: bool) -> None:
    conn.execute(FILL)
    if analyzed:
        conn.execute("ANALYZE outbox.inbox_parked")
    everything = dict.fromkeys(FILTERS)
    page = explain(conn, SQL["ls"], **everything, after=0, limit=1000)
    assert page["Actual Rows"] == DEAD
    assert rows_read(page, "inbox_parked") == DEAD
    # Without statistics PostgreSQL may sort all of them for a page of ten.
    assert rows_read(explain(conn, SQL["ls"], **everything, after=500, limit=10), "inbox_parked") < DEAD
    assert rows_read(explain(conn, SQL["summary"], group=None), "inbox_parked") == DEAD


RETRIES = 100_000
FILL_RETRIES = f"""
    INSERT INTO outbox.consumer_group (name, subscription, orderly)
        VALUES ('g', '{{}}', false), ('h', '{{}}', false);
    INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t');
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, header_names,
            header_values, published_at, state, attempts, due_at, fingerprint, failed_at, body)
        SELECT CASE WHEN i % 100 = 0 THEN 2 ELSE 1 END, gen_random_uuid(), '2026-11-01', 1, 0, i, 'd', '{{}}', '{{}}',
            now(), CASE WHEN i % 50 = 1 THEN 'dead' ELSE 'retry' END, 1,
            CASE WHEN i % 50 <> 1 THEN now() + i * interval '1 second' END, 'f', now(), repeat('x', 1000)::bytea
        FROM generate_series(1, {RETRIES}) i
"""


def test_the_next_tries_are_found_without_reading_the_other_retries(conn: Connection) -> None:
    conn.execute(FILL_RETRIES)
    values = {name: None for name in FILTERS if name != "ids"}
    # Without statistics, which autovacuum makes within a minute, PostgreSQL may sort all of them.
    conn.execute("ANALYZE outbox.inbox_parked")
    page = explain(conn, SQL["retrying"], **values, limit=20)
    assert page["Actual Rows"] == 20
    assert rows_read(page, "inbox_parked") <= 40, "at most a page of each group"
    of_one = explain(conn, SQL["retrying"], **{**values, "group": "h"}, limit=1000)
    assert rows_read(of_one, "inbox_parked") == of_one["Actual Rows"] == RETRIES // 100


def test_retries_are_counted_by_group_in_an_index(conn: Connection) -> None:
    conn.execute(FILL_RETRIES)
    conn.execute("VACUUM ANALYZE outbox.inbox_parked")
    totals = explain(conn, OF_GROUPS["totals"])
    read = {node["Node Type"] for node in scans(totals, "inbox_parked")}
    assert read == {"Index Only Scan"}, "the rows, which have bodies, are not read"
    assert rows_read(totals, "inbox_parked") == RETRIES, "each once: retries, and dead letters"
