"""Creates, checks and prints the schema: what `outbox db` and tests call."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import resources

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from outbox_migrations import sql_files
from outbox_migrations.callers import (
    CallersConnection,
    CallersConnectionError,
    Runner,
    is_lock_timeout,
    runner,
)
from outbox_migrations.env_names import SCHEMA, VERSION_TABLE

__all__ = [
    "CallersConnectionError",
    "Revision",
    "UnknownRevisionError",
    "UnsupportedServerError",
    "UpgradeBlockedError",
    "head",
    "include_name",
    "scripts",
    "sql",
    "status",
    "status_in",
    "upgrade",
    "upgrade_in",
]

MINIMUM_SERVER = 140000  # pg_snapshot functions are older; bloom BRIN and SQL-body functions are not
BLOCKED = (
    "the upgrade to {head} waited for a table that open transactions use, and gave up: {reason}\n"
    "nothing has changed. Run it again; if it fails again, end the transactions that have been open for long: "
    "SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start"
)


class UnsupportedServerError(RuntimeError):
    """The server is too old for the schema."""


class UnknownRevisionError(RuntimeError):
    """The schema is of a revision that this package does not know."""


class UpgradeBlockedError(RuntimeError):
    """Transactions held locks on a table that the upgrade changes, for longer than a migration waits."""


@dataclass(frozen=True)
class Revision:
    """Where a database stands: its revision (None: no schema) and the one that this package brings."""

    current: str | None
    head: str

    @property
    def is_current(self) -> bool:
        """Whether nothing is left to do: the schema is the head, or newer and works with this package."""
        return self.current is not None and self.current >= self.head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(resources.files("outbox_migrations")))
    config.set_main_option("path_separator", "os")
    return config


def head() -> str:
    """Return the newest revision that this package brings."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None  # noqa: S101  (a package without migrations would not be ours)
    return revision


def _require_known(revision: str | None) -> None:
    """Refuse a revision from which there is no way to the head.

    Raises:
        UnknownRevisionError: this package does not contain the revision.
    """
    if revision is None:
        return
    try:
        ScriptDirectory.from_config(_config()).get_revision(revision)
    except CommandError:
        raise UnknownRevisionError(
            f"this version does not know the outbox schema {revision!r} and cannot upgrade it to {head()}\n"
            f"{SCHEMA}.{VERSION_TABLE} was written by another version or by hand: upgrade with the version that made it"
        ) from None


def status(dsn: str) -> Revision:
    """Read the database's revision without changing anything."""
    with psycopg.connect(dsn) as connection:
        return status_in(connection)


def status_in(connection: CallersConnection) -> Revision:
    """Read the revision on a connection of the caller, in its transaction.

    Raises:
        CallersConnectionError: the connection is of another kind or database, or in autocommit.
    """
    return Revision(_current(runner(connection)), head())


def _current(caller: Runner) -> str | None:
    if caller.read(f"SELECT to_regclass('{SCHEMA}.{VERSION_TABLE}')::text") is None:
        return None
    current: str | None = caller.read(f"SELECT version_num FROM {SCHEMA}.{VERSION_TABLE}")  # noqa: S608  (names of ours)
    return current


def _admits(caller: Runner, revision: str) -> bool:
    """Return whether a newer schema works with the software of a revision; see ADR 126."""
    oldest = caller.read(
        f"SELECT to_jsonb(v) ->> 'oldest_software' FROM {SCHEMA}.{VERSION_TABLE} v"  # noqa: S608  (names of ours)
    )
    return oldest is not None and oldest <= revision


def upgrade(dsn: str, target: str = "head") -> Revision:
    """Bring the schema to the head, in one transaction, one upgrader at a time; return where it stood before.

    Args:
        dsn: the database.
        target: an older revision to stop at, for tests of an upgrade from it. A schema that is newer stays as it is,
            also one that is newer than this package if it works with it.

    Raises:
        UnsupportedServerError: the server is older than PostgreSQL 14.
        UnknownRevisionError: the schema is of a revision that this package does not know, and that does not work with
            it; nothing has changed.
        UpgradeBlockedError: open transactions use a table that a migration changes; nothing has changed.
    """
    with psycopg.connect(dsn) as connection:
        return upgrade_in(connection, target)


def upgrade_in(connection: CallersConnection, target: str = "head") -> Revision:
    """Do what `upgrade` does in the transaction of the caller, who commits it; return where the schema stood before.

    May be called in a migration of the host's, as `upgrade_in(op.get_bind())`. An error of the database leaves the
    transaction failed, as any failed statement does: roll it back. Whoever dies before the commit has changed nothing.

    Args:
        connection: of psycopg or SQLAlchemy, see `outbox_migrations.callers`.
        target: the revision to stop at. A schema that is newer stays as it is.

    Raises:
        CallersConnectionError: the connection is of another kind or database, or in autocommit.
        UnsupportedServerError, UnknownRevisionError, UpgradeBlockedError: as for `upgrade`.
    """
    caller = runner(connection)
    version = int(caller.read("SELECT current_setting('server_version_num')"))
    if version < MINIMUM_SERVER:
        raise UnsupportedServerError(
            f"PostgreSQL {version // 10000} is too old: the outbox needs 14 or newer"
        )
    # Two services that start together both upgrade: the second waits here and finds the work done.
    caller.read("SELECT pg_advisory_xact_lock(hashtextextended('outbox.upgrade', 0))::text")
    before = Revision(_current(caller), head())
    if before.current is not None and before.current > before.head and _admits(caller, before.head):
        return before
    for revision in (before.current, None if target == "head" else target):
        _require_known(revision)
    try:
        for script in scripts(before.current, before.head if target == "head" else target):
            caller.run(script)
    except Exception as error:
        if not is_lock_timeout(error):
            raise
        raise UpgradeBlockedError(BLOCKED.format(head=head(), reason=str(error).splitlines()[0])) from error
    return before


def scripts(current: str | None, target: str) -> Iterator[str]:
    """Yield the scripts between two revisions, with the statements that note them; `sql` prints the same."""
    table = f"{SCHEMA}.{VERSION_TABLE}"
    if current is None:
        yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
        yield (
            f"CREATE TABLE IF NOT EXISTS {table} "
            f"(version_num VARCHAR(32) NOT NULL, CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
    directory = ScriptDirectory.from_config(_config())
    for script in reversed([*directory.iterate_revisions(target, "base")]):
        # Revisions are numbers of four digits, so they compare as text.
        if current is not None and script.revision <= current:
            continue
        with sql_files.collected() as scripts:
            script.module.upgrade()
        yield from scripts
        if script.down_revision is None:
            yield f"INSERT INTO {table} (version_num) VALUES ('{script.revision}')"  # noqa: S608
        else:
            yield f"UPDATE {table} SET version_num = '{script.revision}'"  # noqa: S608


def sql(from_revision: str | None = None, to_revision: str | None = None) -> str:
    """Return the SQL that an upgrade would run, for people who apply it themselves.

    Raises:
        UnknownRevisionError: this package does not contain one of the revisions.
    """
    for revision in (from_revision, to_revision):
        _require_known(revision)
    config = _config()
    out = io.StringIO()
    config.output_buffer = out
    target = to_revision or "head"
    with redirect_stdout(out):
        command.upgrade(config, f"{from_revision}:{target}" if from_revision else target, sql=True)
    return out.getvalue()


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Leave the outbox out of what a host's alembic compares: `context.configure(include_name=include_name)`."""
    return not (type_ == "schema" and name == SCHEMA)
