"""Listeners that write by a Session of SQLAlchemy, in the transaction that also records the message.

    engine = create_engine("postgresql+psycopg://points@host/points")

    def add_points(session, message):
        session.add(Points(customer=message.key.decode(), points=10))
        return ConsumeResult.SUCCESS

    PushConsumer("points", {"orders": "*"}, session_listener(add_points, engine), dsn=connections_of(engine), …)

An `async def` gets an `AsyncSession`, and an engine of `create_async_engine("postgresql+psycopg://…")`. Its `dsn` is a
text: the consumer's own connections are not asynchronous. asyncpg cannot join: a transaction belongs to one session at
PostgreSQL, and the consumer's is one of psycopg.

The session joins the transaction of the listener's connection; the consumer alone commits it. What the session does
inside is between a savepoint and its release, so:

- `session.rollback()` takes back what the session wrote, and nothing else: the message stays taken over. It may return
  SUCCESS or DISCARD afterwards. A flush that fails does the same by itself.
- `session.commit()`, and `with session.begin():`, raise and end nothing: what they seem to promise is not true before
  the consumer commits. `begin_nested()` works.
- What the listener added is flushed after it returned SUCCESS, and an error of that is a failed attempt.

When the process dies, or PostgreSQL ends the transaction, between any two of savepoint, flush, release and the
consumer's commit: nothing is committed, and the message comes again, as without a session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import psycopg
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import greenlet_spawn

from outbox.errors import ConfigurationError, ListenerError
from outbox.inbox.async_listeners import is_async
from outbox.inbox.results import is_success
from outbox.inbox.sessions import is_infrastructure

if TYPE_CHECKING:  # SQLAlchemy needs greenlet for it, which only asynchronous applications install
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

P = ParamSpec("P")
R = TypeVar("R")
PsycopgConnection = psycopg.Connection[Any]
_DRIVER = "psycopg"


def connections_of(engine: sqlalchemy.Engine) -> Callable[[], PsycopgConnection]:
    """Return what opens connections for a consumer, as the engine opens its own: its URL, events and adapters.

    They are detached from the engine's pool, so they do not count in its limits.

    Args:
        engine: of `postgresql+psycopg`.

    Raises:
        ConfigurationError: The engine is asynchronous, or of another driver.
    """
    _require_psycopg(engine)

    def connect() -> PsycopgConnection:
        pooled = engine.raw_connection()
        connection: PsycopgConnection = pooled.driver_connection  # type: ignore[assignment]
        pooled.detach()
        return connection

    return connect


def session_listener(
    listener: Callable[Concatenate[Any, P], R],
    engine: sqlalchemy.Engine | AsyncEngine,
    *,
    sessions: Callable[..., Any] | None = None,
) -> Callable[Concatenate[Any, P], R]:
    """Make a listener of a function that gets a Session instead of a connection.

    Args:
        listener: called with a Session and a message, or with what a batch listener gets; an `async def` with an
            AsyncSession.
        engine: whose dialect and events the session uses; see `connections_of`. Of an `async def`: asynchronous.
        sessions: makes the Session, such as a `sessionmaker` of the application, or an `async_sessionmaker`.

    Raises:
        ConfigurationError: The engine is of another driver, or is asynchronous and the listener is not, or vice versa.
    """
    if is_async(listener):
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415

        _require_psycopg(engine, is_async=True)
        awaited = cast("Callable[Concatenate[Any, P], Awaitable[Any]]", listener)
        made = _async_listener(awaited, cast("AsyncEngine", engine), sessions or AsyncSession)
        return cast("Callable[Concatenate[Any, P], R]", made)
    _require_psycopg(engine)
    plain = cast("sqlalchemy.Engine", engine)

    def called(conn: PsycopgConnection, /, *args: P.args, **options: P.kwargs) -> R:
        with _psycopgs_errors(), _joined(plain, conn) as connection:
            session = (sessions or Session)(bind=connection, join_transaction_mode="create_savepoint")
            may_commit = _refuse_commits(session)
            try:
                result = listener(session, *args, **options)
                if is_success(result):
                    may_commit.append(True)
                    session.commit()
            except BaseException:
                # The consumer rolls back all of it; an error on the way must not hide the one that counts.
                with suppress(Exception):
                    session.close()
                raise
            session.close()
            return result

    return called


def _async_listener(
    listener: Callable[Concatenate[Any, P], Awaitable[R]], engine: AsyncEngine, sessions: Callable[..., Any]
) -> Callable[Concatenate[Any, P], Awaitable[R]]:

    async def called(conn: psycopg.AsyncConnection[Any], /, *args: P.args, **options: P.kwargs) -> R:
        with _psycopgs_errors():
            async with _joined_async(engine, conn) as connection:
                session = sessions(bind=connection, join_transaction_mode="create_savepoint")
                may_commit = _refuse_commits(session.sync_session)
                try:
                    result = await listener(session, *args, **options)
                    if is_success(result):
                        may_commit.append(True)
                        await session.commit()
                except BaseException:
                    with suppress(Exception):
                        await session.close()
                    raise
                await session.close()
                return result

    return called


@contextmanager
def _psycopgs_errors() -> Iterator[None]:
    """Raise psycopg's error where it counts: the consumer knows a server that is away, or a deadlock, by that."""
    try:
        yield
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error) and is_infrastructure(error.orig):
            raise error.orig from error
        raise


