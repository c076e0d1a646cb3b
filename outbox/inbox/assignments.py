"""The lock around the partitions of a member, and the threads that wait for a message, or for the end of what runs.

    with assignments as partitions:
        partitions.finish(key, delivery)

Threads that wait are woken up at the end of such a block, if there is a reason. Nothing in one waits for a server.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from time import monotonic

from outbox.inbox.core.partitions import Limits, Partitions, StoredOffset, TopicPart
from outbox.inbox.messages import Delivery


class Assignments:
    """Shares partitions between the threads of a member. Thread-safe."""

    def __init__(self, *, orderly: bool, limits: Limits, is_on_demand: bool = False) -> None:
        """Begin without partitions.

        Args:
            orderly: whether messages of a key have an order.
            limits: of what waits.
            is_on_demand: whether messages are taken only once after each call of `ask`.
        """
        self._is_on_demand, self._is_asked = is_on_demand, not is_on_demand
        self._partitions = Partitions(orderly=orderly, limits=limits)
        lock = threading.RLock()
        self._changed, self._drained = threading.Condition(lock), threading.Condition(lock)
        self._closing = 0
        self._ended = False

    def __enter__(self) -> Partitions:
        self._changed.acquire()
        return self._partitions

    def __exit__(self, *_: object) -> None:
        self._changed.notify(self._partitions.ready(monotonic()))
        if self._closing:
            self._drained.notify_all()
        self._changed.release()

    @property
    def is_asked(self) -> bool:
        """Whether messages may be taken."""
        return self._is_asked

    def ask(self) -> None:
        """Let messages be taken once, if they are on demand."""
        with self._changed:
            self._is_asked = True
            self._changed.notify_all()

    def _ready(self) -> int:
        return self._partitions.ready(monotonic()) if self._is_asked else 0

    def take(self, seconds: float, most: int = 1, linger: float = 0.0) -> list[tuple[Hashable, Delivery]]:
        """Take up to so many messages, at most one of each key; none after this time, or when there will be no more.

        Nothing is taken before there are so many or the time has passed, so that a thread that waits for more messages
        holds up no partition that is given away.

        Args:
            seconds: to wait for the first one.
            most: how many.
            linger: seconds to wait for more once there is one.
        """
        with self._changed:
            has_some, until = False, monotonic() + seconds
            while not self._ended and (ready := self._ready()) < most:
                if has_some != bool(ready):
                    has_some = not has_some
                    until = monotonic() + (linger if has_some else seconds)
                left = until - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if not self._is_asked:
                return []
            taken = self._partitions.take(monotonic(), most)
            self._is_asked = not (taken and self._is_on_demand)
            return taken

    def wait(self, seconds: float) -> bool:
        """Wait until a message can be taken, or until this time has passed; return whether one can."""
        with self._changed:
            if not self._partitions.ready(monotonic()) and not self._ended:
                self._changed.wait(seconds)
            return self._partitions.ready(monotonic()) > 0

    def close(self, which: Iterable[TopicPart] | None, seconds: float) -> list[StoredOffset]:
        """End partitions: forget what has not begun, wait for what runs, and return the offsets to store.

        Args:
            which: the partitions; None: all of them.
            seconds: how long to wait for what runs. What runs longer counts as not done.
        """
        with self._changed:
            places = self._partitions.forget(which)
            deadline = monotonic() + seconds
            self._closing += 1
            while self._partitions.has_running(places) and (left := deadline - monotonic()) > 0:
                self._drained.wait(left)
            self._closing -= 1
            return self._partitions.close(places)

    def require_room(self, topic: str, order_key: bytes | None) -> None:
        """Admit a message that is parked behind others of its key.

        Raises:
            FullKeyError: It has to wait.
        """
        with self._changed:
            self._partitions.full_keys.require(topic, order_key)

    def end(self) -> None:
        """Wake up all who wait: there will be no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
