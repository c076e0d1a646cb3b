"""The outbox on asyncpg's connections: what holds beyond the contract of all adapters."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from outbox import AsyncOutbox, Message
from outbox.adapters.asyncpg import AsyncpgOutbox
from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox
from outbox.errors import InvalidConnectionError, NoTransactionError
from outbox.testing import SentMessages
from tests.support.plain_inserts import Connection

pytestmark = pytest.mark.feature("H-17")
PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "how-to" / "asyncpg.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
MESSAGE = Message("orders", key="o-1", body=b"b", headers={"a": "b"}, tags=["x"])


def run(dsn: str, work: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """Run work on a connection of asyncpg."""

    async def connected() -> Any:
        conn = await asyncpg.connect(dsn, **options)
        try:
            return await work(conn)
        finally:
            await conn.close()

    return asyncio.run(connected())


class Shouting(asyncpg.Record):  # type: ignore[misc]
    """An application's own rows."""

    def __iter__(self) -> Any:
        raise AssertionError("the application's rows are its own")


def test_codecs_and_rows_of_the_application_do_not_matter(database: str, conn: Connection) -> None:
    async def work(mine: Any) -> Any:
        for name in ("json", "jsonb"):
            await mine.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        for name in ("uuid", "int8", "int4", "int2", "timestamptz", "interval"):
            await mine.set_type_codec(name, encoder=repr, decoder=str, schema="pg_catalog")
        async with mine.transaction():
            outbox = AsyncpgOutbox(producer_group="orders")
            half = await outbox.prepare(mine, MESSAGE, check_after=9)
            await outbox.commit(mine, half)
            return [half, *await outbox.send_many(mine, [MESSAGE, MESSAGE])]

    receipts = run(database, work, record_class=Shouting)
    assert {(type(each.id), type(each.message_id)) for each in receipts} == {(int, UUID)}
    [sent] = conn.execute("SELECT DISTINCT body, headers, tags FROM outbox.message").fetchall()
    assert sent == (b"b", {"a": "b"}, ["x"])


def test_without_a_cache_of_statements_it_works(database: str, conn: Connection) -> None:
    """As behind a pooler that gives each transaction another session."""

    async def work(mine: Any) -> Any:
        async with mine.transaction():
            for _ in range(3):
                await AsyncpgOutbox().send(mine, MESSAGE)
        return await mine.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE statement ~ 'outbox'")

    assert run(database, work, statement_cache_size=0) == 0
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (3,)


def test_a_task_that_is_cancelled_in_the_middle_sends_nothing(database: str, conn: Connection) -> None:
    async def work(mine: Any) -> None:
        async def send() -> None:
            async with mine.transaction():
                await AsyncpgOutbox().send(mine, MESSAGE)

        conn.execute("BEGIN")
        conn.execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
        task = asyncio.create_task(send())
        blocked = """
            SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
                           WHERE NOT granted AND datname = current_database())
        """
        while not conn.execute(blocked).fetchone()[0]:  # type: ignore[index]
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        conn.execute("ROLLBACK")
        async with mine.transaction():
            await AsyncpgOutbox().send(mine, Message("orders", body=b"after"))

    run(database, work)
    assert conn.execute("SELECT body FROM outbox.message").fetchall() == [(b"after",)]


def test_the_schema_of_a_session_does_not_matter(database: str, conn: Connection) -> None:
    """The names of types are qualified, so an own type of such a name is not taken for PostgreSQL's."""

    async def work(mine: Any) -> None:
        await mine.execute(
            "CREATE SCHEMA mine CREATE TABLE int4 (id text); SET search_path = mine, pg_catalog"
        )
        async with mine.transaction():
            await AsyncpgOutbox().send(mine, Message("orders", key="k", queue=3))

    run(database, work)
    assert conn.execute("SELECT queue FROM outbox.message").fetchall() == [(3,)]


def test_other_connections_name_the_outbox_for_them(database: str) -> None:
    async def work(mine: Any) -> None:
        with pytest.raises(
            InvalidConnectionError, match=r"use outbox\.adapters\.asyncpg\.AsyncpgOutbox for it"
        ):
            await AsyncOutbox().send(mine, MESSAGE)
        with pytest.raises(
            NoTransactionError, match=r"allowed: send inside `async with conn\.transaction\(\):`"
        ):
            await AsyncpgOutbox().send(mine, MESSAGE)

    run(database, work)


def test_an_engine_of_asyncpg_begins_before_the_message(database: str, conn: Connection) -> None:
    """SQLAlchemy begins on the server with its first statement: before, a message would be committed by itself."""

    async def work() -> None:
        engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://", 1))
        async with engine.connect() as connection:
            await AsyncSQLAlchemyOutbox().send(connection, MESSAGE)
            assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (0,)
            await connection.rollback()
        await engine.dispose()

    asyncio.run(work())
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (0,)


def test_the_page_of_asyncpg_runs_as_it_stands(database: str, conn: Connection) -> None:
    conn.execute("CREATE TABLE orders AS SELECT 'o-2'::text AS id, 'new'::text AS state")
    with psycopg.connect(database, autocommit=True) as watching:
        sent = SentMessages(watching)
        url = database.replace("postgresql://", "postgresql+asyncpg://", 1)
        for example in EXAMPLES:
            exec(example, {"dsn": database, "url": url})
        assert [each.body for each in sent.assert_sent("orders", key="o-2", count=2)] == [b"paid", b"sent"]
    assert conn.execute("SELECT state FROM orders").fetchone() == ("sent",)
