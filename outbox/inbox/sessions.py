"""What a consumer sets in each of its sessions at PostgreSQL.

The keeper's session is ours alone, and has the settings of `outbox.sessions`. In a listener's session the statements of
the application run, too: `search_path`, row level security, styles and time zone are as its database and role have
them. Only time-outs that could end the session before the consumer's own limit are switched off.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox import sessions
from outbox.drivers.psycopg_sync import run
from outbox.inbox import plans


def use_read_committed(conn: psycopg.Connection[Any]) -> None:
    """Let each statement see what was committed before it: a snapshot from before a lock would miss successors."""
    conn.autocommit = False
    conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED


def limit_transactions(conn: psycopg.Connection[Any], seconds: float) -> None:
    """Let PostgreSQL end transactions of a connection that run longer, so that a stopped process holds no message.

    It sees the rows of groups that are not bound to a role, and of those bound to one that its user is a member of.

    Commits are awaited: offsets move after them, and no crash of PostgreSQL may take an effect back that was passed.

    Before PostgreSQL 17 a whole transaction has no limit: its statements, and the pauses between them, are limited.
    """
    version = conn.info.server_version
    names = ["transaction_timeout"]
    if version < 170000:
        names = ["statement_timeout", "idle_in_transaction_session_timeout"]
    limits = sessions.limits(version, **dict.fromkeys(names, int(seconds * 1000)))
    sessions.set_all(conn, sessions.statement(limits))
    use_read_committed(conn)
    run(conn, plans.apply_policies())
    run(conn, plans.await_commits())
    conn.commit()
