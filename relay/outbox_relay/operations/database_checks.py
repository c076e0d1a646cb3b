"""Whether a database is fit for the outbox: schema, partitions, roles, and settings that its promises rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row

from outbox.statements import Statements
from outbox_relay.database import rights, schema
from outbox_relay.operations import partitions
from outbox_relay.text.formatting import count, seconds

STATEMENTS = Statements("outbox_relay/operations/database_checks.sql")
OLDEST_SERVER = 140000
ROLES = (
    "outbox_producer",
    "outbox_relay",
    "outbox_checker",
    "outbox_consumer",
    "outbox_etl",
    "outbox_reader",
    "outbox_operator",
    "outbox_trusted_producer",
)
SHOWN = 5
"""Objects that a finding names at most."""
SOON_S = 86_400.0

Level = Literal["ok", "warning", "FAILED"]


@dataclass(frozen=True)
class Check:
    """One check: what was found and, unless it is ok, the command that repairs it."""

    name: str
    level: Level
    found: str
    repair: str | None = None


def run(conn: psycopg.Connection[Any]) -> list[Check]:
    """Check everything; change nothing."""
    return list(_checks(conn))


def _checks(conn: psycopg.Connection[Any]) -> Iterator[Check]:
    with conn.cursor(row_factory=dict_row) as cursor:
        server = cursor.execute(STATEMENTS["server"]).fetchone() or {}
    yield _version(server["version"])
    yield _encoding(server["encoding"])
    yield _primary(server)
    yield from _durability(server, conn.info.dbname)
    current = allowed("schema", lambda: _schema(conn))
    yield current
    if current.level == "ok":
        yield allowed("partitions", lambda: _partitions(partitions.read(conn)))
        yield allowed("ids", lambda: _ids(partitions.read(conn)))
        yield allowed("default partition", lambda: _no_default(conn))
        yield allowed("owner", lambda: _owner(conn))
        yield allowed("functions", lambda: _functions(conn))
        yield allowed("row security", lambda: _row_security(conn))
    yield roles(conn, upgraded=current.level == "ok")


def allowed(name: str, check: Callable[[], Check]) -> Check:
    """Return what a check finds; where the login may not read it, a failed one that names the right."""
    try:
        return check()
    except psycopg.errors.InsufficientPrivilege as error:
        return denied(name, error)


def denied(name: str, error: psycopg.Error) -> Check:
    """Return the check that failed because the login may not read what it checks."""
    return Check(name, "FAILED", error.diag.message_primary or str(error), rights.repair(error))


def _version(version: int) -> Check:
    found = f"PostgreSQL {version // 10000}.{version % 10000}"
    if version >= OLDEST_SERVER:
        return Check("server", "ok", found)
    return Check(
        "server", "FAILED", f"{found}: the outbox needs 14 or newer", "upgrade the server (pg_upgrade)"
    )


def _encoding(encoding: str) -> Check:
    if encoding == "UTF8":
        return Check("encoding", "ok", encoding)
    return Check(
        "encoding",
        "FAILED",
        f"{encoding}; expected UTF8, in which keys, headers and names can be stored",
        "make a database that has it, and restore a dump of this one there: "
        "CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'",
    )


def _primary(server: dict[str, Any]) -> Check:
    if server["standby"]:
        return Check("primary", "FAILED", "a standby: it takes no writes", "point --dsn at the primary")
    if server["read_only"] == "on":
        return Check(
            "primary",
            "FAILED",
            "default_transaction_read_only is on",
            "ALTER SYSTEM RESET default_transaction_read_only",
        )
    return Check("primary", "ok", "a primary, writable")


def _durability(server: dict[str, Any], database: str) -> Iterator[Check]:
    if server["fsync"] == "on":
        yield Check("fsync", "ok", "on")
    else:
        yield Check(
            "fsync",
            "FAILED",
            "off: a crash can lose what is already published",
            "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
        )
    if server["full_page_writes"] != "on":
        yield Check(
            "full_page_writes",
            "warning",
            "off: safe only on storage that never tears a page",
            "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
        )
    level = server["synchronous_commit"]
    if level == "off":
        yield Check(
            "synchronous_commit",
            "warning",
            f"off by default ({server['synchronous_commit_source']}): a crash can undo a commit that the application "
            "relies on; the relay publishes nothing that can still be undone",
            f'ALTER DATABASE "{database}" SET synchronous_commit = on',
        )
    else:
        yield Check("synchronous_commit", "ok", level)


def _schema(conn: psycopg.Connection[Any]) -> Check:
    try:
        found_schema = schema.require_current(conn)
    except schema.SchemaError as error:
        found, _, repair = str(error).partition("\n")
        return Check("schema", "FAILED", found, repair.removeprefix("run: "))
    if found_schema.is_newer:
        return Check(
            "schema",
            "warning",
            f"revision {found_schema.revision}, newer than the {schema.REVISION} that this version knows; it works "
            f"with {found_schema.oldest_software} or newer",
            schema.UPGRADE_SOFTWARE,
        )
    return Check("schema", "ok", f"revision {schema.REVISION}")


def _partitions(found: partitions.Partitions) -> Check:
    repair = "outbox db partitions --ensure 7"
    left = found.seconds_until(found.newest_id + found.ids_left)
    room = f"{found.ahead} ahead, room for {count(found.ids_left)} ids" + (
        f", {seconds(left)} at the present rate" if left is not None else ""
    )
    if not found.has_current:
        return Check("partitions", "FAILED", f"none for id {found.newest_id + 1}: inserts fail", repair)
    if found.ahead < 1:
        return Check("partitions", "FAILED", f"the next one is missing ({room})", repair)
    if found.ahead < 2 or (left is not None and left < SOON_S):
        return Check("partitions", "warning", room, repair)
    return Check("partitions", "ok", room)


def _ids(found: partitions.Partitions) -> Check:
    if not found.taken:
        return Check("ids", "ok", f"{count(found.newest_id)} given out")
    return Check(
        "ids",
        "warning",
        f"{count(found.taken)} ids of the current partition were taken without a message: "
        "large inserts were rolled back, or a login calls nextval('outbox.position')",
        "find it among the members of outbox_producer: SELECT usename, query FROM pg_stat_activity",
    )


def _no_default(conn: psycopg.Connection[Any]) -> Check:
    row = conn.execute(partitions.STATEMENTS["has_default"]).fetchone()
    if row and row[0]:
        return Check(
            "default partition",
            "FAILED",
            "there is one: it forbids DETACH CONCURRENTLY and makes each new partition wait for a scan of it",
            "move its rows out and drop it",
        )
    return Check("default partition", "ok", "none")


def owner(conn: psycopg.Connection[Any]) -> str | None:
    """Return the owner of the schema, or None if there is no schema."""
    row = conn.execute(STATEMENTS["owner"]).fetchone()
    return None if row is None else str(row[0])


def _owner(conn: psycopg.Connection[Any]) -> Check:
    its_owner = owner(conn)
    found = conn.execute(STATEMENTS["others_objects"]).fetchall()
    if not found:
        return Check("owner", "ok", f"{its_owner} owns the schema and all that is in it")
    named = [f"{name} belongs to {other}" for name, other in found if name is not None]
    named += [f"{other} may add to it" for name, other in found if name is None]
    return Check(
        "owner",
        "FAILED",
        f"the schema belongs to {its_owner}, but {_some(named)}: who owns an object can replace and drop it",
        f'as a superuser: ALTER … OWNER TO "{its_owner}" for each, or drop it; '
        "REVOKE CREATE ON SCHEMA outbox FROM who may add to it",
    )


def _functions(conn: psycopg.Connection[Any]) -> Check:
    found = conn.execute(STATEMENTS["strangers_functions"]).fetchall()
    if not found:
        return Check("functions", "ok", "none of strangers is called")
    return Check(
        "functions",
        "FAILED",
        f"{_some([f'{name} calls {called} of {owner}' for name, called, owner in found])}: "
        "it runs with the rights of each user who sends or decides, and of the owner",
        "drop what you did not make; a schema before 0004 is mended by: outbox db upgrade",
    )


def _row_security(conn: psycopg.Connection[Any]) -> Check:
    hidden = [name for (name,) in conn.execute(STATEMENTS["hidden_rows"]).fetchall()]
    if not hidden:
        return Check("row security", "ok", "hides no messages")
    return Check(
        "row security",
        "FAILED",
        f"set on {_some(hidden)} by somebody else than the outbox: processes fail, or pass over rows",
        f"ALTER TABLE {hidden[0]} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY",
    )


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {count(more)} more" if more > 0 else "")


def roles(conn: psycopg.Connection[Any], *, upgraded: bool) -> Check:
    """Check that the roles are there, and that the schema's owner may grant them to logins."""
    missing = [
        name for (name,) in conn.execute(STATEMENTS["missing_roles"], {"roles": list(ROLES)}).fetchall()
    ]
    if missing:
        return Check(
            "roles",
            "warning",
            f"missing: {', '.join(missing)}",
            'as a user who may create roles: outbox db sql --roles | psql -v ON_ERROR_STOP=1 "$OUTBOX_DSN"'
            if upgraded
            else "outbox db upgrade makes them, as a user who may create roles",
        )
    unusable = conn.execute(STATEMENTS["unusable_roles"], {"roles": list(ROLES)}).fetchall()
    if unusable:
        names, owner = ", ".join(name for name, _ in unusable), unusable[0][1]
        return Check(
            "roles",
            "warning",
            f"{owner} may not grant {names} to logins: another owner in this cluster made them",
            f'as that owner or a superuser: GRANT {names} TO "{owner}" WITH ADMIN OPTION',
        )
    return Check("roles", "ok", "all there")
