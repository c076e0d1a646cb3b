"""Pause a process for certain: SIGSTOP is only asked for when `kill` returns.

Linux lets one thread of the process take the signal, and that one stops the others. Until it has been scheduled, each
other thread goes on: of a process whose main thread sleeps, one in ten answered once more on an idle machine, and every
second one on a busy machine.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.waiting import wait_until

STOPPED = ("T", "t")
GONE = ("X", "Z")


def pause(pid: int) -> None:
    """Send SIGSTOP and return when no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_paused(pid), f"{pid} is paused")


def is_paused(pid: int) -> bool:
    """Return whether no thread of the process runs any more."""
    return all(is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir())


def is_stopped(thread: Path) -> bool:
    """Return whether this thread, a directory of /proc/PID/task, does nothing."""
    try:
        stat = (thread / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True  # it ended
    return stat.rpartition(")")[2].split()[0] in STOPPED + GONE
