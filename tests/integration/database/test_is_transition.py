"""The expression that the trigger asks says what the table of transitions says."""

from __future__ import annotations

import psycopg
import pytest

PAIRS = """
    WITH state (name) AS (SELECT from_state FROM outbox.transition UNION SELECT to_state FROM outbox.transition)
    SELECT a.name, b.name, outbox.is_transition(a.name, b.name),
           EXISTS (SELECT FROM outbox.transition t WHERE t.from_state = a.name AND t.to_state = b.name)
    FROM state a, state b WHERE a.name IS NOT NULL AND b.name IS NOT NULL
"""


@pytest.mark.feature("S-07")
def test_exactly_the_listed_transitions_are_allowed(database: str) -> None:
    with psycopg.connect(database) as conn:
        pairs = conn.execute(PAIRS).fetchall()
    assert len(pairs) == 49
    assert {(a, b) for a, b, expression, _ in pairs if expression} == {
        (a, b) for a, b, _, table in pairs if table
    }
