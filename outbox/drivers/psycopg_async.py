"""The driver for `psycopg.AsyncConnection`."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from outbox.drivers.psycopg_common import ADAPTERS, require_transaction
from outbox.errors import add_migration_hint
from outbox.statements import Plan

T = TypeVar("T")


class _AsyncCursor(psycopg.AsyncRawCursor[tuple[Any, ...]]):
    """A cursor of our own: not the connection's cursor factory, row factory or adapters."""

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


async def run(conn: psycopg.AsyncConnection[Any], plan: Plan[T]) -> T:
    """Run a plan as `psycopg_sync.run` does, awaiting the connection."""
    require_transaction(conn, psycopg.AsyncConnection, psycopg.Connection, "Outbox")
    async with _AsyncCursor(conn, row_factory=tuple_row) as cursor:
        try:
            statement = next(plan)
            while True:
                try:
                    await cursor.execute(statement.text, statement.params, prepare=True)
                    rows = await cursor.fetchall() if statement.answers else []
                except psycopg.Error as error:
                    add_migration_hint(error, error.sqlstate)
                    statement = plan.throw(error)
                else:
                    statement = plan.send(rows)
        except StopIteration as done:
            result: T = done.value
            return result
