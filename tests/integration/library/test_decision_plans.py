"""Deciding a half message is planned once per session, however many partitions there are, and by the primary key."""

from __future__ import annotations

import psycopg
import pytest

from outbox import Message, Outbox

OFTEN = 12
"""Decisions of one session: after five, PostgreSQL keeps one plan for all values, if that is no dearer."""


@pytest.mark.parametrize(
    ("begins", "name"), [("UPDATE outbox.message", "commit"), ("SELECT id\nFROM outbox.message", "join")]
)
def test_a_session_keeps_one_plan_for_every_half_message(database: str, begins: str, name: str) -> None:
    outbox = Outbox("payments")
    with psycopg.connect(database) as conn:
        for _ in range(OFTEN):
            half = outbox.prepare(conn, Message("t", key="k", body=b"b"))
            outbox.join(conn, half)
            outbox.commit(conn, half)
            conn.commit()
        plans = conn.execute(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE starts_with(statement, %s)",
            [begins],
        ).fetchall()
    assert len(plans) == 1, name
    generic, custom = plans[0]
    assert generic >= OFTEN - 5 >= custom, "planned anew at each execution"
