"""Keep deadlines for calls that cannot be interrupted.

`Bounded` runs a call in a helper thread. Resolving a name or connecting to a database may block for minutes, and
Python cannot stop it: the caller goes on at its deadline and leaves the call behind. At most `slots` calls are left
behind at a time, so nothing piles up.

`Watchdog` is cheaper: a query runs in the caller's own thread, and one thread for all queries interrupts a connection
only when its time is up.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class DeadlineError(TimeoutError):
    """The time for one question is over; the text states what it was spent on."""


def left(deadline: float, doing: str) -> float:
    """Return the seconds until a deadline (by `time.monotonic()`).

    Raises:
        DeadlineError: it has passed.
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


def _nothing() -> None:
    """Stand for what is not called any more."""


class Watch:
    """One call that is watched; `fired`: it was interrupted."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.cut = cut
        self.fired = self.ended = False


class Watchdog:
    """Watches any number of calls; its thread is started with the first and ends with `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Watch]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def until(self, deadline: float, cut: Callable[[], None]) -> Iterator[Watch]:
        """Call `cut` if the block has not ended by `deadline` (`time.monotonic()`); never once it has ended."""
        watch = self.at(deadline, cut)
        try:
            yield watch
        finally:
            self.end(watch)

    def at(self, deadline: float, call: Callable[[], None]) -> Watch:
        """Call something at a time (`time.monotonic()`), unless it is ended before. It must be short, and not raise."""
        watch = Watch(call)
        with self._changed:
            heapq.heappush(self._heap, (deadline, next(self._numbers), watch))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="outbox-watchdog", daemon=True)
                thread.start()  # it waits for the lock; where there is no thread to be had, the next call tries again
                self._thread = thread
            elif self._heap[0][2] is watch:
                self._changed.notify()
        return watch

    def end(self, watch: Watch) -> None:
        """Let a call not be made any more."""
        # Under the lock that `cut` is called under: from here on the connection is somebody else's.
        with self._changed:
            watch.ended = True
            watch.cut = _nothing  # it may be long until its time, and it keeps what it refers to

    def close(self) -> None:
        """End the thread, after the last call that is still watched."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._heap or not self._closed:
                while self._heap and (self._heap[0][2].ended or self._heap[0][0] <= time.monotonic()):
                    watch = heapq.heappop(self._heap)[2]
                    if not watch.ended:
                        watch.fired = True
                        watch.cut()
                if self._heap or not self._closed:
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
            self._thread = None
