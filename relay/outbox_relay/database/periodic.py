"""Work that a service repeats outside of its main loop, each on a thread and connection of its own.

A wait for a lock or a long query then stalls nothing else. An error of PostgreSQL is logged and the work is tried
again; any other exception is a defect: it ends the thread and is raised to the main loop by `check()`, or is handed to
`on_defect` where the work must end neither the service nor itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.database.reasons import may_heal, reason
from outbox_relay.text.logs import Log, inheriting

RETRY_S = 5.0
STOP_S = 2.0

log = Log("upkeep")


class Task(NamedTuple):
    """One kind of work: run first after `first` seconds, then every `every`; sooner where it returns False."""

    work: Callable[[psycopg.Connection[Any]], bool]
    first: float
    every: float


class Periodic:
    """Runs tasks until `stop()`, or between `with` and the end of its block.

    Args:
        connect: opens a connection for one run of one task.
        tasks: what to run.
        on_defect: called with a defect, whose task then goes on after its pause; None: it ends the task.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        tasks: Sequence[Task],
        *,
        on_defect: Callable[[Exception], None] | None = None,
    ) -> None:
        self._connect = connect
        self._on_defect = on_defect
        self._stopping = threading.Event()
        self._running: set[psycopg.Connection[Any]] = set()
        self._lock = threading.Lock()
        self._defect: Exception | None = None
        self._threads = [
            threading.Thread(
                target=inheriting(self._repeat), args=(task,), name=task.work.__name__, daemon=True
            )
            for task in tasks
        ]

    def __enter__(self) -> Self:
        """Start the threads."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the threads."""
        self.stop()

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; a query under way is cancelled."""
        self._stopping.set()
        with self._lock:
            running = list(self._running)
        for conn in running:
            with contextlib.suppress(psycopg.Error):
                conn.cancel_safe(timeout=1.0)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(STOP_S)

    def check(self) -> None:
        """Raise the defect that ended a task, if one did."""
        if self._defect is not None:
            raise self._defect

    def _repeat(self, task: Task) -> None:
        pause = min(task.first, task.every)
        while not self._stopping.wait(pause):
            try:
                done = self._run(task)
            except Exception as error:  # noqa: BLE001  (raised again by `check`, or handed to `on_defect`)
                if isinstance(error, psycopg.Error | DatabaseUnreachableError) and may_heal(error):
                    if self._stopping.is_set():
                        return
                    log.warning("upkeep failed, trying again", work=task.work.__name__, **reason(error))
                    done = False
                elif self._on_defect is not None:
                    self._on_defect(error)
                    done = True
                else:
                    self._defect = error
                    return
            pause = task.every if done else min(RETRY_S, task.every)

    def _run(self, task: Task) -> bool:
        with self._connect() as conn:
            with self._lock:
                self._running.add(conn)
            try:
                return task.work(conn)
            finally:
                with self._lock:
                    self._running.discard(conn)
