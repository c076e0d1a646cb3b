"""What processes used: CPU seconds and peak memory, as the kernel counts them in /proc."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _CSTIME = 11, 15
"""Places in /proc/<pid>/stat behind the name: utime, stime, and both of the children waited for."""


def _times(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return [0] * 4  # it has ended; its parent has inherited its times
    return [int(field) for field in text.rpartition(")")[2].split()[_UTIME:_CSTIME]]


def _process_ticks(pid: int) -> int:
    user, system, _, _ = _times(pid)
    return user + system


def process_seconds(pid: int) -> float:
    """CPU seconds of a process by itself; 0 when it has ended."""
    return _process_ticks(pid) * _TICK


def _family_ticks(pid: int) -> int:
    """CPU time of a process and its children, living and ended, such as a postmaster and its backends."""
    return sum(_times(pid)) + sum(_process_ticks(child) for child in _children(pid))


def _wait_for_children(pid: int, known: Collection[int], limit: float = 1.0) -> None:
    """Wait until a process has no other children than the known ones: their times then count with its own."""
    deadline = time.monotonic() + limit
    while _children(pid) - set(known) and time.monotonic() < deadline:
        time.sleep(0.005)


def _children(pid: int) -> set[int]:
    """The children of a process, those included that have ended and are not waited for yet."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def descendants(pid: int) -> set[int]:
    """The children of a process, their children, and so on; those that run."""
    try:
        found = _children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return found.union(*(descendants(child) for child in found))


def thread_nanoseconds(pid: int) -> int:
    """CPU time of a single-threaded process to the nanosecond: a backend's, say (/proc/<pid>/schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def peak_bytes(pid: int) -> int:
    """The largest resident size that a running process has had (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel tells no peak memory of process {pid}")


class Meter:
    """CPU seconds of named processes and their children since it was made or reset."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self._began = time.monotonic()
        self._children = {name: _children(pid) for name, pid in self._pids.items()}
        self._before = {name: _family_ticks(pid) for name, pid in self._pids.items()}

    def wait_for_children(self) -> None:
        """Wait a second at most until children that began after the reset have ended and are counted in full."""
        for name, pid in self._pids.items():
            _wait_for_children(pid, self._children[name])

    def seconds(self) -> dict[str, float]:
        """CPU seconds used so far, by name."""
        return {name: (_family_ticks(pid) - self._before[name]) * _TICK for name, pid in self._pids.items()}

    def totals(self) -> dict[str, float]:
        """CPU seconds since the processes began, by name."""
        return {name: _family_ticks(pid) * _TICK for name, pid in self._pids.items()}

    def cores(self) -> dict[str, float]:
        """CPU seconds per second so far, by name."""
        elapsed = time.monotonic() - self._began
        return {name: used / elapsed for name, used in self.seconds().items()}
