"""Who waits for a lock, as PostgreSQL tells it: how a test knows that a step is blocked, without waiting for luck."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.support.plain_inserts import Connection
from tests.support.waiting import wait_until

WAITING = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep') AND query LIKE %s
"""
BLOCKED = "SELECT pg_blocking_pids(%s) <> '{}'"
UPGRADE_LOCKS = "%Which locks an upgrade takes%"
"""How an upgrade that waits for a table begins: its script is one query, and PostgreSQL shows 1 KB of it."""
LIMIT = 30.0
"""Seconds for a step to reach the server."""


def see_blocked(observer: Connection, waiting: Connection, step: Future[Any]) -> None:
    """Return when the other connection waits for a lock; fail when its step, run by a thread, has ended instead."""
    deadline = time.monotonic() + LIMIT
    while observer.execute(BLOCKED, [waiting.info.backend_pid]).fetchone() != (True,):
        assert not step.done(), f"a step that has to wait did not: {step.exception() or step.result()}"
        assert time.monotonic() < deadline, f"the step neither ended nor waited for a lock within {LIMIT:g} s"


def wait_for_waiting(conn: Connection, statement: str) -> int:
    """Wait until a statement like this waits for a lock, or polls for one; return the process id of its session."""
    row = wait_until(lambda: conn.execute(WAITING, [statement]).fetchone(), f"waits: {statement}", seconds=30)
    return int(row[0])


@contextmanager
def holding(dsn: str, statement: str) -> Iterator[Connection]:
    """Hold the locks that the statement takes, in a transaction that is rolled back at the end of the block."""
    with psycopg.connect(dsn) as conn:
        conn.execute(statement)
        yield conn
        conn.rollback()
