"""Creates, checks and prints the schema: what `outbox db` and tests call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from outbox_migrations import sessions, sql_files
from outbox_migrations.callers import (
    CallersConnection,
    CallersConnectionError,
    Runner,
    is_lock_timeout,
    own_settings,
    runner,
)

__all__ = [
    "CallersConnectionError",
    "Revision",
    "UnknownRevisionError",
    "UnsupportedServerError",
    "UpgradeBlockedError",
    "UpgradeRefusedError",
    "as_transaction",
    "head",
    "include_name",
    "scripts",
    "sql",
    "status",
    "status_in",
    "upgrade",
    "upgrade_in",
]

SCHEMA = "outbox"
MINIMUM_SERVER = 140000  # pg_snapshot functions are older; bloom BRIN and SQL-body functions are not
BOUND = "SET LOCAL lock_timeout = '5s';\n"
"""In front of each script: some end with the session's lock_timeout, which may be none."""
BLOCKED = (
    "the upgrade to {head} waited for a lock that other sessions hold, and gave up: {reason}\n"
    "nothing has changed. Run it again; if it fails again, end the transactions that have been open for long: "
    "SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start"
)


class UnsupportedServerError(RuntimeError):
    """The server is too old for the schema."""


class UnknownRevisionError(RuntimeError):
    """The schema is of a revision that this package does not know."""


class UpgradeBlockedError(RuntimeError):
    """Another upgrade, or transactions that use a table, held locks for longer than an upgrade waits."""


class UpgradeRefusedError(RuntimeError):
    """The database, its schema or a role is not the upgrader's; the text names it and the statement that repairs it."""


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
            "outbox.schema_version was written by another version or by hand: upgrade with the version that made it"
        ) from None


def status(dsn: str) -> Revision:
    """Read the database's revision without changing anything."""
    with sessions.connect(dsn) as connection:
        return status_in(connection)


def status_in(connection: CallersConnection) -> Revision:
    """Read the revision on a connection of the caller, in its transaction.

    Raises:
        CallersConnectionError: the connection is of another kind or database, or in autocommit.
    """
    caller = runner(connection)
    with own_settings(caller):
        return Revision(_current(caller), head())


def _current(caller: Runner) -> str | None:
    """Read the revision; None: there is no outbox, whatever else is called outbox."""
    if not caller.read(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('outbox.schema_version') "
        "AND attname = 'version_num')"
    ):
        return None
    current: str | None = caller.read("SELECT version_num FROM outbox.schema_version")
    return current


