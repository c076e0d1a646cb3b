"""Calls that cannot be interrupted, run in helper threads so that a deadline can be kept.

Looking up a name or connecting to a database may block for minutes, and Python cannot stop it. The caller goes on at
its deadline and leaves the call behind; at most `slots` are left behind at a time, so nothing piles up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DeadlineError(TimeoutError):
    """The time for one question is over; the text says what it was spent on."""


def left(deadline: float, doing: str) -> float:
    """Return the seconds until a deadline (by `time.monotonic()`).

    Raises:
        DeadlineError: there are none.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise DeadlineError(f"time is up while {doing}")
    return seconds


class Bounded(Generic[T]):
    """Runs calls in threads, at most `slots` at a time.

    Args:
        slots: calls under way, those left behind included.
        discard: is given a result that came after its caller had gone.
    """

    def __init__(self, slots: int, discard: Callable[[T], None] | None = None) -> None:
        self._slots = threading.BoundedSemaphore(slots)
        self._discard = discard

    def call(self, function: Callable[[], T], deadline: float, doing: str) -> T:
        """Run `function` and return what it returns, or raise what it raises.

        Raises:
            DeadlineError: it did not end in time, or earlier calls still hold all slots.
        """
        if not self._slots.acquire(timeout=left(deadline, doing)):
            raise DeadlineError(f"time is up while {doing}: earlier calls still hang")
        call = _Call(function, self._slots, self._discard)
        try:
            threading.Thread(target=call.run, name=f"outbox-{doing}", daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            self._slots.release()
            raise
        return call.wait(deadline, doing)


class _Call(Generic[T]):
    def __init__(
        self,
        function: Callable[[], T],
        slots: threading.BoundedSemaphore,
        discard: Callable[[T], None] | None,
    ) -> None:
        self._function, self._slots, self._discard = function, slots, discard
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._abandoned = False

    def run(self) -> None:
        try:
            self._keep(self._function())
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            self._error = error
        finally:
            self._slots.release()
            self._ended.set()

    def _keep(self, result: T) -> None:
        # Under the lock: the caller either takes the result or has gone, never neither.
        with self._lock:
            if not self._abandoned:
                self._result.append(result)
                return
        if self._discard is not None:
            self._discard(result)

    def wait(self, deadline: float, doing: str) -> T:
        self._ended.wait(max(deadline - time.monotonic(), 0))
        with self._lock:
            if self._result:
                return self._result[0]
            self._abandoned = True
        if self._error is not None:
            raise self._error
        raise DeadlineError(f"time is up while {doing}")
