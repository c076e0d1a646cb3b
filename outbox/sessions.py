"""How a session at PostgreSQL is opened, and what is set in it: one list for every session that is ours.

A session takes over what the server, the database, the role and the environment (PGOPTIONS) set. Such a setting may
hide rows (row level security), run a stranger's function (`search_path`), change what a text means (`datestyle`), or
end the session. So each session is given its settings by one statement, before anything else runs in it. It is a
statement, not start-up parameters: poolers refuse those, and an older server does not know all of them.

Where code of an application runs in a session, such as a listener's, its settings are the application's. There only
`LIMITS` and the encoding are set, see `outbox.inbox.sessions`. What the library runs there, and on an application's
own connection, names the schema of each function and depends on none of these settings.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel, conninfo

from outbox.statements import load

_SQL = load("sessions.sql")
CONNECT_TIMEOUT = 10
SILENT_AFTER = 25.0
"""A server that vanished without a word is noticed after so many seconds; libpq's default is hours."""
LISTENERS_SILENT_AFTER = 10.0
"""The same for a session in which listeners run."""
_OPTIONS = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
"""libpq's parameters, and the options of a socket that it sets for them."""
ENCODING = {"client_encoding": "UTF8"}
LIMITS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)
"""Each is in milliseconds, 0 for none. The last one came with PostgreSQL 17."""
OWN = {
    "search_path": "pg_catalog",
    "row_security": "off",  # what a policy would hide raises an error
    **ENCODING,
    "standard_conforming_strings": "on",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "default_transaction_isolation": "read committed",
}
"""The settings of a session that is ours, besides the limits."""


def limits(server_version: int, **milliseconds: int) -> dict[str, str]:
    """Return the limits that a server of this version knows: 0, but for those that are given."""
    known = LIMITS if server_version >= 170_000 else LIMITS[:-1]
    return {name: str(milliseconds.get(name, 0)) for name in known}


def statement(settings: Mapping[str, str]) -> str:
    """Return one statement that sets all of them for the session, whatever its `search_path` is."""
    calls = (f"pg_catalog.set_config('{name}', '{value}', false)" for name, value in settings.items())
    return _SQL["set"].format(settings=", ".join(calls))


def own(server_version: int) -> str:
    """Return the statement that makes a session of a server of this version ours."""
    return statement({**OWN, **limits(server_version)})


def parameters(dsn: str, application_name: str, silent_after: float = SILENT_AFTER) -> dict[str, Any]:
    """Return libpq's parameters for a connection of ours; the connection string's own go before, but the encoding.

    Args:
        dsn: the connection string.
        application_name: as `pg_stat_activity` shows it.
        silent_after: seconds after which a peer that falls silent is noticed. Probes begin after two fifths of the time
            and three may stay without a reply; data that is not acknowledged for the whole time ends the connection
            too. libpq ignores these on a local socket.

    Raises:
        psycopg.ProgrammingError: the connection string cannot be read.
    """
    wanted = {
        "connect_timeout": CONNECT_TIMEOUT,
        "application_name": application_name[:63],
        **_keepalives(silent_after),
    }
    given = conninfo.conninfo_to_dict(dsn)
    return {**{name: value for name, value in wanted.items() if name not in given}, **ENCODING}


def _keepalives(silent_after: float) -> dict[str, int]:
    return {
        "keepalives_idle": max(round(silent_after * 0.4), 1),
        "keepalives_interval": max(round(silent_after * 0.2), 1),
        "keepalives_count": 3,
        "tcp_user_timeout": round(silent_after * 1000),
    }


def keep_alive(conn: Connection[Any], silent_after: float = LISTENERS_SILENT_AFTER) -> None:
    """Notice a silent peer of a connection that a callable has opened, as of one that `connect_for_listeners` opens.

    What the callable's own connection string sets stays, and so does a local socket.

    Args:
        conn: the connection.
        silent_after: as of `parameters`.
    """
    given = conn.info.get_parameters()
    with socket.socket(fileno=os.dup(conn.fileno())) as peer:
        if peer.family not in (socket.AF_INET, socket.AF_INET6):
            return
        if given.get("keepalives") != "0":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _keepalives(silent_after).items():
            option = getattr(socket, _OPTIONS[name], None)  # not on every system
            if option is not None and name not in given:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)


def connect(
    dsn: str,
    application_name: str = "outbox",
    *,
    autocommit: bool = True,
    silent_after: float = SILENT_AFTER,
    **given: Any,
) -> Connection[tuple[Any, ...]]:
    """Open a session that is ours; see `parameters` for the arguments. `given` are further parameters of libpq."""
    conn = psycopg.connect(dsn, **{**parameters(dsn, application_name, silent_after), **given})
    try:
        make_own(conn)
        conn.autocommit = autocommit
    except BaseException:
        conn.close()
        raise
    return conn


def connect_for_listeners(dsn: str, application_name: str) -> Connection[tuple[Any, ...]]:
    """Open a session in which an application's code runs, too: nothing but the encoding is set."""
    return psycopg.connect(dsn, **parameters(dsn, application_name, silent_after=LISTENERS_SILENT_AFTER))


async def connect_for_listeners_async(dsn: str, application_name: str) -> AsyncConnection[tuple[Any, ...]]:
    """See `connect_for_listeners`."""
    return await AsyncConnection.connect(
        dsn, **parameters(dsn, application_name, silent_after=LISTENERS_SILENT_AFTER)
    )


def make_own(conn: Connection[Any]) -> None:
    """Give a session that an application's callable opened for us alone the settings of ours.

    Transactions are READ COMMITTED: a statement that finds a row decided by somebody else meanwhile is to pass over it,
    not to fail.
    """
    set_all(conn, own(conn.info.server_version))
    conn.isolation_level = IsolationLevel.READ_COMMITTED


def set_all(conn: Connection[Any], text: str) -> None:
    """Run a statement of settings outside of any transaction, so that no rollback takes them back."""
    before = conn.autocommit
    conn.autocommit = True
    with psycopg.Cursor(conn) as cursor:
        cursor.execute(text.encode())
    conn.autocommit = before
