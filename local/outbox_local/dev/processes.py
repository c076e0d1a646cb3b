"""Relay and checker as processes of a session: what they print is shown, and none outlives the session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from outbox_local.dev.screen import Screen
from outbox_relay.proving.children import tethered
from outbox_relay.text.errors import OperatorError

STOP_S = 45.0
"""Seconds for a process to end after SIGTERM: longer than the relay settles what is on the wire (30 s)."""
STEP_S = 0.05


class ProcessError(OperatorError):
    """The relay or the checker ended by itself."""


class Processes:
    """The processes of one session, inside `with`; whatever still runs at its end is killed.

    Call it from the thread that lives as long as the session: the kernel kills the processes when that thread ends.
    """

    def __init__(
        self, commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], screen: Screen
    ) -> None:
        """Take the arguments of `outbox` for each process, by its name."""
        self._commands, self._screen = commands, screen
        self._environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        self._running: dict[str, tuple[subprocess.Popen[str], threading.Thread]] = {}

    def start(self) -> None:
        """Start all of them."""
        for name in self._commands:
            self._start(name)

    def tend(self) -> None:
        """Start again what was killed by a signal.

        Raises:
            ProcessError: one ended by itself; its own lines state why.
        """
        for name, (process, reader) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            reader.join(STEP_S)
            if code >= 0:
                raise ProcessError(
                    f"the {name} ended with exit code {code}; its reason is in its lines above"
                )
            self._screen.report(f"the {name} was ended by {signal.Signals(-code).name}: starting it again")
            self._start(name)

    def stop(self, at_once: threading.Event) -> None:
        """Ask all to stop and wait until they are gone; those that take too long, or all when `at_once`, are killed."""
        for process, _ in self._running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_S
        while any(process.poll() is None for process, _ in self._running.values()):
            if at_once.wait(STEP_S) or time.monotonic() > deadline:
                break
        self._kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    def _start(self, name: str) -> None:
        process = subprocess.Popen(
            tethered([sys.executable, "-P", "-m", "outbox_relay.cli.main", *self._commands[name]]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is the session's to handle
        )
        reader = threading.Thread(target=self._read, args=(name, process), name=f"{name} lines", daemon=True)
        reader.start()
        self._running[name] = process, reader

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        # Read to the end, also when nothing can be printed any more: a full pipe would stop the process.
        for line in process.stdout or ():
            self._screen.show(name, line.rstrip("\n"))

    def _kill(self) -> None:
        for process, reader in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            reader.join(1)
        self._running.clear()
