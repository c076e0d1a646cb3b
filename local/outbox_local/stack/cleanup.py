"""Ending what a stack's state file names, and removing what it left: exactly that, and nothing of anybody else."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from outbox_local.stack.process import Identity
from outbox_local.stack.state import DEV_FILE, State, state_path
from outbox_relay.downloads.cache import locked
from outbox_relay.downloads.errors import StackError

ORDERLY_LIMIT = 40.0
"""Seconds for a supervisor to end its servers; it kills them itself after 15."""
KILLED_LIMIT = 10.0


def end_processes(state: State, *, at_once: bool = False) -> None:
    """End the supervisor and the servers of a state file, if those very processes still run.

    In order; or `at_once`, with SIGKILL, when their data is not needed any more. Also after a crash: a server
    whose supervisor was killed is already ending; it is waited for.
    """
    if state.supervisor is not None:
        state.supervisor.send(signal.SIGKILL if at_once else signal.SIGTERM)
        if not _gone([state.supervisor], ORDERLY_LIMIT):
            state.supervisor.send(signal.SIGKILL)
    servers = [server.process for server in state.servers.values() if server.process is not None]
    if not _gone(servers, KILLED_LIMIT):
        for server in servers:
            server.send(signal.SIGKILL)
        if not _gone(servers, KILLED_LIMIT):
            raise StackError(f"processes {[server.pid for server in servers]} of the last run do not end")
    with locked(state.directory / "supervisor.lock"):
        pass  # a supervisor whose client died early may not stand in the state file, but it holds this lock


def wipe(state: State) -> None:
    """Remove a stopped stack: its data, its logs, its state file, and its directory if nothing else is in it."""
    for leftover in (
        state.directory / "data",
        state.directory / "logs",
        *([Path(state.scratch)] if state.scratch else []),
    ):
        shutil.rmtree(leftover, ignore_errors=True)
    state_path(state.directory).unlink(missing_ok=True)
    (state.directory / "supervisor.lock").unlink(missing_ok=True)
    (state.directory / "lock").unlink(missing_ok=True)
    _remove_unlocked(state.directory / DEV_FILE)
    if state.directory.is_dir() and not any(state.directory.iterdir()):
        state.directory.rmdir()


def _remove_unlocked(path: Path) -> None:
    """Remove what an `outbox dev` that was killed left; one that runs has a lock on it."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


def _gone(processes: Sequence[Identity], limit: float) -> bool:
    """Wait until none of the processes runs; answer whether that came true within `limit` seconds."""
    deadline = time.monotonic() + limit
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
