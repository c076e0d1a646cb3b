"""Work that waits, one queue for each key: a key is in one worker's hands at a time, many keys at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from outbox.backoff import Backoff

T = TypeVar("T")
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0
"""Seconds for which a key waits that was postponed, once and many times in a row."""


@dataclass(slots=True)
class _KeyQueue(Generic[T]):
    """What waits for one key, and the place that the key belongs to."""

    place: Hashable
    items: deque[T]
    pauses: Backoff | None = None
    """If it was postponed since it was released last."""


class KeyQueues(Generic[T]):
    """First in, first out for each key; places, such as partitions, take turns, and so do the keys of a place.

    Between two takes from a place that has ready keys, each other place has one turn at most. So the first work of a
    key with `k` ready keys of its place before it is taken after `k + 1` rounds, however much work waits elsewhere.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, _KeyQueue[T]] = {}
        """By key, for each key that has work, or is in a worker's hands."""
        self._ready: dict[Hashable, deque[Hashable]] = {}
        """The keys whose work can be taken, by place; each place has one at least."""
        self._turns: deque[Hashable] = deque()
        """The places that have ready keys, in the order of their turns."""
        self._busy: set[Hashable] = set()
        self._due: dict[Hashable, float] = {}
        """When the work of keys that were postponed can be taken again."""

    def put(self, place: Hashable, key: Hashable, item: T) -> None:
        """Add work behind the other work of its key; a key belongs to one place."""
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = _KeyQueue(place, deque((item,)))
            self._make_ready(place, key)
        else:
            queue.items.append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """Take the next work of the place and key whose turn it is; None: all keys are empty or busy."""
        if not self._turns:
            return None
        place = self._turns.popleft()
        keys = self._ready[place]
        key = keys.popleft()
        if keys:
            self._turns.append(place)
        else:
            del self._ready[place]
        self._busy.add(key)
        return key, self._queues[key].items.popleft()

    def take_more(self, key: Hashable, fits: Callable[[T], bool]) -> list[T]:
        """Take the next work of a key that is in the caller's hands, up to the first that does not fit."""
        items, taken = self._queues[key].items, []
        while items and fits(items[0]):
            taken.append(items.popleft())
        return taken

    def put_back(self, key: Hashable, items: list[T]) -> None:
        """Put work that was taken by `take_more` back in front of the other work of its key."""
        self._queues[key].items.extendleft(reversed(items))

    @property
    def ready(self) -> int:
        """How many keys have work that can be taken."""
        return sum(map(len, self._ready.values()))

    def release(self, key: Hashable) -> bool:
        """Let the key's next work be taken; return whether there is any."""
        self._busy.discard(key)
        queue = self._queues.get(key)
        if queue is not None and queue.items:
            queue.pauses = None
            self._make_ready(queue.place, key)
            return True
        self._queues.pop(key, None)
        return False

    def postpone(self, key: Hashable, now: float) -> None:
        """Hold back the work of a key that is in the caller's hands for a pause, longer each time."""
        queue = self._queues[key]
        if not queue.items:
            self.release(key)
            return
        self._busy.discard(key)
        queue.pauses = queue.pauses or Backoff(FIRST_PAUSE, LAST_PAUSE)
        self._due[key] = now + queue.pauses.next()

    def wake(self, now: float) -> None:
        """Let the work of keys whose pause has ended be taken."""
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            self._make_ready(self._queues[key].place, key)

    def forget(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the work that has not begun and fits."""
        gone: list[T] = []
        for key, queue in list(self._queues.items()):
            gone.extend(item for item in queue.items if unwanted(item))
            queue.items = deque(item for item in queue.items if not unwanted(item))
            if not queue.items and key not in self._busy:
                del self._queues[key]
        self._due = {key: due for key, due in self._due.items() if key in self._queues}
        left = {
            place: deque(key for key in keys if key in self._queues) for place, keys in self._ready.items()
        }
        self._ready = {place: keys for place, keys in left.items() if keys}
        self._turns = deque(place for place in self._turns if place in self._ready)
        return gone

    def _make_ready(self, place: Hashable, key: Hashable) -> None:
        if place not in self._ready:
            self._ready[place] = deque()
            self._turns.append(place)
        self._ready[place].append(key)

    def __len__(self) -> int:
        return sum(len(queue.items) for queue in self._queues.values())
