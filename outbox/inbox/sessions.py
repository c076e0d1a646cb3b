"""What a consumer sets in each of its sessions at PostgreSQL."""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.drivers.psycopg_sync import run
from outbox.inbox import plans


def use_read_committed(conn: psycopg.Connection[Any]) -> None:
    """Let each statement see what was committed before it: a snapshot from before a lock would miss successors."""
    conn.autocommit = False
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def limit_transactions(conn: psycopg.Connection[Any], seconds: float) -> None:
    """Let PostgreSQL end transactions of a connection that run longer, so that a stopped process holds no message.

    Commits are awaited: offsets move after them, and no crash of PostgreSQL may take an effect back that was passed.

    Before PostgreSQL 17 a whole transaction has no limit: its statements, and the pauses between them, are limited.
    """
    use_read_committed(conn)
    names = ["transaction_timeout"]
    if conn.info.server_version < 170000:
        names = ["statement_timeout", "idle_in_transaction_session_timeout"]
    for name in names:
        run(conn, plans.limit(name, int(seconds * 1000)))
    run(conn, plans.await_commits())
    conn.commit()
