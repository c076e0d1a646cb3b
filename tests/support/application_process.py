"""A program of the tests, run as a process of its own: an application that sends, and may die while it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class Child:
    """Starts `python PROGRAM ARGUMENTS… PARENT_PID` at once; killed at the end of its `with` block if it still runs.

    Its last argument lets it die with the test that started it (`tests.support.relay_entry.die_with`).
    """

    def __init__(self, program: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments, str(os.getpid())],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end; answer the exit code, negative for a signal. What it wrote is in `output`."""
        self.output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def next_line(self) -> str:
        """The next line that it prints, without its end; fails when it ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait(10)}"
        return line.rstrip("\n")

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def run(program: Path, *arguments: str, seconds: float = 60.0) -> None:
    """Run a program to its end, and insist on a good one."""
    with Child(program, *arguments) as child:
        code = child.wait(seconds)
        assert code == 0, f"{program.name} ended with {code}:\n{child.output}"
