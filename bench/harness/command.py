"""A program as a user starts it: its wall time, when it said what, what it answered, and its children's peak memory."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.harness.cpu import descendants, peak_bytes, process_seconds

LOOK_EVERY = 0.1
"""Seconds between two looks at the memory; the kernel keeps the peak, only a process's last moment can be missed."""
STOP_LIMIT = 20.0
"""Seconds that a program has to end by itself."""


@dataclass(slots=True)
class Ran:
    """How a program ran. Times in seconds since its start."""

    code: int = 0
    seconds: float = 0.0
    output: str = ""
    said: list[tuple[float, str]] = field(default_factory=list)
    """Lines of standard error, each with the time when it came."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The largest resident size of its descendants, in bytes, by the program's name."""
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds of it and its descendants, by the program's name; at most the last tenth of a second is missing."""


def run(
    command: Sequence[str], *, given: str = "", environment: Mapping[str, str] | None = None, limit: float
) -> Ran:
    """Run a program to its end; `given` is its standard input.

    Raises:
        RuntimeError: it failed; the end of what it said is in the text.
        TimeoutError: it took longer than `limit` seconds.
    """
    ran, began = Ran(), time.monotonic()
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=None if environment is None else dict(environment),
    )
    readers = [
        threading.Thread(target=_read, args=(process.stdout, ran, began), daemon=True),
        threading.Thread(target=_listen, args=(process.stderr, ran, began), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        if process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it has ended; its code and its words say why
                process.stdin.write(given)
                process.stdin.close()
        used: dict[int, tuple[str, float]] = {}
        while process.poll() is None:
            _note(process.pid, ran, used)
            if time.monotonic() - began > limit:
                raise TimeoutError(f"not done within {limit:.0f} s: {' '.join(command)}\n{_end(ran)}")
            time.sleep(LOOK_EVERY)
        ran.seconds = time.monotonic() - began
        for name, seconds in used.values():
            ran.cpu[name] = ran.cpu.get(name, 0.0) + seconds
    finally:
        stop(process)
        for reader, stream in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join(STOP_LIMIT)
            if stream and not reader.is_alive():  # (a grandchild may still hold the other end)
                stream.close()
    # The last lines may be read a moment after the end was seen.
    ran.seconds = max([ran.seconds, *(at for at, _ in ran.said)])
    ran.code = process.returncode
    if ran.code:
        raise RuntimeError(
            f"ended with code {ran.code}: {' '.join(command)}\n{ran.output[-500:]}\n{_end(ran)}"
        )
    return ran


def _read(stream: IO[str], ran: Ran, began: float) -> None:
    ran.output = stream.read()


def _listen(stream: IO[str], ran: Ran, began: float) -> None:
    for line in stream:
        ran.said.append((time.monotonic() - began, line.rstrip("\n")))


def _note(pid: int, ran: Ran, used: dict[int, tuple[str, float]]) -> None:
    """Note the peaks of the descendants, and the CPU seconds of all, by their pids."""
    for each in (pid, *descendants(pid)):
        try:
            name = Path(f"/proc/{each}/comm").read_text().strip()
            _, before = used.get(each, (name, 0.0))
            used[each] = name, max(before, process_seconds(each))  # (0 when it has ended meanwhile)
            if each != pid:
                ran.peaks[name] = max(ran.peaks.get(name, 0), peak_bytes(each))
        except (FileNotFoundError, ProcessLookupError, RuntimeError):
            continue  # it has just ended


def _end(ran: Ran) -> str:
    return "\n".join(line for _, line in ran.said[-15:])


def stop(process: subprocess.Popen[Any]) -> None:
    """End a program that still runs: what it has started ends with it; killed if it does not end in time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
