"""Starts the relay so that it kills itself, with SIGKILL, before or after the n-th call of one of its steps.

Run as `python dying_relay.py STEP WHEN N PARENT_PID relay run …`. WHEN is `before` or `after`, or `pauses before` or
`pauses after` for a SIGSTOP, after which a SIGCONT lets it go on. A step is named `module:Class.method` or
`module:function`, the module below outbox_relay. "after" counts only calls that did something, as their result
tells: rows were found, messages recorded, partitions left out.
"""

from __future__ import annotations

import functools
import importlib
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from outbox_relay.publisher.polls import Poll
from tests.support.relay_entry import die_with


def strike(when: str) -> None:
    """End at once, with no cleanup and no goodbye to the servers; or stand still until somebody lets it go on.

    The signal goes to this thread: one to the process is taken by the main thread, and the step would go on meanwhile.
    """
    pauses = when.startswith("pauses")
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if pauses else signal.SIGKILL)
    assert pauses, "still alive"


def did_something(result: Any) -> bool:
    """Whether a step's result tells that there was something to do; None tells nothing."""
    return bool(result.rows) if isinstance(result, Poll) else result is None or bool(result)


def dying(step: Callable[..., Any], when: str, number: int) -> Callable[..., Any]:
    """Wrap a step."""
    calls = 0

    @functools.wraps(step)
    def wrapped(*args: Any, **named: Any) -> Any:
        nonlocal calls
        if when.endswith("before"):
            calls += 1
            if calls == number:
                strike(when)
            return step(*args, **named)
        result = step(*args, **named)
        before, calls = calls, calls + did_something(result)
        if before < calls == number:
            strike(when)
        return result

    return wrapped


def arm(step: str, when: str, number: int) -> None:
    """Put the wrapped step in the place of the real one."""
    module_name, _, path = step.partition(":")
    holder: Any = importlib.import_module(f"outbox_relay.{module_name}")
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    setattr(holder, name, dying(getattr(holder, name), when, number))


if __name__ == "__main__":
    armed, moment, count, parent, *rest = sys.argv[1:]
    die_with(int(parent))
    arm(armed, moment, int(count))
    sys.argv = ["outbox", *rest]
    runpy.run_module("outbox_relay", run_name="__main__", alter_sys=True)
