"""A right that a login lacks, in one sentence: who, in which database, and the GRANT that repairs it.

PostgreSQL's own text for SQLSTATE 42501 names neither. A command, or a service's main loop, states for whom it works by
`needing`; errors, logs and findings of `outbox doctor` then add the sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import psycopg
from psycopg import pq

from outbox_relay.database.connections import DsnError, parameters

NO_RIGHT = "42501"


class _Need(NamedTuple):
    """Who works: as a login with this role (such as outbox_relay, or "the schema's owner"), in this database."""

    role: str
    dsn: str


_NEED: ContextVar[_Need | None] = ContextVar("needed role", default=None)


@contextmanager
def needing(role: str, dsn: str) -> Iterator[None]:
    """State which role the block needs, in this thread and in threads whose target is `logs.inheriting`."""
    token = _NEED.set(_Need(role, dsn))
    try:
        yield
    finally:
        _NEED.reset(token)


def repair(error: BaseException) -> str | None:
    """Return who lacks a right and what grants it, if this is why the server refused; else None.

    An error of a guard of the outbox (a group that is bound to another role) is left as it is: no GRANT helps.
    """
    if not isinstance(error, psycopg.Error) or error.sqlstate != NO_RIGHT:
        return None
    need = _NEED.get()
    if need is None or error.diag.source_function == "exec_stmt_raise":
        return None
    try:
        given = parameters(need.dsn)
    except DsnError:
        return None
    defaults = {one.keyword.decode(): one.val for one in pq.Conninfo.get_defaults()}
    user = given.get("user") or (defaults.get("user") or b"?").decode()
    database = given.get("dbname") or (defaults.get("dbname") or user.encode()).decode()
    who = f'user "{user}" has not the right in database "{database}"'
    if not need.role.startswith("outbox_"):
        return f"{who}; expected: {need.role}"
    roles = need.role.replace(" and ", ", ")
    return f'{who}; expected the role {need.role}: GRANT {roles} TO "{user}"'
