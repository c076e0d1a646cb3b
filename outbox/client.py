"""`Outbox` and `AsyncOutbox`: the outbox on connections of psycopg. See `outbox.adapters` for other libraries."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg

from outbox.calls import AsyncOutboxCalls, OutboxCalls
from outbox.drivers import psycopg_async, psycopg_sync
from outbox.statements import Plan

T = TypeVar("T")


class Outbox(OutboxCalls[psycopg.Connection[Any]]):
    """Sends on the caller's `psycopg.Connection`, inside the caller's transaction.

    It never commits and never wraps or swallows an error of the driver. It keeps nothing of a connection, so
    threads may share one outbox as long as each has its own connection.
    """

    def _run(self, conn: psycopg.Connection[Any], plan: Plan[T]) -> T:
        return psycopg_sync.run(conn, plan)


class AsyncOutbox(AsyncOutboxCalls[psycopg.AsyncConnection[Any]]):
    """`Outbox` for a `psycopg.AsyncConnection`: the same calls, awaited."""

    async def _run(self, conn: psycopg.AsyncConnection[Any], plan: Plan[T]) -> T:
        return await psycopg_async.run(conn, plan)
