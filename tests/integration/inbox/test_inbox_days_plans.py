"""What a drop reads while it holds the lock of a day: a few rows, however many the day has."""

from __future__ import annotations

import pytest

from outbox_relay.operations.inbox_days import STATEMENTS as SQL
from tests.support.plain_inserts import Connection
from tests.support.query_plans import Plan, rows_read

FILL = """
    SELECT outbox.ensure_inbox_partition(current_date - d) FROM generate_series(0, 3) d;
    INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
        SELECT g, gen_random_uuid(), current_date - d, 1, 0, i, 'd'
        FROM generate_series(1, 9, 4) g, generate_series(0, 3) d, generate_series(1, 4000) i
"""


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_groups_of_a_day_are_found_without_reading_its_rows(conn: Connection, analyzed: bool) -> None:
    conn.execute(FILL)
    if analyzed:
        conn.execute("ANALYZE outbox.inbox")
    [(day,)] = conn.execute("SELECT current_date - 2").fetchall()
    assert conn.execute(SQL["groups"], {"day": day}).fetchall() == [(1,), (5,), (9,)]
    [(found,)] = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL['groups']}", {"day": day}).fetchall()
    plan: Plan = found[0]["Plan"]
    assert rows_read(plan, "inbox_d") < 20
