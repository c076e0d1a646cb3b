"""Worker processes: each has its own interpreter and talks to the benchmark through one pipe."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A worker failed; the text is its traceback."""


class Worker:
    """A process that runs `job(pipe, *arguments)`; what it sends is received here, and its failure is raised."""

    def __init__(self, job: Callable[..., None], *arguments: Any) -> None:
        # Started anew, not forked: librdkafka's threads do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(os.getpid(), theirs, job, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._process.pid or 0

    def send(self, value: Any) -> None:
        """Tell the worker something; nothing happens when it has ended: `receive` says what became of it."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(value)

    def receive(self, seconds: float) -> Any:
        """What the worker says next.

        Raises:
            WorkerError: it failed, ended, or said nothing for so long.
        """
        if not self._pipe.poll(seconds):
            raise WorkerError(f"worker {self._process.pid} said nothing for {seconds:.0f} s")
        try:
            value = self._pipe.recv()
        except EOFError:
            raise WorkerError(f"worker {self._process.pid} ended without a word") from None
        if isinstance(value, WorkerError):
            raise value
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(0 if error else 5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _run(parent: int, pipe: Connection, job: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        return  # the benchmark died before the setting was made
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the benchmark's to answer
    try:
        job(pipe, *arguments)
    except EOFError:
        pass  # the benchmark closed the pipe
    except BaseException:  # noqa: BLE001  (whatever it was, it is raised on the other side)
        pipe.send(WorkerError(traceback.format_exc()))
