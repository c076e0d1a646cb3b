"""Runs scripts on a connection of the caller, in the transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import psycopg
import sqlalchemy as sa
from psycopg.rows import tuple_row

from outbox_migrations import sql_files

CallersConnection: TypeAlias = psycopg.Connection[Any] | sa.Connection
NOT_LOCKED = ("55P03", "40P01")
"""No lock in time, or a deadlock: both have changed nothing, and another attempt may succeed."""
SETTINGS = (
    "role",
    "search_path",
    "row_security",
    "standard_conforming_strings",
    "lock_timeout",
    "client_encoding",
)
"""What role.sql and settings.sql set."""
ALLOWED = (
    "a psycopg.Connection, or a sqlalchemy.Connection of postgresql+psycopg or postgresql+asyncpg; from an "
    "AsyncConnection of SQLAlchemy: await connection.run_sync(upgrade_in)"
)


class Runner(NamedTuple):
    """How scripts are run on a connection."""

    run: Callable[[str], Any]
    """Runs a script of many statements."""
    read: Callable[[str], Any]
    """Returns the first value of one statement's result, or None."""


class CallersConnectionError(RuntimeError):
    """Migrations cannot run on what the caller gave; nothing has changed."""


def runner(connection: CallersConnection | Any) -> Runner:
    """Return what runs scripts on a connection.

    The driver's own cursor is used, without parameters: a simple query may hold many statements, and neither `:name`
    nor `%` in one is a parameter then.

    Raises:
        CallersConnectionError: it is of another kind, of another database, or in autocommit.
    """
    if isinstance(connection, psycopg.Connection):
        found = _on_psycopg(connection)
    elif isinstance(connection, sa.Connection):
        kind = (connection.dialect.name, connection.dialect.driver)
        if kind not in {("postgresql", "psycopg"), ("postgresql", "asyncpg")}:
            raise CallersConnectionError(f"connection: is of {'+'.join(kind)}; allowed: {ALLOWED}")
        if not connection.in_transaction():
            connection.begin()  # as any statement does; SQLAlchemy commits only what it began
        found = _on_asyncpg(connection) if kind[1] == "asyncpg" else _on_cursors(connection)
    else:
        given = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise CallersConnectionError(f"connection: is {given}; allowed: {ALLOWED}")
    _require_transaction(found)
    return found


def _require_transaction(caller: Runner) -> None:
    """Refuse a connection that commits each script by itself: a local setting is gone in the next one."""
    caller.read("SELECT pg_catalog.set_config('outbox.upgrading', 'on', true)")
    if caller.read("SELECT pg_catalog.current_setting('outbox.upgrading', true)") != "on":
        raise CallersConnectionError(
            "connection: is in autocommit, so that an upgrade that fails would stay half done; allowed: "
            "`with connection.transaction():`, `with transaction.atomic():` of Django, or another isolation level"
        )


@contextmanager
def own_settings(caller: Runner) -> Iterator[None]:
    """Have the settings of sql/settings.sql in the block, and those of the caller's transaction again afterwards."""
    before = {name: caller.read(f"SHOW {name}") for name in SETTINGS}
    caller.run(sql_files.text("settings.sql"))

    def restore() -> None:
        for name, value in before.items():
            quoted = value.replace("\\", "\\\\").replace("'", "''")
            caller.read(f"SELECT pg_catalog.set_config('{name}', E'{quoted}', true)")

    try:
        yield
    except BaseException:
        with suppress(Exception):  # a transaction that has failed is rolled back, and its settings with it
            restore()
        raise
    restore()


def _on_psycopg(connection: psycopg.Connection[Any]) -> Runner:
    def run(script: str) -> Any:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(script.encode())
            return _first(cursor)

    return Runner(run, run)


def _on_cursors(connection: sa.Connection) -> Runner:
    def run(script: str) -> Any:
        cursor = connection.connection.cursor()
        try:
            cursor.execute(script)
            return _first(cursor)
        finally:
            cursor.close()

    return Runner(run, run)


def _on_asyncpg(connection: sa.Connection) -> Runner:
    # SQLAlchemy begins on the server with its first statement, and its cursors take one statement at a time.
    connection.exec_driver_sql("SELECT 1")
    driver: Any = connection.connection.dbapi_connection

    def run(script: str) -> Any:
        return driver.run_async(lambda raw: raw.execute(script))

    def read(statement: str) -> Any:
        return driver.run_async(lambda raw: raw.fetchval(statement))

    return Runner(run, read)


def _first(cursor: Any) -> Any:
    row = cursor.fetchone() if cursor.description else None
    found = None if row is None else row[0]
    return found.decode() if isinstance(found, bytes) else found  # bytes: text of a session in SQL_ASCII


def is_lock_timeout(error: Exception) -> bool:
    """Whether a driver's error is that a lock was not had in time, or would never have been had."""
    return getattr(error, "sqlstate", None) in NOT_LOCKED
