"""The driver for `psycopg.Connection`."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from outbox.drivers.psycopg_common import ADAPTERS, require_transaction
from outbox.errors import add_migration_hint
from outbox.statements import Plan

T = TypeVar("T")


class _SyncCursor(psycopg.RawCursor[tuple[Any, ...]]):
    """A cursor of our own: not the connection's cursor factory, row factory or adapters."""

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def run(conn: psycopg.Connection[Any], plan: Plan[T]) -> T:
    """Run a plan inside the connection's transaction; a plan that raises has written nothing since its last yield."""
    require_transaction(conn, psycopg.Connection, psycopg.AsyncConnection, "AsyncOutbox")
    with _SyncCursor(conn, row_factory=tuple_row) as cursor:
        try:
            statement = next(plan)
            while True:
                try:
                    cursor.execute(statement.text, statement.params, prepare=True)
                    rows = cursor.fetchall() if statement.answers else []
                except psycopg.Error as error:
                    add_migration_hint(error, error.sqlstate)
                    statement = plan.throw(error)
                else:
                    statement = plan.send(rows)
        except StopIteration as done:
            result: T = done.value
            return result
