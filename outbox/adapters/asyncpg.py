"""The outbox on asyncpg's connections, in their transactions.

    orders = AsyncpgOutbox(producer_group="orders")

    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("UPDATE orders SET state = 'paid' WHERE id = $1", "o-2")
        await orders.send(conn, Message("orders", key="o-2", body="paid"))

A call never commits. An error of the database is asyncpg's own. See `outbox.drivers.asyncpg_async` for codecs.
"""

from __future__ import annotations

from typing import Any, TypeVar

from outbox.calls import AsyncOutboxCalls
from outbox.extras import needs
from outbox.statements import Plan

with needs("asyncpg"):
    from outbox.drivers import asyncpg_async

T = TypeVar("T")


class AsyncpgOutbox(AsyncOutboxCalls[Any]):
    """`AsyncOutbox` for an `asyncpg.Connection`, or one that a pool of asyncpg lends."""

    async def _run(self, conn: Any, plan: Plan[T]) -> T:
        return await asyncpg_async.run(conn, plan)
