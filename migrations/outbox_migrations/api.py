"""Creates, checks and prints the schema: what `outbox db` and tests call."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import resources

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from outbox_migrations.env_names import SCHEMA, VERSION_TABLE

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
        """Whether nothing is left to do."""
        return self.current == self.head


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


def _engine(dsn: str) -> sa.Engine:
    # psycopg parses the DSN itself: every form that libpq takes works, and no URL has to be rebuilt.
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=sa.NullPool
    )


def status(dsn: str) -> Revision:
    """Read the database's revision without changing anything."""
    engine = _engine(dsn)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "version_table_schema": SCHEMA}
        )
        return Revision(context.get_current_revision(), head())


def upgrade(dsn: str, target: str = "head") -> Revision:
    """Bring the schema to the head, in one transaction, one upgrader at a time; return where it stood before.

    Args:
        dsn: the database.
        target: an older revision to stop at, for tests of an upgrade from it. A schema that is newer stays as it is.

    Raises:
        UnsupportedServerError: the server is older than PostgreSQL 14.
        UnknownRevisionError: the schema is of a revision that this package does not know; nothing has changed.
        UpgradeBlockedError: open transactions use a table that a migration changes; nothing has changed.
    """
    config = _config()
    with _engine(dsn).begin() as connection:
        version = connection.execute(
            sa.text("SELECT current_setting('server_version_num')::int")
        ).scalar_one()
        if version < MINIMUM_SERVER:
            raise UnsupportedServerError(
                f"PostgreSQL {version // 10000} is too old: the outbox needs 14 or newer"
            )
        # Two services that start together both upgrade: the second waits here and finds the work done.
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtextextended('outbox.upgrade', 0))"))
        connection.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "version_table_schema": SCHEMA}
        )
        before = Revision(context.get_current_revision(), head())
        _require_known(before.current)
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, target)
        except psycopg.errors.LockNotAvailable as error:  # as it is: migrations use the driver's own cursor
            raise UpgradeBlockedError(
                BLOCKED.format(head=head(), reason=error.diag.message_primary)
            ) from error
    return before


def sql(from_revision: str | None = None) -> str:
    """Return the SQL that an upgrade would run, for people who apply it themselves.

    Raises:
        UnknownRevisionError: this package does not contain `from_revision`.
    """
    _require_known(from_revision)
    config = _config()
    out = io.StringIO()
    config.output_buffer = out
    with redirect_stdout(out):
        command.upgrade(config, f"{from_revision}:head" if from_revision else "head", sql=True)
    return out.getvalue()
