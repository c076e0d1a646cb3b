"""Whether a database is fit for the outbox: schema, partitions, roles, and settings that its promises rest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row

from outbox.statements import Statements
from outbox_relay.database import schema
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
)
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
    yield _primary(server)
    yield from _durability(server, conn.info.dbname)
    current = _schema(conn)
    yield current
    if current.level == "ok":
        yield _partitions(conn)
        yield _no_default(conn)
    yield _roles(conn, upgraded=current.level == "ok")


def _version(version: int) -> Check:
    found = f"PostgreSQL {version // 10000}.{version % 10000}"
    if version >= OLDEST_SERVER:
        return Check("server", "ok", found)
    return Check(
        "server", "FAILED", f"{found}: the outbox needs 14 or newer", "upgrade the server (pg_upgrade)"
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


def _partitions(conn: psycopg.Connection[Any]) -> Check:
    found = partitions.read(conn)
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


def _roles(conn: psycopg.Connection[Any], *, upgraded: bool) -> Check:
    missing = [
        name for (name,) in conn.execute(STATEMENTS["missing_roles"], {"roles": list(ROLES)}).fetchall()
    ]
    if not missing:
        return Check("roles", "ok", "all there")
    return Check(
        "roles",
        "warning",
        f"missing: {', '.join(missing)}",
        'as a user who may create roles: outbox db sql --roles | psql -v ON_ERROR_STOP=1 "$OUTBOX_DSN"'
        if upgraded
        else "outbox db upgrade makes them, as a user who may create roles",
    )
