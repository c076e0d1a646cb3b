"""What the checker logs behind a pooler that divides its session."""

from __future__ import annotations

import psycopg
import pytest

from outbox_relay.database.reasons import is_divided, reason


@pytest.mark.parametrize(
    "error", [psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName]
)
def test_a_mixed_up_prepared_statement_comes_with_the_repair(error: type[psycopg.Error]) -> None:
    fields = reason(error('prepared statement "_pg3_0" already exists'))
    assert fields["sqlstate"] == error.sqlstate
    assert "pooler in session mode" in fields["hint"]


def test_another_refusal_is_not_taken_for_a_poolers() -> None:
    assert not is_divided(psycopg.errors.UndefinedTable("relation does not exist"))
    assert "hint" not in reason(psycopg.errors.UndefinedTable("relation does not exist"))
