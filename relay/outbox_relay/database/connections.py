"""Connection strings: reading, masking, and connecting with errors that name the next step.

A connection string may be a URL or key=value pairs, and may hold a password in either. Nothing here ever
prints one: what cannot be read is not echoed either, because a typing error often sits inside the password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo
from psycopg.rows import TupleRow

from outbox import sessions
from outbox_relay.text.errors import OperatorError, OptionError
from outbox_relay.text.masking import MASK, SECRETS, mask_text
from outbox_relay.text.waiting import announced

Connection = psycopg.Connection[TupleRow]


class DsnError(OptionError, ValueError):
    """The connection string cannot be read; the text never repeats it."""


class DatabaseUnreachableError(OperatorError, ConnectionError):
    """No connection to PostgreSQL; the text names host, port, database and the next step.

    `reason` is the same without the next step, for logs.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.reason = text.partition("\n")[0]


def parameters(dsn: str) -> dict[str, str]:
    """Read a connection string of either form into libpq's parameters.

    Raises:
        DsnError: it is neither form, or holds a character that must be percent-encoded.
    """
    try:
        found = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()}
    except psycopg.Error:
        raise DsnError(
            "the connection string (--dsn, OUTBOX_DSN) is neither a URL such as "
            "postgresql://user@host:5432/database nor pairs such as 'host=… port=… dbname=… user=…'"
            + _of_sqlalchemy(dsn)
        ) from None
    # "user:p@ss@host" and "user:p/ss@host" are split in the middle of the password; what was taken for a host
    # or a database then holds the rest of it.
    if dsn.startswith(("postgresql://", "postgres://")) and any(
        "@" in found.get(name, "") for name in ("host", "port", "dbname")
    ):
        raise DsnError(
            "the connection string (--dsn, OUTBOX_DSN) has an '@' or '/' in its password: "
            "percent-encode it (%40, %2F) or leave it to ~/.pgpass"
        )
    return found


def _of_sqlalchemy(dsn: str) -> str:
    """Say what a URL of SQLAlchemy has too much, such as the one in DATABASE_URL."""
    found = re.match(r"postgres(?:ql)?(\+[a-z0-9_]+)://", dsn)
    return f"; leave out {found[1]}, which SQLAlchemy's URLs have: postgresql://…" if found else ""


def masked(dsn: str) -> str:
    """Return the connection string in its own form, with every password as ***; safe to print."""
    try:
        found = parameters(dsn)
    except DsnError:
        return "(unreadable connection string)"
    shown = {name: MASK if name in SECRETS else value for name, value in found.items()}
    if not dsn.startswith(("postgresql://", "postgres://")):
        return conninfo.make_conninfo("", **shown)
    user, password = shown.pop("user", None), shown.pop("password", None)
    host, port, database = (shown.pop(name, "") for name in ("host", "port", "dbname"))
    if host.startswith("/"):
        shown["host"], host = host, ""
    login = "" if user is None else quote(user) + (f":{password}" if password else "") + "@"
    address = ",".join(
        f"{part}:{number}" if number else part for part, number in _pairs(host.split(","), port.split(","))
    )
    return f"postgresql://{login}{address}/{quote(database)}" + (
        f"?{urlencode(shown, safe='/*')}" if shown else ""
    )


def _pairs(hosts: list[str], ports: list[str]) -> list[tuple[str, str]]:
    if len(ports) < len(hosts):
        ports = ports + [ports[-1]] * (len(hosts) - len(ports))
    hosts = [f"[{host}]" if ":" in host else host for host in hosts]
    return list(zip(hosts, ports, strict=False))


def place(dsn: str) -> str:
    """Name the database as people do: `database "shop" at localhost:5432`, defaults of libpq included."""
    found = parameters(dsn)
    user = found.get("user") or os.environ.get("PGUSER")
    database = found.get("dbname") or os.environ.get("PGDATABASE") or user or "(the user's own)"
    host = found.get("host") or found.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = found.get("port") or os.environ.get("PGPORT") or "5432"
    address = ", ".join(f"{part}:{number}" for part, number in _pairs(host.split(","), port.split(",")))
    return f'database "{database}" at {address}'


def name(dsn: str) -> str:
    """Name the database alone, as metrics label it: the label stays when the server moves."""
    found = parameters(dsn)
    user = found.get("user") or os.environ.get("PGUSER")
    return found.get("dbname") or os.environ.get("PGDATABASE") or user or "default"


def connect(
    dsn: str,
    *,
    application_name: str = "outbox",
    autocommit: bool = True,
    silent_after: float = sessions.SILENT_AFTER,
    **settings: Any,
) -> Connection:
    """Open a session of ours; see `outbox.sessions`. Wait 10 s at most unless the connection string states otherwise.

    Raises:
        DsnError: the connection string cannot be read.
        DatabaseUnreachableError: with the place, the server's reason and the next step; no password.
    """
    parameters(dsn)
    with _translated(dsn):
        return sessions.connect(
            dsn, application_name, autocommit=autocommit, silent_after=silent_after, **settings
        )


def connect_for_queries(dsn: str, *, application_name: str) -> Connection:
    """Open a session for statements of an operator, which mean what they mean in a session of its role.

    Raises:
        DsnError, DatabaseUnreachableError: as for `connect`.
    """
    parameters(dsn)
    with _translated(dsn):
        return sessions.connect_for_listeners(dsn, application_name)


@contextmanager
def _translated(dsn: str) -> Iterator[None]:
    try:
        with announced(place(dsn)):
            yield
    except psycopg.OperationalError as error:
        raise DatabaseUnreachableError(unreachable(dsn, error)) from None


def unreachable(dsn: str, error: psycopg.Error) -> str:
    """Return what could not be reached, why, and what to do about it."""
    secrets = [value for name, value in parameters(dsn).items() if name in SECRETS]
    reason = mask_text(str(error).strip(), secrets)
    return f"cannot reach {place(dsn)}: {_short(reason)}\n{_next_step(reason, dsn)}"


def _short(reason: str) -> str:
    """Keep the last line's reason: with several addresses libpq repeats itself for each."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    telling = [line for line in lines if "failed:" in line] or lines[:1] or ["no reason given"]
    return telling[-1].rpartition("failed: ")[2]


def _next_step(reason: str, dsn: str) -> str:
    found = parameters(dsn)
    if "does not exist" in reason and "database" in reason:
        return f"Create it first, for instance: createdb {found.get('dbname', '')}".rstrip()
    if "authentication failed" in reason or "no password supplied" in reason:
        user = found.get("user", "(default)")
        return f"Check user {user!r} and its password (connection string or ~/.pgpass)."
    if "does not exist" in reason and "role" in reason:
        return f"Create the role {found.get('user', '(default)')!r}, or name another user in --dsn."
    if "pg_hba.conf" in reason:
        return "The server's pg_hba.conf does not let this user in from here."
    return (
        "Is the server running, and the address right? Check --dsn (OUTBOX_DSN); "
        'a local stack starts with: outbox up; eval "$(outbox env)"'
    )