def _is_done(caller: Runner, current: str | None, goal: str) -> bool:
    """Return whether nothing is left to do: the schema is newer than the goal, and works with this package (ADR 22).

    Raises:
        UnknownRevisionError: this package does not know the schema's revision, and that does not work with it.
    """
    if current is not None and current > head():
        oldest = caller.read("SELECT to_jsonb(v) ->> 'oldest_software' FROM outbox.schema_version v")
        if oldest is not None and oldest <= head():
            return True
    _require_known(current)
    return current is not None and current >= goal


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
        UpgradeRefusedError: the database, its schema or a role is not the upgrader's; nothing has changed.
        UpgradeBlockedError: another upgrade is under way, or open transactions use a table that a migration changes;
            nothing has changed.
    """
    with sessions.connect(dsn) as connection:
        return upgrade_in(connection, target)


def upgrade_in(connection: CallersConnection, target: str = "head") -> Revision:
    """Do what `upgrade` does in the transaction of the caller, who commits it; return where the schema stood before.

    May be called in a migration of the host's, as `upgrade_in(op.get_bind())`. Afterwards the transaction has its own
    role and settings again. An error of the database leaves the transaction failed, as any failed statement does: roll
    it back. Whoever dies before the commit has changed nothing.

    Args:
        connection: of psycopg or SQLAlchemy, see `outbox_migrations.callers`.
        target: the revision to stop at. A schema that is newer stays as it is.

    Raises:
        CallersConnectionError: the connection is of another kind or database, or in autocommit.
        UnsupportedServerError, UnknownRevisionError, UpgradeRefusedError, UpgradeBlockedError: as for `upgrade`.
    """
    caller = runner(connection)
    with own_settings(caller):
        return _upgraded(caller, target)


def _upgraded(caller: Runner, target: str) -> Revision:
    version = int(caller.read("SHOW server_version_num"))
    if version < MINIMUM_SERVER:
        raise UnsupportedServerError(
            f"PostgreSQL {version // 10000} is too old: the outbox needs 14 or newer"
        )
    _require_known(None if target == "head" else target)
    goal = head() if target == "head" else target
    before = Revision(_current(caller), head())
    if _is_done(caller, before.current, goal):
        return before
    try:
        caller.run(sql_files.text("role.sql"))
        _refuse(caller)
        # Of two services that start together one does the work, and the other one finds it done.
        caller.run(sql_files.text("turn.sql"))
        _refuse(caller)
        before = Revision(_current(caller), head())
        if not _is_done(caller, before.current, goal):
            caller.run(BOUND)
            caller.run(sql_files.text("locks.sql"))
            for script in _between(before.current, goal):
                caller.run(BOUND)
                caller.run(script)
    except Exception as error:
        if not is_lock_timeout(error):
            raise
        raise UpgradeBlockedError(BLOCKED.format(head=head(), reason=str(error).splitlines()[0])) from error
    return before


def _refuse(caller: Runner) -> None:
    refusal: str | None = caller.read(sql_files.text("refusal.sql"))
    if refusal is not None:
        raise UpgradeRefusedError(refusal)


def _between(current: str | None, target: str) -> Iterator[str]:
    """Yield the scripts between two revisions, with the statements that note them."""
    directory = ScriptDirectory.from_config(_config())
    for script in reversed([*directory.iterate_revisions(target, "base")]):
        # Revisions are numbers of four digits, so they compare as text.
        if current is not None and script.revision <= current:
            continue
        with sql_files.collected() as scripts:
            script.module.upgrade()
        yield from scripts
        if script.down_revision is None:
            yield f"INSERT INTO outbox.schema_version (version_num) VALUES ('{script.revision}');\n"  # noqa: S608
        else:
            yield f"UPDATE outbox.schema_version SET version_num = '{script.revision}';\n"  # noqa: S608


def scripts(current: str | None, target: str) -> Iterator[str]:
    """Yield all that an upgrade between two revisions runs in one transaction, for those who run it themselves."""
    yield from (sql_files.text("settings.sql"), sql_files.text("role.sql"))
    yield from (_refusing(), sql_files.text("turn.sql"), _refusing())
    for script in (sql_files.text("locks.sql"), *_between(current, target)):
        yield BOUND
        yield script


def _refusing() -> str:
    """Return refusal.sql as a statement that fails."""
    return (
        f"DO $refuse$\nDECLARE\n    refusal text := (\n{sql_files.text('refusal.sql')}    );\nBEGIN\n"
        "    IF refusal IS NOT NULL THEN\n        RAISE EXCEPTION '%', refusal;\n    END IF;\nEND $refuse$;\n"
    )


def as_transaction(scripts: Iterable[str]) -> str:
    """Return scripts as one that runs in a transaction."""
    return "\n".join(["BEGIN;\n", *scripts, "COMMIT;\n"])


def sql(from_revision: str | None = None, to_revision: str | None = None) -> str:
    """Return the SQL that an upgrade would run, for people who apply it themselves.

    Raises:
        UnknownRevisionError: this package does not contain one of the revisions.
    """
    for revision in (from_revision, to_revision):
        _require_known(revision)
    return as_transaction(scripts(from_revision, to_revision or head()))


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Leave the outbox out of what a host's alembic compares: `context.configure(include_name=include_name)`."""
    return not (type_ == "schema" and name == SCHEMA)
