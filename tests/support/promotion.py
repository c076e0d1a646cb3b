"""A promotion: PostgreSQL comes back as a standby, is promoted, and goes on, on a timeline of its own."""

from __future__ import annotations

import os
from pathlib import Path

from outbox_local.stack.api import Stack
from tests.support.plain_inserts import connect
from tests.support.publications import value

TIMELINE = "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer"


def promote(stack: Stack) -> None:
    """Promote the stack's PostgreSQL; all sessions end. It is a standby that had everything: none has less to lose."""
    with connect(stack.dsn) as conn:
        data = Path(value(conn, "SHOW data_directory"))
        before = value(conn, TIMELINE)
    stack.stop_postgres()
    signal = data / "standby.signal"
    signal.touch()
    os.chown(signal, data.stat().st_uid, data.stat().st_gid)
    stack.start_postgres()
    with connect(stack.dsn) as conn:
        assert value(conn, "SELECT pg_promote()")
        assert value(conn, TIMELINE) > before
