"""One short transaction of a checker: its own settings, its actor, then one plan."""

from __future__ import annotations

import os
import socket
from typing import Any, TypeVar

import psycopg

from outbox.drivers import psycopg_sync
from outbox.statements import Plan, Statement, load

SQL = load("checking.sql")
T = TypeVar("T")


def checker_name(group: str) -> str:
    """Who a checker is, in `outbox.event.actor` and `outbox.pending_check.asked_by`: checker:<group>@<host>:<pid>."""
    return f"checker:{group}@{socket.gethostname()}:{os.getpid()}"


def transaction(conn: psycopg.Connection[Any], actor: str, plan: Plan[T]) -> T:
    """Run a plan in a transaction of its own and commit it; `conn` must be idle, at READ COMMITTED.

    The server ends the session of a process that is stopped in the middle, after 5 s, and a statement that waits for a
    lock, after 1 s: `psycopg.Error` means that nothing was written, or that it is unknown whether the commit arrived.
    """
    with conn.transaction():
        return psycopg_sync.run(conn, _beginning(actor, plan))


def _beginning(actor: str, plan: Plan[T]) -> Plan[T]:
    yield Statement(SQL["begin"], (actor,))
    return (yield from plan)
