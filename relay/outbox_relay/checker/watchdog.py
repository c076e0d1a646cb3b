"""Ends what is late: one thread that, at a deadline, cuts off the connection a call waits on.

A query runs in the caller's own thread, which is much cheaper than a helper thread for each; only when its time is up
is something done about it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watch:
    """One call that is watched; `fired` tells that it was cut off."""

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
        watch = Watch(cut)
        with self._changed:
            heapq.heappush(self._heap, (deadline, next(self._numbers), watch))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox-watchdog", daemon=True)
                self._thread.start()
            elif self._heap[0][2] is watch:
                self._changed.notify()
        try:
            yield watch
        finally:
            # Under the lock that `cut` is called under: from here on the connection is somebody else's.
            with self._changed:
                watch.ended = True

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
