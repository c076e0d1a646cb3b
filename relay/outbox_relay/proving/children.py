"""Processes of a run: started so that none outlives it, stopped, paused and killed one by one, output kept in files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from outbox_relay.text.errors import OperatorError

# Why a launcher and no preexec_fn: where threads of librdkafka run, Python code between fork and exec can hang. The
# launcher asks the kernel for SIGKILL at its parent's death, and becomes the program.
_LAUNCHER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
STOPPED, GONE = ("T", "t"), ("X", "Z")
STEP_S = 0.01


def tethered(command: Sequence[str]) -> list[str]:
    """Return a command that runs this one and is killed when the calling thread ends, however it does.

    Safe in a process with threads; start it from the thread that shall keep it alive.
    """
    return [sys.executable, "-E", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


class ChildError(OperatorError):
    """A process of the run ended when it should not have."""


class Child:
    """A Python process with a log file."""

    def __init__(
        self, name: str, log: Path, environment: Mapping[str, str], arguments: Sequence[str], stdin: int
    ) -> None:
        """Start `python *arguments`; it shares no terminal signal with us, so that Ctrl-C is ours to handle.

        `environment` comes on top of our own, without what is set for other commands (`OUTBOX_…`).
        """
        own = {word: value for word, value in os.environ.items() if not word.startswith("OUTBOX_")}
        self.name, self.log = name, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                tethered([sys.executable, *arguments]),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**own, **environment},
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
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._process.poll()

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

    def pause(self, seconds: float) -> bool:
        """Send SIGSTOP; return whether no thread of it runs any more, within so many seconds.

        One thread takes the signal and stops the others, so the process is still for a moment later than it is asked.
        """
        self._process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + seconds
        while not self._is_still():
            if time.monotonic() > deadline:
                return False
            time.sleep(STEP_S)
        return self._process.poll() is None

    def go_on(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def _is_still(self) -> bool:
        try:
            states = [
                (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                for thread in Path(f"/proc/{self._process.pid}/task").iterdir()
            ]
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread ended meanwhile
        return all(state in STOPPED + GONE for state in states)

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
