"""Processes by identity: a pid alone proves nothing, because the kernel gives it to somebody else one day."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from outbox_local.stack.users import ServiceUser

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for all time: its pid, when it started (clock ticks since boot) and in which boot.

    Why all three: after a reboot pids start over, and even start times can repeat.
    """

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Identify a running process; None without one of that pid, or only its zombie."""
        fields = _stat(pid)
        if fields is None or fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id())

    def alive(self) -> bool:
        """Return whether this very process still runs (a zombie does not)."""
        return Identity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal this very process, and no other; nothing happens when it is gone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def boot_id() -> str:
    """Name the running boot of this machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def family(pid: int) -> list[Identity]:
    """Find a process and its children, as a PostgreSQL postmaster and its backends.

    Why by parent and not by process group: each backend of PostgreSQL makes a session of its own.
    """
    found = [Identity.of(pid)]
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None and int(fields[1]) == pid:
                found.append(Identity.of(int(entry.name)))
    return [identity for identity in found if identity is not None]


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    death_signal: signal.Signals,
    user: ServiceUser | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server that cannot outlive the calling thread: the kernel sends it `death_signal` when that ends.

    Output is appended to `log`. Call it from a main thread of a process without other threads: between fork
    and exec Python code runs here, and the kernel watches the thread, not the process.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        # After the change of user, because that change clears the setting.
        _libc.prctl(PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the setting was made

    with log.open("ab") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else {**os.environ, **environment},
            cwd="/",
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (the caller has one thread; there is no other way)
        )


def _stat(pid: int) -> list[str] | None:
    """Read the fields of /proc/<pid>/stat from the state on; the name before it may hold spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
