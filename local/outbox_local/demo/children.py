"""The demo's own processes: started so that none outlives the demo, ended one by one, their output kept in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from outbox_local.stack.process import tethered
from outbox_relay.text.errors import OperatorError


class ChildError(OperatorError):
    """A process of the demo ended when it should not have."""


class Child:
    """A Python process with a log file."""

    def __init__(
        self, name: str, log: Path, environment: Mapping[str, str], arguments: Sequence[str], stdin: int
    ) -> None:
        """Start `python *arguments`; it shares no terminal signal with us, so that Ctrl-C is ours to handle."""
        self.name, self.log = name, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                tethered([sys.executable, *arguments]),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended; raises ChildError when it has failed."""
        code = self._process.poll()
        if code:
            raise ChildError(
                f"{self.name} ended with {_named(code)}; the end of {self.log}:\n{self.last_lines()}"
            )
        return code is None

    @property
    def was_killed(self) -> bool:
        """Whether it ended by SIGKILL."""
        return self._process.poll() == -signal.SIGKILL

    @property
    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def has_said(self, text: str) -> bool:
        """Whether the text is in its output."""
        return text in self.text

    def last_lines(self) -> str:
        """The end of its output."""
        lines = self.text.splitlines()
        return "\n".join(f"  {line}" for line in lines[-8:]) or "  (no output)"

    def kill(self) -> None:
        """End it with SIGKILL; it is gone when this returns."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Wait for a clean end; raises ChildError when it fails or takes longer."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChildError(
                f"{self.name} did not stop within {seconds:.0f} s; the end of {self.log}:\n{self.last_lines()}"
            ) from None
        if self.running:
            raise AssertionError("waited for, and still running")


class Children:
    """All processes of one run; whatever still runs at the end is killed."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory, self._environment = directory, environment
        self._started: list[Child] = []

    def start(self, name: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> Child:
        """Start `python *arguments` under a name that also names its log."""
        child = Child(
            name, self._directory / f"{name.replace(' ', '-')}.log", self._environment, arguments, stdin
        )
        self._started.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._started:
            child.kill()


def _named(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
