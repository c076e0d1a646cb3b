"""PostgreSQL without the process that flushes its log in the background: only commits that wait for the disk do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.pausing import pause
from tests.support.plain_inserts import Connection


@contextmanager
def no_background_flushes(conn: Connection) -> Iterator[None]:
    """Stop the WAL writer of a private server; a crash ends it too."""
    row = conn.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").fetchone()
    assert row is not None
    pause(row[0])
    try:
        yield
    finally:
        if Path(f"/proc/{row[0]}").exists():
            os.kill(row[0], signal.SIGCONT)
