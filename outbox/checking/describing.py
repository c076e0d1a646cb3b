"""Describes exceptions for remarks and logs, without the values of rows that a database quotes in its errors.

A server's error quotes rows in its DETAIL ("Key (email)=(…) already exists") and, of some errors, in its message
("invalid input syntax for type integer: …"). Remarks are shown to operators and kept in the audit, so of such an error
they hold its class, the SQLSTATE and the constraint. The message is kept where it is about the statement, not a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NO_VALUES = ("08", "25", "28", "3D", "40", "53", "55", "57")
"""Classes of SQLSTATE whose messages are about the connection, the transaction or the server."""
_NO_RIGHT = "42501"


def error_text(error: BaseException) -> str:
    """Describe an exception: its class, and its text unless a database wrote it.

    Errors of other layers that carry a server's error with them (SQLAlchemy, Django) count as its own. What an
    application writes into its own exception is the application's to choose, and is kept.
    """
    kind = type(error).__name__
    server = _server_error(error)
    if server is None:
        text = str(error).strip()
        return f"{kind}: {text}" if text else kind
    diag = getattr(server, "diag", None)
    constraint = getattr(diag if diag is not None else server, "constraint_name", None)
    facts = f"SQLSTATE {_state(server)}" + (f", constraint {constraint}" if constraint else "")
    message = _without_values(diag, str(_state(server)))
    return f"{kind} ({facts})" + (f": {message}" if message else "")


def _server_error(error: BaseException) -> BaseException | None:
    """Return the server's error that an exception is, or whose text it repeats."""
    for one in _chain(error):
        if _state(one) is not None and (one is error or str(one) in str(error)):
            return one
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    left: list[Any] = [error]
    while left:
        one = left.pop(0)
        if isinstance(one, BaseException) and not any(one is other for other in seen):
            seen.append(one)
            left += [getattr(one, "orig", None), one.__cause__, one.__context__]
            yield one


def _state(error: BaseException) -> str | None:
    """The SQLSTATE as psycopg, asyncpg or psycopg2 give it; None: it did not come from a server."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else None


def _without_values(diag: Any, state: str) -> str | None:
    """The server's message, if it cannot hold a value of a row: it is about the statement's own text, or the server."""
    if diag is None or diag.source_function == "exec_stmt_raise":  # RAISE in a function: any text, any code
        return None
    if diag.statement_position is None and not state.startswith(_NO_VALUES) and state != _NO_RIGHT:
        return None
    return str(diag.message_primary) if diag.message_primary else None
