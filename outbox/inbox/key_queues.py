"""Work that waits, one queue for each key: a key is in one worker's hands at a time, many keys at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyQueues(Generic[T]):
    """First in, first out for each key; keys take turns, so that one with a backlog does not hold up the others.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[T]] = {}
        """What waits, for each key that has work, or is in a worker's hands."""
        self._ready: deque[Hashable] = deque()
        self._busy: set[Hashable] = set()

    def put(self, key: Hashable, item: T) -> None:
        """Add work behind the other work of its key."""
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((item,))
            self._ready.append(key)
        else:
            queue.append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """Take the next work of the key whose turn it is; None: all keys are empty or busy."""
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._busy.add(key)
        return key, self._queues[key].popleft()

    def take_more(self, key: Hashable, fits: Callable[[T], bool]) -> list[T]:
        """Take the next work of a key that is in the caller's hands, up to the first that does not fit."""
        queue, taken = self._queues[key], []
        while queue and fits(queue[0]):
            taken.append(queue.popleft())
        return taken

    def put_back(self, key: Hashable, items: list[T]) -> None:
        """Put work that was taken by `take_more` back in front of the other work of its key."""
        self._queues[key].extendleft(reversed(items))

    @property
    def ready(self) -> int:
        """How many keys have work that can be taken."""
        return len(self._ready)

    def release(self, key: Hashable) -> bool:
        """Let the key's next work be taken; return whether there is any."""
        self._busy.discard(key)
        if self._queues.get(key):
            self._ready.append(key)
            return True
        self._queues.pop(key, None)
        return False

    def forget(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the work that has not begun and fits."""
        gone: list[T] = []
        for key, queue in list(self._queues.items()):
            kept = deque(item for item in queue if not unwanted(item))
            gone.extend(item for item in queue if unwanted(item))
            if kept or key in self._busy:
                self._queues[key] = kept
            else:
                del self._queues[key]
        self._ready = deque(key for key in self._ready if self._queues.get(key))
        return gone

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))
