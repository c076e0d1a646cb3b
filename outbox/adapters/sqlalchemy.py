"""The outbox on SQLAlchemy's sessions and connections, in their transactions.

    orders = SQLAlchemyOutbox(producer_group="orders")

    with Session(engine) as session, session.begin():
        session.add(Order(id="o-2", state="paid"))
        orders.send(session, Message("orders", key="o-2", body="paid"))

Each call does what is forgotten otherwise:

- **It flushes the session first.** A message takes its place in the order of its key when it is sent, so the row that
  serialises the key has to be written before. SQLAlchemy would write it at the commit.
- **It lets SQLAlchemy begin.** SQLAlchemy commits only what it began: a message sent on the bare connection of the
  driver got a receipt and was rolled back.

The transaction stays the caller's: a call never commits, and a savepoint that is rolled back takes its messages along.
An error of the database is the driver's own. As after any failed statement, the transaction is over then: roll it back,
or wrap the call in `begin_nested()`.

Statements go to the driver directly, so `echo=True` and events such as `before_cursor_execute` do not show them.

`SQLAlchemyOutbox` needs SQLAlchemy alone. Asynchronous engines need greenlet, which `sqlalchemy[asyncio]` brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from outbox.calls import AsyncOutboxCalls, OutboxCalls
from outbox.drivers import psycopg_async, psycopg_sync
from outbox.errors import InvalidConnectionError
from outbox.extras import needs
from outbox.statements import Plan

with needs("sqlalchemy"):
    from sqlalchemy import Connection, literal, select
    from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
    from sqlalchemy.orm import Session, scoped_session

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

T = TypeVar("T")
AnySession: TypeAlias = Session | scoped_session[Any] | Connection
AnyAsyncSession: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection"

SYNC = "an engine of `create_engine('postgresql+psycopg://…')`"
ASYNC = "an engine of `create_async_engine('postgresql+psycopg://…')`, or of postgresql+asyncpg"


class SQLAlchemyOutbox(OutboxCalls[AnySession]):
    """`Outbox` for a `Session`, a `scoped_session` or a `Connection` of SQLAlchemy.

    Raises from each call, besides what `Outbox` does:
        InvalidConnectionError: it is of another kind, database or driver, or the session is flushing.
    """

    def _run(self, conn: AnySession, plan: Plan[T]) -> T:
        connection = conn if isinstance(conn, Connection) else _connection_of(conn)
        _require(connection.dialect, is_async=False)
        if not connection.in_transaction():
            connection.begin()
        return psycopg_sync.run(connection.connection.driver_connection, plan)  # type: ignore[arg-type]


class AsyncSQLAlchemyOutbox(AsyncOutboxCalls[AnyAsyncSession]):
    """`AsyncOutbox` for an `AsyncSession`, an `async_scoped_session` or an `AsyncConnection` of SQLAlchemy."""

    async def _run(self, conn: AnyAsyncSession, plan: Plan[T]) -> T:
        from sqlalchemy.ext import asyncio as kinds  # noqa: PLC0415  (synchronous services have no greenlet)

        if isinstance(conn, kinds.AsyncConnection):
            connection: AsyncConnection = conn
        elif isinstance(conn, kinds.AsyncSession | kinds.async_scoped_session):
            try:
                await conn.flush()
                connection = await conn.connection()
            except InvalidRequestError as error:
                _refuse(error)
        else:
            _refuse_kind(conn, kinds.AsyncSession | kinds.async_scoped_session | kinds.AsyncConnection)
        _require(connection.dialect, is_async=True)
        if not connection.in_transaction():
            await connection.begin()
        raw = await connection.get_raw_connection()
        if connection.dialect.driver == "psycopg":
            return await psycopg_async.run(raw.driver_connection, plan)  # type: ignore[arg-type]
        return await _run_on_asyncpg(connection, raw.driver_connection, plan)


async def _run_on_asyncpg(connection: AsyncConnection, driver: Any, plan: Plan[T]) -> T:
    """Run a plan after SQLAlchemy has begun on the server, which it does with its first statement.

    Until then a message would be committed by itself, and stay when the transaction is rolled back.
    """
    from outbox.drivers import asyncpg_async  # noqa: PLC0415  (an engine of psycopg needs no asyncpg)

    if not driver.is_in_transaction():
        await connection.execute(select(literal(1)))
    return await asyncpg_async.run(driver, plan)


def _connection_of(session: object) -> Connection:
    """Write what the session holds back, and return the connection of its transaction."""
    if not isinstance(session, Session | scoped_session):
        _refuse_kind(session, AnySession)
    try:
        _require(session.get_bind().dialect, is_async=False)
        session.flush()
        connection: Connection = session.connection()
    except InvalidRequestError as error:
        _refuse(error)
    return connection


def _require(dialect: Any, *, is_async: bool) -> None:
    """Refuse a database or a driver for which there is none in `outbox.drivers`."""
    drivers = {"psycopg", "asyncpg"} if is_async else {"psycopg"}
    if (dialect.name, dialect.is_async) != ("postgresql", is_async) or dialect.driver not in drivers:
        kind = f"{dialect.name}+{dialect.driver}{' (async)' if dialect.is_async else ''}"
        raise InvalidConnectionError(f"conn: is of {kind}; allowed here: {ASYNC if is_async else SYNC}")


def _refuse(error: InvalidRequestError) -> NoReturn:
    """Name the way out where SQLAlchemy's own text has none."""
    if isinstance(error, UnboundExecutionError):
        raise InvalidConnectionError(
            "conn: is a session of several engines, or of none; allowed: after `session.flush()`, give "
            "`session.connection(bind_arguments=…)` of the database that has the schema outbox"
        ) from error
    if "already flushing" in str(error):
        raise InvalidConnectionError(
            "conn: is a session that is flushing, so what it writes has no order yet; allowed: send in `before_commit` "
            "instead of `before_flush` or `after_flush`"
        ) from error
    raise error


def _refuse_kind(given: object, allowed: Any) -> NoReturn:
    names = ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in map(_plain, allowed.__args__))
    raise InvalidConnectionError(
        f"conn: is {type(given).__module__}.{type(given).__qualname__}; allowed here: {names}"
    )


def _plain(kind: Any) -> type:
    plain: type = getattr(kind, "__origin__", kind)
    return plain