def _refuse_commits(session: Any) -> list[bool]:
    """Refuse commits of a session until something is in the list that is returned."""
    may_commit: list[bool] = []

    def refuse(_: object) -> None:
        # Releasing a savepoint of `begin_nested` is a commit, too.
        if not may_commit and not session.in_nested_transaction():
            raise ListenerError(
                "commit() of the listener's Session ended nothing; leave out commit() and `with session.begin():`, or "
                "use `with session.begin_nested():`: the consumer commits after the listener returns"
            )

    event.listen(session, "before_commit", refuse)
    return may_commit


@contextmanager
def _joined(engine: sqlalchemy.Engine, conn: PsycopgConnection) -> Iterator[sqlalchemy.Connection]:
    """Lend a connection that is in a transaction to SQLAlchemy; the transaction is not ended."""
    if getattr(engine.dialect, "server_version_info", None) is None:
        engine.connect().close()  # its dialect learns what the server can do
    connection = _begun(engine, conn)
    try:
        yield connection
    finally:
        with _rollback_does_nothing(conn, lambda: None):
            connection.close()


@asynccontextmanager
async def _joined_async(
    engine: AsyncEngine, conn: psycopg.AsyncConnection[Any]
) -> AsyncIterator[AsyncConnection]:
    """Do the same with an asynchronous connection."""
    from sqlalchemy.ext.asyncio import AsyncConnection  # noqa: PLC0415

    async def lent() -> psycopg.AsyncConnection[Any]:
        return conn

    def begun() -> sqlalchemy.Connection:
        return _begun(engine.sync_engine, engine.dialect.loaded_dbapi.connect(async_creator_fn=lent))

    if getattr(engine.dialect, "server_version_info", None) is None:
        async with engine.connect():
            pass
    connection = await greenlet_spawn(begun)
    try:
        yield AsyncConnection(engine, connection)
    finally:
        with _rollback_does_nothing(conn, lent):
            await greenlet_spawn(connection.close)


def _begun(engine: sqlalchemy.Engine, conn: Any) -> sqlalchemy.Connection:
    """Return a connection of SQLAlchemy on one of the driver that is in a transaction."""
    pool = StaticPool(lambda: conn, dialect=engine.dialect, reset_on_return=None)
    connection = sqlalchemy.Connection(engine, connection=pool.connect())
    connection.begin()
    return connection


@contextmanager
def _rollback_does_nothing(conn: object, nothing: Callable[[], Any]) -> Iterator[None]:
    """Let SQLAlchemy end what it takes for its own transaction."""
    own = vars(conn)
    before = {name: own[name] for name in ("rollback",) if name in own}
    own["rollback"] = nothing
    try:
        yield
    finally:
        del own["rollback"]
        own.update(before)


def _require_psycopg(engine: object, *, is_async: bool = False) -> None:
    dialect = getattr(engine, "dialect", None)
    if getattr(dialect, "driver", None) == _DRIVER and bool(getattr(dialect, "is_async", None)) is is_async:
        return
    maker = "create_async_engine" if is_async else "create_engine"
    raise ConfigurationError(
        f"engine: {engine!r}; allowed {'for an `async def`' if is_async else 'for a listener that is no `async def`'}: "
        f"what `{maker}('postgresql+psycopg://…')` returns. Another driver, such as asyncpg, cannot join the "
        "transaction that records the message: it is one of psycopg"
    )
