"""Starts the `outbox` command in a process that dies with the test that started it.

Run as `python tests/support/relay_entry.py PARENT_PID relay run …`; what runs is the command itself. A test that is
killed must not leave a relay behind that publishes into the next test's topics.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies; exit if that has happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the test that wanted this process is gone")


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    sys.argv = ["outbox", *sys.argv[2:]]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
