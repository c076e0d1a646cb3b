"""The backlog: messages committed in transactions of 1,000 by several sessions at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/drain.sql")
TRANSACTION = 1_000
SESSIONS = 3


def fill(
    dsn: str,
    topic: str,
    messages: int,
    *,
    transaction: int = TRANSACTION,
    statement: str = STATEMENTS["fill"],
) -> None:
    """Write messages by a statement; the sessions wait for no flush, which says nothing about the relay."""

    def session(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True, options="-c synchronous_commit=off") as conn:
            for first in range(1 + number * transaction, messages + 1, SESSIONS * transaction):
                last = min(first + transaction - 1, messages)
                conn.execute(statement, {"topic": topic, "first": first, "last": last})

    with ThreadPoolExecutor(SESSIONS) as threads:
        list(threads.map(session, range(SESSIONS)))
