"""Work that a service repeats outside of its main loop, each run on a thread and connection of its own.

A wait for a lock or a long query then stalls nothing else; between two runs there is no thread but one for the whole
process, which begins them. An error of PostgreSQL is logged and the work is tried
again; any other exception is a defect: it ends the thread and is raised to the main loop by `check()`, or is handed to
`on_defect` where the work must end neither the service nor itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg

from outbox_relay.calls.deadline import Watch, Watchdog
from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.database.reasons import may_heal, reason
from outbox_relay.text.logs import Log

RETRY_S = 5.0
STOP_S = 2.0
CLOCK = Watchdog()
"""Begins the runs of all databases of the process."""

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
        self._next: dict[Task, Watch] = {}
        self._threads: dict[Task, threading.Thread] = {}
        self._tasks = tasks
        self._context = copy_context()

    def __enter__(self) -> Self:
        """Begin."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self.stop()

    def start(self) -> None:
        """Begin; each task is run when its first pause is over."""
        for task in self._tasks:
            self._run_in(task, min(task.first, task.every))

    def stop(self) -> None:
        """End; a query under way is cancelled."""
        self._stopping.set()
        with self._lock:
            running, later, threads = (
                list(self._running),
                list(self._next.values()),
                [*self._threads.values()],
            )
        for watch in later:
            CLOCK.end(watch)
        for conn in running:
            with contextlib.suppress(psycopg.Error):
                conn.cancel_safe(timeout=1.0)
        for thread in threads:
            thread.join(STOP_S)

    def check(self) -> None:
        """Raise the defect that ended a task, if one did."""
        if self._defect is not None:
            raise self._defect

    def _run_in(self, task: Task, pause: float) -> None:
        with self._lock:
            self._threads.pop(task, None)
        # Outside of our lock: the clock takes its own first, and then ours in `_begin`.
        watch = CLOCK.at(time.monotonic() + pause, partial(self._begin, task))
        with self._lock:
            self._next[task] = watch
        if self._stopping.is_set():
            CLOCK.end(watch)

    def _begin(self, task: Task) -> None:
        run = partial(self._context.copy().run, self._run_once, task)  # no two threads may be in one context
        thread = threading.Thread(target=run, name=task.work.__name__, daemon=True)
        with self._lock:
            if self._stopping.is_set():
                return
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads
                self._next[task] = CLOCK.at(time.monotonic() + RETRY_S, partial(self._begin, task))
            else:
                self._threads[task] = thread

    def _run_once(self, task: Task) -> None:
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
        self._run_in(task, task.every if done else min(RETRY_S, task.every))

    def _run(self, task: Task) -> bool:
        with self._connect() as conn:
            with self._lock:
                self._running.add(conn)
            try:
                return task.work(conn)
            finally:
                with self._lock:
                    self._running.discard(conn)
