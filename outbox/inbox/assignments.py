"""The partitions that a member reads now: what was delivered, what runs, what is done.

The thread that polls Kafka opens and closes partitions and adds deliveries; listeners' threads take and finish
them. All of it is under one lock, and nothing here waits for a server. Partitions take turns: what waits of one, up to
`Limits.messages`, does not delay a message of another one by more than one message of each.

A partition that is closed and opened again has another epoch. Work of an older one may still run; its end changes no
offset here. Its effect is guarded by the inbox, not by epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from time import monotonic

from outbox.errors import ConfigurationError
from outbox.inbox.full_keys import FullKeys
from outbox.inbox.key_queues import KeyQueues
from outbox.inbox.messages import Delivery, Source
from outbox.inbox.pauses import Pauses
from outbox.inbox.suspects import Suspects
from outbox.inbox.tracker import OffsetTracker
from outbox.inbox.vitals import PartitionVitals

TopicPart = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait, and how far listeners may run ahead of the slowest."""

    messages: int = 1000
    """Of one partition, in memory."""
    size: int = 16 << 20
    """Bytes of these."""
    width: int = 2000
    """Offsets of a partition between the first message that is not done and the last one that was fetched."""
    behind_key: int = 10_000
    """Messages that are parked behind one of their key that failed."""
    behind_group: int = 100_000
    """Messages that are parked behind such messages of the whole group."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not isinstance(value := getattr(self, each.name), int) or value < 1:
                raise ConfigurationError(f"limits: {each.name} = {value!r}; allowed: 1 or more")


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """An offset to store: all below it is done."""

    topic: str
    part: int
    topic_id: int
    offset: int
    generation: int
    server: int
    """The number of the server of PostgreSQL, as the member counts them: what is done there."""


@dataclass(slots=True)
class OpenPartition:
    """One partition from its assignment until it is revoked."""

    source: Source
    generation: int
    epoch: int
    tracker: OffsetTracker
    stored: int
    waiting: int = 0
    size: int = 0
    running: int = 0
    paused: bool = field(default=False)


class Assignments:
    """All partitions that are assigned and open."""

    def __init__(self, *, orderly: bool, limits: Limits) -> None:
        self._orderly, self._limits = orderly, limits
        self._open: dict[TopicPart, OpenPartition] = {}
        self._queues: KeyQueues[Delivery] = KeyQueues()
        lock = threading.RLock()
        self._changed, self._drained = threading.Condition(lock), threading.Condition(lock)
        self._closing = 0
        self._epoch = 0
        self._ended = False
        self.suspects = Suspects()
        self.full_keys = FullKeys(limits.behind_key, limits.behind_group)
        self.pauses = Pauses()
        self.skipped = 0
        """Messages that are not subscribed to."""
        self.server = 0
        """How often another server of PostgreSQL has taken over since the start."""

    def open(
        self, where: TopicPart, source: Source, start: int, generation: int, server: int = 0
    ) -> int | None:
        """Begin with a partition; return its epoch, None if another server has taken over since the start was read."""
        with self._changed:
            if server != self.server:
                return None
            self._epoch += 1
            self._open[where] = OpenPartition(source, generation, self._epoch, OffsetTracker(start), -1)
            return self._epoch

    @property
    def count(self) -> int:
        """How many partitions are open."""
        return len(self._open)

    def find(self, where: TopicPart) -> OpenPartition | None:
        """Return an open partition, for its source and epoch."""
        return self._open.get(where)

    def add(self, delivery: Delivery) -> bool:
        """Queue a message; False: it was delivered before, or its partition is not open."""
        message = delivery.message
        with self._changed:
            found = self._open.get((message.topic, message.partition))
            if found is None or not found.tracker.add(message.offset):
                return False
            found.waiting += 1
            found.size += size_of(delivery)
            self._queues.put((message.topic, message.partition), self._key(delivery), delivery)
            self._changed.notify()
            return True

    def skip(self, where: TopicPart, offset: int) -> None:
        """Note a message that is not subscribed to: done as soon as it is seen."""
        with self._changed:
            found = self._open.get(where)
            if found is not None and found.tracker.add(offset):
                found.tracker.done(offset)
                self.skipped += 1

    def advance(self, where: TopicPart, position: int) -> None:
        """Note that reading has passed what lies below a position, such as the broker's own records."""
        with self._changed:
            if found := self._open.get(where):
                found.tracker.advance(position)

    def wait(self, seconds: float) -> bool:
        """Wait until a message can be taken, or until this time has passed; return whether one can."""
        with self._changed:
            self._queues.wake(monotonic())
            if not self._queues.ready and not self._ended:
                self._changed.wait(seconds)
                self._queues.wake(monotonic())
            return self._queues.ready > 0

    def pass_on(self) -> None:
        """Let another thread take what the caller was woken up for."""
        with self._changed:
            self._changed.notify()

    def take(self, seconds: float) -> tuple[Hashable, Delivery] | None:
        """Take the next message; None after this time, or when there will be no more."""
        with self._changed:
            taken = self._take()
            if taken is None and not self._ended:
                self._changed.wait(seconds)
                taken = self._take()
            return taken

    def take_batch(self, most: int, linger: float, seconds: float) -> list[tuple[Hashable, Delivery]]:
        """Take up to so many messages, at most one of each key; none after this time, or when there will be no more.

        Nothing is taken before the batch is full or the time has passed, so that a thread that waits for more messages
        holds up no partition that is given away.

        Args:
            most: how many.
            linger: seconds to wait for more once there is one.
            seconds: to wait for the first one.
        """
        with self._changed:
            has_some, until = False, monotonic() + seconds
            self._queues.wake(monotonic())
            while not self._ended and self._queues.ready < most:
                if has_some != bool(self._queues.ready):
                    has_some = not has_some
                    until = monotonic() + (linger if has_some else seconds)
                left = until - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
                self._queues.wake(monotonic())
            taken: list[tuple[Hashable, Delivery]] = []
            while len(taken) < most and (one := self._take()):
                taken.append(one)
                if one[1].was_locked:
                    break  # it is handled alone, and may keep its thread waiting: not behind others of its kind
            return taken

    def _take(self) -> tuple[Hashable, Delivery] | None:
        self._queues.wake(monotonic())
        taken = self._queues.take()
        if taken is not None:
            self._begin(taken[1])
        return taken

    def _begin(self, delivery: Delivery) -> None:
        if found := self._current(delivery):
            found.waiting -= 1
            found.size -= size_of(delivery)
            found.running += 1

    def take_followers(self, key: Hashable, fits: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take the next messages of a key whose message is in the caller's hands, up to the first that does not fit.

        They are to be ended by `finish_followers`, before that message is.
        """
        with self._changed:
            taken = self._queues.take_more(key, fits)
            for each in taken:
                self._begin(each)
            return taken

    def finish_followers(self, key: Hashable, deliveries: Iterable[Delivery], done: Iterable[bool]) -> None:
        """End messages that `take_followers` has returned; those that are not done wait in front again.

        Args:
            key: as of `take_followers`.
            deliveries: the messages.
            done: for each of them whether it needs nothing more.
        """
        with self._changed:
            again = []
            for delivery, is_done in zip(deliveries, done, strict=True):
                found = self._end(delivery, done=is_done)
                if found is not None and not is_done:
                    found.waiting += 1
                    found.size += size_of(delivery)
                    again.append(delivery)
            self._queues.put_back(key, again)
            if self._closing:
                self._drained.notify_all()

    def give_back(self, key: Hashable, delivery: Delivery) -> None:
        """Let a message that was taken wait again, in front of its key."""
        self.finish_followers(key, [delivery], [False])
        with self._changed:
            if self._queues.release(key):
                self._changed.notify()

    def postpone(self, key: Hashable, delivery: Delivery) -> None:
        """Let a message that was taken wait again, in front of its key; none of the key is taken for a while."""
        self.finish_followers(key, [delivery], [False])
        with self._changed:
            self._queues.postpone(key, monotonic())

    def hurry(self) -> None:
        """Let the work that was postponed be taken now."""
        with self._changed:
            self._queues.wake(inf)
            self._changed.notify_all()

    def finish(self, key: Hashable, delivery: Delivery, *, done: bool = True) -> None:
        """End a message that was taken.

        Args:
            key: what `take` returned with it.
            delivery: the message.
            done: whether it needs nothing more; False: it comes again after the partition's next assignment.
        """
        with self._changed:
            self._end(delivery, done=done)
            if self._queues.release(key):
                self._changed.notify()
            if self._closing:
                self._drained.notify_all()

    def _end(self, delivery: Delivery, *, done: bool) -> OpenPartition | None:
        found = self._current(delivery)
        if found is not None:
            found.running -= 1
            if done:
                found.tracker.done(delivery.message.offset)
        return found

    def is_current(self, delivery: Delivery) -> bool:
        """Return whether the partition of a message is still the one that it came with."""
        with self._changed:
            return self._current(delivery) is not None

    def close(self, which: Iterable[TopicPart] | None, seconds: float) -> list[StoredOffset]:
        """End partitions: forget what has not begun, wait for what runs, and return the offsets to store.

        Args:
            which: the partitions; None: all of them.
            seconds: how long to wait for what runs. What runs longer counts as not done.
        """
        with self._changed:
            places = set(self._open if which is None else which) & self._open.keys()
            self._queues.forget(lambda each: (each.message.topic, each.message.partition) in places)
            deadline = monotonic() + seconds
            self._closing += 1
            while any(self._is_running(place) for place in places) and monotonic() < deadline:
                self._drained.wait(max(0.0, deadline - monotonic()))
            self._closing -= 1
            places &= self._open.keys()  # another server may have taken over meanwhile
            offsets = [self._offset(place) for place in places]
            for place in places:
                del self._open[place]
            return offsets

    def restart(self) -> None:
        """End all partitions at once and store nothing of them: another server of PostgreSQL has taken over."""
        with self._changed:
            self.server += 1
            self._queues.forget(lambda _: True)
            self._open.clear()
            self._drained.notify_all()

    def offsets(self) -> list[StoredOffset]:
        """Return the offsets that moved since they were stored."""
        with self._changed:
            return [
                self._offset(place) for place, each in self._open.items() if each.tracker.safe > each.stored
            ]

    def stored(self, offsets: Iterable[StoredOffset]) -> None:
        """Note offsets that are stored."""
        with self._changed:
            for each in offsets:
                if found := self._open.get((each.topic, each.part)):
                    found.stored = max(found.stored, each.offset)

    def full(self) -> tuple[list[TopicPart], list[TopicPart]]:
        """Return the partitions to pause now, and those to resume: these are at half of their limits."""
        pause, resume = [], []
        with self._changed:
            for place, each in self._open.items():
                load = max(
                    each.waiting / self._limits.messages,
                    each.size / self._limits.size,
                    each.tracker.width / self._limits.width,
                )
                if load >= 1 and not each.paused:
                    each.paused = True
                    pause.append(place)
                elif load <= 0.5 and each.paused:
                    each.paused = False
                    resume.append(place)
        return pause, resume

    def vitals(self, ends: Mapping[TopicPart, int]) -> tuple[PartitionVitals, ...]:
        """Return how each partition stands; `ends`: where they end in Kafka, as far as that is known."""
        with self._changed:
            return tuple(
                PartitionVitals(
                    *place, each.tracker.safe, ends.get(place), each.waiting, each.running, each.paused
                )
                for place, each in sorted(self._open.items())
            )

    def idle(self) -> list[TopicPart]:
        """Return the partitions of which everything that was seen is done."""
        with self._changed:
            return [place for place, each in self._open.items() if not each.tracker.incomplete]

    def end(self) -> None:
        """Wake up all who wait: there will be no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _key(self, delivery: Delivery) -> Hashable:
        message = delivery.message
        place = (message.topic, message.partition)
        if delivery.order_key is None or not self._orderly:
            return (*place, delivery.epoch, message.offset)
        return (*place, delivery.order_key)

    def _current(self, delivery: Delivery) -> OpenPartition | None:
        found = self._open.get((delivery.message.topic, delivery.message.partition))
        return found if found is not None and found.epoch == delivery.epoch else None

    def _is_running(self, place: TopicPart) -> bool:
        return (found := self._open.get(place)) is not None and found.running > 0

    def _offset(self, place: TopicPart) -> StoredOffset:
        found = self._open[place]
        return StoredOffset(*place, found.source.topic_id, found.tracker.safe, found.generation, self.server)


def size_of(delivery: Delivery) -> int:
    """Return roughly how many bytes of a message are kept in memory."""
    message = delivery.message
    values = sum(len(value or b"") for _, value in message.headers)
    return len(message.key or b"") + len(message.body or b"") + values + 64 * (4 + len(message.headers))
