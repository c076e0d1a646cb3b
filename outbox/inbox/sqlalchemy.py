"""Listeners that write by a Session of SQLAlchemy, in the transaction that also records the message.

    engine = create_engine("postgresql+psycopg://points@host/points")

    def add_points(session, message):
        session.add(Points(customer=message.key.decode(), points=10))
        return ConsumeResult.SUCCESS

    PushConsumer("points", {"orders": "*"}, session_listener(add_points, engine), dsn=connections_of(engine), …)

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

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from outbox.errors import ConfigurationError, ListenerError
from outbox.inbox.results import is_success
from outbox.inbox.sessions import is_infrastructure

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
    engine: sqlalchemy.Engine,
    *,
    sessions: Callable[..., Any] = Session,
) -> Callable[Concatenate[PsycopgConnection, P], R]:
    """Make a listener of a function that gets a Session instead of a connection.

    Args:
        listener: called with a Session and a message, or with what a batch listener gets.
        engine: whose dialect and events the session uses; see `connections_of`.
        sessions: makes the Session, such as a `sessionmaker` of the application.

    Raises:
        ConfigurationError: The engine is asynchronous, or of another driver.
    """
    _require_psycopg(engine)

    def called(conn: PsycopgConnection, /, *args: P.args, **options: P.kwargs) -> R:
        try:
            with _joined(engine, conn) as connection:
                return _run(sessions, connection, lambda session: listener(session, *args, **options))
        except DBAPIError as error:
            # The consumer knows a server that is away, or a deadlock, by psycopg's error.
            if isinstance(error.orig, psycopg.Error) and is_infrastructure(error.orig):
                raise error.orig from error
            raise

    return called


def _run(sessions: Callable[..., Any], connection: sqlalchemy.Connection, call: Callable[[Any], R]) -> R:
    """Call a listener with a session on a connection, and flush what it added if it succeeded."""
    session = sessions(bind=connection, join_transaction_mode="create_savepoint")
    may_commit = False

    def refuse(_: object) -> None:
        # Releasing a savepoint of `begin_nested` is a commit, too.
        if not may_commit and not session.in_nested_transaction():
            raise ListenerError(
                "commit() of the listener's Session ended nothing; leave out commit() and `with session.begin():`, or "
                "use `with session.begin_nested():`: the consumer commits after the listener returns"
            )

    event.listen(session, "before_commit", refuse)
    try:
        result = call(session)
        if is_success(result):
            may_commit = True
            session.commit()
    except BaseException:
        # The consumer rolls back all of it; an error on the way must not hide the one that counts.
        with suppress(Exception):
            session.close()
        raise
    session.close()
    return result


@contextmanager
def _joined(engine: sqlalchemy.Engine, conn: PsycopgConnection) -> Iterator[sqlalchemy.Connection]:
    """Lend a connection that is in a transaction to SQLAlchemy; the transaction is not ended."""
    if getattr(engine.dialect, "server_version_info", None) is None:
        engine.connect().close()  # its dialect learns what the server can do
    pool = StaticPool(lambda: conn, dialect=engine.dialect, reset_on_return=None)  # type: ignore[arg-type]
    connection = sqlalchemy.Connection(engine, connection=pool.connect())
    connection.begin()
    try:
        yield connection
    finally:
        with _rollback_does_nothing(conn):
            connection.close()


@contextmanager
def _rollback_does_nothing(conn: PsycopgConnection) -> Iterator[None]:
    """Let SQLAlchemy end what it takes for its own transaction."""
    own = vars(conn)
    before = own.get("rollback")
    own["rollback"] = lambda: None
    try:
        yield
    finally:
        if before is None:
            del own["rollback"]
        else:
            own["rollback"] = before


def _require_psycopg(engine: sqlalchemy.Engine) -> None:
    driver = getattr(getattr(engine, "dialect", None), "driver", None)
    if driver != _DRIVER or engine.dialect.is_async:
        raise ConfigurationError(
            f"engine: {engine!r}; allowed: what `create_engine('postgresql+psycopg://…')` returns"
        )
