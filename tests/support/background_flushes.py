"""PostgreSQL without the processes that flush its log, or write to it, in the background: only sessions do.

Apart from the WAL writer the background writer adds a record every 15 s (the transactions that run, for standbys), and
autovacuum when it finds something to do. No commit of theirs flushes that, so a poll right behind needs a barrier.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.pausing import is_stopped, pause
from tests.support.plain_inserts import Connection
from tests.support.waiting import wait_until

WRITERS = """
    SELECT pid FROM pg_stat_activity
    WHERE backend_type IN ('walwriter', 'background writer', 'autovacuum launcher') ORDER BY backend_type
"""
WORKERS = "SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
SLEEPS = "SELECT wait_event_type = 'Activity' FROM pg_stat_activity WHERE pid = %s"


@contextmanager
def no_background_flushes(conn: Connection) -> Iterator[None]:
    """Stop these processes of a private server, those that are not stopped already; a crash ends them too."""
    with ExitStack() as stack:
        pids = [row[0] for row in conn.execute(WRITERS).fetchall()]
        assert len(pids) == 3
        for pid in pids:
            if not is_stopped(Path(f"/proc/{pid}/task/{pid}")):
                stack.callback(_go_on, pid)
                wait_until(lambda pid=pid: _pauses_in_its_sleep(conn, pid), f"{pid} sleeps, and is stopped")  # type: ignore[misc]
        wait_until(lambda: conn.execute(WORKERS).fetchone() is None, "autovacuum has ended")
        yield


def _pauses_in_its_sleep(conn: Connection, pid: int) -> bool:
    """Pause a process that holds no lock; False: it works, and goes on."""
    pause(pid)
    if conn.execute(SLEEPS, [pid]).fetchone() == (True,):
        return True
    _go_on(pid)
    return False


def _go_on(pid: int) -> None:
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGCONT)
