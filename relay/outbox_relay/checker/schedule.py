"""Whose turn it is: a fair queue of groups, each in it at most once and worked on by one thread at a time.

Turns go by the time they fell due. A group that always has more to do is put back behind all that are due already, so
a flood of one group costs another one turn of waiting for each of its own.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Schedule:
    """Groups by the time of their next turn; safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, str]] = []
        self._queued: dict[str, tuple[float, int]] = {}
        self._taken: set[str] = set()
        self._again: set[str] = set()
        self._closed = False

    def add(self, group: str) -> None:
        """Give a new group its first turn, now."""
        with self._changed:
            if group not in self._queued and group not in self._taken:
                self._put(group, self._clock())

    def wake(self, group: str) -> None:
        """Let a group's turn be due now; while it is having one, another follows. Unknown groups are ignored."""
        with self._changed:
            if group in self._taken:
                self._again.add(group)
            elif group in self._queued and self._queued[group][0] > self._clock():
                self._put(group, self._clock())

    def take(self) -> str | None:
        """Wait for the next group whose turn is due, and take it; None once the schedule is closed."""
        with self._changed:
            while not self._closed:
                self._drop_outdated()
                now = self._clock()
                if self._heap and self._heap[0][0] <= now:
                    group = heapq.heappop(self._heap)[2]
                    del self._queued[group]
                    self._taken.add(group)
                    return group
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
            return None

    def give_back(self, group: str, pause: float | None) -> None:
        """End a group's turn; its next one is due in `pause` seconds, None: it has no other."""
        with self._changed:
            self._taken.discard(group)
            woken = group in self._again
            self._again.discard(group)
            if pause is not None:
                self._put(group, self._clock() + (0.0 if woken else pause))

    def close(self) -> None:
        """Send home everybody who waits in `take`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put(self, group: str, due: float) -> None:
        entry = (due, next(self._numbers))
        self._queued[group] = entry
        heapq.heappush(self._heap, (*entry, group))
        self._changed.notify()

    def _drop_outdated(self) -> None:
        while self._heap and self._queued.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
