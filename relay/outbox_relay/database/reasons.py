"""An error of PostgreSQL as the fields of one log line: no advice for people, no line ends."""

from __future__ import annotations

import re
from typing import Any

import psycopg

from outbox_relay.database import rights
from outbox_relay.database.connections import DatabaseUnreachableError

READ_ONLY = "25006"
"""The SQLSTATE with which a standby refuses to write."""
READ_ONLY_HINT = (
    "the server is a standby, or read-only; this is tried again until it is promoted. Else let --dsn name the primary, "
    "or add target_session_attrs=read-write to it"
)
DIVIDED = ("42P05", "26000")
"""The SQLSTATEs of a prepared statement that another session has made, or not made: a pooler is in between."""
DIVIDED_HINT = (
    "a pooler in transaction or statement mode divides the session; let --dsn (OUTBOX_DSN) name the server itself, or "
    "a pooler in session mode"
)
NO_RIGHT = "42501"
_HIDDEN = re.compile(r'row-level security policy for table "(?P<table>[^"]+)"')
HIDDEN_HINT = (
    "row level security would hide rows of it, so nothing is read; as its owner: "
    "ALTER TABLE outbox.{table} DISABLE ROW LEVEL SECURITY; outbox db check names all such tables"
)
CONNECTION_LOST = ("08", "57P")
"""SQLSTATEs that begin with these mean that the server, or the connection to it, is gone."""


def reason(error: BaseException) -> dict[str, Any]:
    """Return `error` and, where the server states them, `sqlstate` and `hint`, each on one line."""
    if isinstance(error, DatabaseUnreachableError):
        return {"error": one_line(error.reason)}
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return {"error": one_line(f"{error}" or type(error).__name__)}
    fields = {"error": one_line(error.diag.message_primary or str(error)), "sqlstate": error.sqlstate}
    if error.diag.message_hint:
        fields["hint"] = one_line(error.diag.message_hint)
    elif error.sqlstate == READ_ONLY:
        fields["hint"] = READ_ONLY_HINT
    elif error.sqlstate == NO_RIGHT and (hidden := _HIDDEN.search(fields["error"])):
        fields["hint"] = HIDDEN_HINT.format(table=hidden["table"])
    elif is_divided(error):
        fields["hint"] = DIVIDED_HINT
    elif (repair := rights.repair(error)) is not None:
        fields["hint"] = repair
    return fields


def is_away(error: BaseException) -> bool:
    """Return whether the error states that there is no connection, rather than that a statement was refused."""
    if isinstance(error, (DatabaseUnreachableError, psycopg.InterfaceError)):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(CONNECTION_LOST)


def is_divided(error: BaseException) -> bool:
    """Return whether the error shows that statements of one connection reach different sessions of PostgreSQL.

    The driver names its prepared statements by a number of the connection, so in a session that keeps to one client no
    name is taken, and none is missing.
    """
    return isinstance(error, psycopg.Error) and error.sqlstate in DIVIDED


def may_heal(error: BaseException) -> bool:
    """Return whether PostgreSQL may accept the same later.

    True for everything that the server or the connection reports. False for what the driver refuses by itself
    (a wrong number of values, a type that it cannot write): that is a defect of this program.
    """
    return is_away(error) or (isinstance(error, psycopg.Error) and error.sqlstate is not None)


def one_line(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())
