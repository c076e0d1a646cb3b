"""Waiting for a condition: the one place where tests let time pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WaitTimeoutError(AssertionError):
    """What a test waited for did not come true in time; the one failure that may be the machine's."""


class StageTimeoutError(WaitTimeoutError):
    """A fault did not come about: nothing was seen of what the product does about it."""


def wait_until(condition: Callable[[], T | None], what: str, *, seconds: float = 120.0) -> T:
    """Ask again and again until the answer is true, and return it.

    The limit is there for a test that fails; one that passes never waits for it, so it may be generous.

    Raises:
        WaitTimeoutError: naming what did not come true within `seconds`.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(f"did not come true within {seconds:g} s: {what}")
        pause.wait(0.01)
    return answer
