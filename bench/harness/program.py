"""A peer's program that runs for the time of a `with` block."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar

from bench.harness.command import stop
from bench.harness.cpu import peak_bytes


@dataclass(slots=True)
class Program:
    """What a `Meter` and a benchmark ask of a peer's process; subclasses start it."""

    title: ClassVar[str]
    """What it is called in errors."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._running.pid

    @property
    def peak_bytes(self) -> int:
        """Its largest resident size so far."""
        return peak_bytes(self.pid)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.title} was not started")
        return self._process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self._running)
