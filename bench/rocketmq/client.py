"""The Java client: one process for all rounds, so that its code is compiled when it counts."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from bench.rocketmq.java import Java

START_LIMIT = 60.0
ANSWER_LIMIT = 60.0
"""Seconds for an answer beyond the seconds that were ordered."""
OPTIONS = ("-Xms512m", "-Xmx512m")


class Answer(NamedTuple):
    """What the client made."""

    transactions: int
    began: float
    """Seconds since 1970."""
    seconds: float
    """From the first transaction's begin to the last one's end."""
    visible: float
    """Until consumers could read all messages, for those of RocketMQ; else the same."""


class Client:
    """A running client; it ends when the `with` block does, or its standard input with this process."""

    def __init__(self, java: Java, settings: Mapping[str, str], directory: Path) -> None:
        path = directory / "client.properties"
        path.touch(mode=0o600)  # it holds the password of a throw-away server
        path.write_text(properties(settings))
        self.log = directory / "client.log"
        options = (*OPTIONS, f"-Duser.home={directory}")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                java.command("Client", path, options=options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._process.pid

    def run(self, variant: str, threads: int, seconds: float) -> Answer:
        """Make transactions of one variant; raises RuntimeError when the client fails."""
        _pipe(self._process.stdin).write(f"{variant} {threads} {seconds}\n".encode())
        count, *times = self._line(seconds + ANSWER_LIMIT).split()
        return Answer(int(count), *map(float, times))

    def __enter__(self) -> Self:
        try:
            if self._line(START_LIMIT) != "ready":
                raise RuntimeError("the client said something else than that it is ready")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _line(self, limit: float) -> str:
        output = _pipe(self._process.stdout)
        if not select.select([output], [], [], limit)[0]:
            raise RuntimeError(f"the client said nothing for {limit:.0f} s (log: {self.log})")
        line = output.readline().decode().strip()
        if not line:
            end = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"the client ended:\n{end}")
        return line


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the client has no pipe")
    return pipe


def properties(values: Mapping[str, str]) -> str:
    """Write values as Java's `Properties` reads them."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in values.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())
