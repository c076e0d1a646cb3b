"""The relay as tests run it: a process of its own, watched through its structured log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.pausing import is_paused, pause
from tests.support.waiting import StageTimeoutError, wait_until

ENTRY = Path(__file__).with_name("relay_entry.py")
Event = dict[str, Any]


class RelayProcess:
    """One `outbox relay run`, started at once; killed at the end of its `with` block if it still runs.

    `events` holds the lines of its log that are JSON, `lines` all lines.
    """

    def __init__(
        self,
        dsn: str,
        bootstrap_servers: str,
        *options: str,
        entry: Sequence[str] = (str(ENTRY),),
        service: str = "relay",
        action: Sequence[str] = ("run", "--log-format", "json"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.lines: list[str] = []
        command = [sys.executable, *entry, str(os.getpid()), service, *action, *options]
        environment = {
            **os.environ,
            "PGOPTIONS": "",
            "OUTBOX_DSN": dsn,
            "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **(variables or {}),
        }
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def find(self, event: str, **fields: Any) -> Event | None:
        """The first log line of this event whose fields have these values; a callable is asked."""
        for seen in list(self.events):
            if seen.get("event") == event and all(
                _fits(seen.get(name), want) for name, want in fields.items()
            ):
                return seen
        return None

    def count(self, event: str) -> int:
        """How many log lines there are of this event."""
        return sum(seen.get("event") == event for seen in list(self.events))

    def wait_for(self, event: str, *, seconds: float = 60.0, **fields: Any) -> Event:
        """Wait until the relay has logged this event, and return it."""

        def logged() -> Event | None:
            found = self.find(event, **fields)
            if found is None and self.process.poll() is not None:
                self._reader.join(5)
                found = self.find(event, **fields)
                assert found is not None, f"the relay ended before it logged {event!r}:\n{self.output()}"
            return found

        try:
            return wait_until(logged, f"relay logs {event!r} {fields}", seconds=seconds)
        except AssertionError:
            sys.stderr.write(self.output())
            raise

    def wait_until_joined(self) -> Self:
        """Wait until it leads or stands by."""
        wait_until(lambda: self.find("lanes taken") or self.find("standing by"), "it has joined")
        return self

    def wait_until_running(self) -> Self:
        """Wait until it holds the lanes."""
        self.wait_for("lanes taken")
        return self

    def output(self) -> str:
        """All that it wrote."""
        return "\n".join(self.lines[-200:])

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM); `wait` tells how it ended."""
        self.process.terminate()

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end and return the exit code; all of its log is read then."""
        code = self.process.wait(seconds)
        self._reader.join(10)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def wait_until_it_kills_itself(self, seconds: float = 60.0) -> None:
        """Wait for the end that `dying_relay.py` was told to make.

        Raises:
            StageTimeoutError: it did not come to that step.
        """
        try:
            code = self.wait(seconds)
        except subprocess.TimeoutExpired:
            message = f"it lives on after {seconds:g} s:\n{self.output()}"
            raise StageTimeoutError(message) from None
        assert code == -signal.SIGKILL, f"the relay ended with {code}:\n{self.output()}"

    def wait_until_it_pauses_itself(self, seconds: float = 120.0) -> None:
        """Wait for the pause that `dying_relay.py` was told to make."""

        def paused() -> bool:
            assert self.is_running, self.output()
            return is_paused(self.pid)

        wait_until(paused, f"relay pauses itself: {self.process.args!r}", seconds=seconds)

    def stop(self, seconds: float = 60.0) -> None:
        """Stop it as an operator would, and insist on a clean end."""
        self.terminate()
        code = self.wait(seconds)
        assert code == 0, f"the relay ended with {code}:\n{self.output()}"

    def kill(self) -> None:
        """SIGKILL, as a power cut would; returns when the process is gone."""
        self.process.kill()
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: it holds all it has and does nothing."""
        pause(self.pid)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def memory_peak(self) -> int:
        """Largest resident size so far, in bytes (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel does not tell VmHWM")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.process.kill()
        self.wait()
        if error is not None:
            sys.stderr.write(f"--- relay {self.pid}\n{self.output()}\n")


def _fits(value: Any, wanted: Callable[[Any], bool] | Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else bool(value == wanted)
