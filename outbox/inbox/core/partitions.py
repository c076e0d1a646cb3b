"""The partitions that a member reads now: what was delivered, what is in the hands of threads, what is done.

Partitions take turns: what waits of one, up to `Limits.messages`, does not delay a message of another one by more than
one message of each.

A partition that is closed and opened again has another epoch. Work of an older one may still run; its end changes no
offset here. Its effect is guarded by the inbox, not by epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields

from outbox.errors import ConfigurationError
from outbox.inbox.core.full_keys import FullKeys
from outbox.inbox.core.key_queues import KeyQueues
from outbox.inbox.core.suspects import Suspects
from outbox.inbox.core.tracker import OffsetTracker
from outbox.inbox.messages import Delivery, Source
from outbox.inbox.vitals import PartitionVitals

TopicPart = tuple[str, int]
EVERY_TOPIC = ""
"""Stands for all topics of a group among its pauses."""


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
    stored: int = -1
    waiting: int = 0
    size: int = 0
    running: int = 0
    paused: bool = False

    def wait(self, delivery: Delivery) -> None:
        """Note that a message waits."""
        self.waiting += 1
        self.size += size_of(delivery)

    def begin(self, delivery: Delivery) -> None:
        """Note that a message that waits is in a thread's hands."""
        self.waiting -= 1
        self.size -= size_of(delivery)
        self.running += 1

    def offset(self, place: TopicPart, server: int) -> StoredOffset:
        """Return the offset to store."""
        return StoredOffset(*place, self.source.topic_id, self.tracker.safe, self.generation, server)

    def load(self, limits: Limits) -> float:
        """Return how much of its limits it uses; from 1 on no more is fetched."""
        return max(self.waiting / limits.messages, self.size / limits.size, self.tracker.width / limits.width)


class Pauses:
    """The pauses that a member obeys; the keeper replaces `topics`, and others read."""

    def __init__(self) -> None:
        self.topics: Mapping[str, str] = {}
        """The reason of each pause by topic; `EVERY_TOPIC`: of the group."""

    def has(self, topic: str) -> bool:
        """Return whether a topic is paused."""
        return topic in self.topics or EVERY_TOPIC in self.topics


class Partitions:
    """All partitions that are assigned and open. Not thread-safe."""

    def __init__(self, *, orderly: bool, limits: Limits) -> None:
        self._orderly, self._limits = orderly, limits
        self._open: dict[TopicPart, OpenPartition] = {}
        self._queues: KeyQueues[Delivery] = KeyQueues()
        self._epoch = 0
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
        if server != self.server:
            return None
        self._epoch += 1
        self._open[where] = OpenPartition(source, generation, self._epoch, OffsetTracker(start))
        return self._epoch

    @property
    def places(self) -> list[TopicPart]:
        """The partitions that are open."""
        return list(self._open)

    def find(self, where: TopicPart) -> OpenPartition | None:
        """Return an open partition, for its source and epoch."""
        return self._open.get(where)

    # Messages -------------------------------------------------------------------------------------------------

    def add(self, delivery: Delivery) -> bool:
        """Queue a message; False: it was delivered before, or its partition is not open."""
        message = delivery.message
        place = (message.topic, message.partition)
        found = self._open.get(place)
        if found is None or not found.tracker.add(message.offset):
            return False
        found.wait(delivery)
        if delivery.order_key is None or not self._orderly:
            self._queues.put(place, (*place, delivery.epoch, message.offset), delivery)
        else:
            self._queues.put(place, (*place, delivery.order_key), delivery)
        return True

    def skip(self, where: TopicPart, offset: int) -> None:
        """Note a message that is not subscribed to: done as soon as it is seen."""
        found = self._open.get(where)
        if found is not None and found.tracker.add(offset):
            found.tracker.done(offset)
            self.skipped += 1

    def advance(self, where: TopicPart, position: int) -> None:
        """Note that reading has passed what lies below a position, such as the broker's own records."""
        if found := self._open.get(where):
            found.tracker.advance(position)

    def ready(self, now: float) -> int:
        """Return how many keys have a message that can be taken."""
        self._queues.wake(now)
        return self._queues.ready

    def take(self, now: float, most: int = 1) -> list[tuple[Hashable, Delivery]]:
        """Take up to so many messages, at most one of each key, and at most one that was locked."""
        self._queues.wake(now)
        taken: list[tuple[Hashable, Delivery]] = []
        while len(taken) < most and (one := self._queues.take()):
            taken.append(one)
            if found := self._current(one[1]):
                found.begin(one[1])
            if one[1].was_locked:
                break  # it is handled alone, and may keep its thread waiting: not behind others of its kind
        return taken

    def take_followers(self, key: Hashable, fits: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take the next messages of a key whose message is in the caller's hands, up to the first that does not fit.

        They are to be ended by `finish_followers`, before that message is.
        """
        taken = self._queues.take_more(key, fits)
        for each in taken:
            if found := self._current(each):
                found.begin(each)
        return taken

    def finish_followers(self, key: Hashable, deliveries: Iterable[Delivery], done: Iterable[bool]) -> None:
        """End messages that `take_followers` has returned; those that are not done wait in front again.

        Args:
            key: as of `take_followers`.
            deliveries: the messages.
            done: for each of them whether it needs nothing more.
        """
        again = []
        for delivery, is_done in zip(deliveries, done, strict=True):
            found = self._end(delivery, done=is_done)
            if found is not None and not is_done:
                found.wait(delivery)
                again.append(delivery)
        self._queues.put_back(key, again)

    def give_back(self, key: Hashable, delivery: Delivery, *, since: float | None = None) -> None:
        """Let a message that was taken wait again, in front of its key; `since`: its key waits for a while."""
        self.finish_followers(key, [delivery], [False])
        if since is None:
            self._queues.release(key)
        else:
            self._queues.postpone(key, since)

    def finish(self, key: Hashable, delivery: Delivery, *, done: bool = True) -> None:
        """End a message that was taken.

        Args:
            key: what `take` returned with it.
            delivery: the message.
            done: whether it needs nothing more; False: it comes again after the partition's next assignment.
        """
        self._end(delivery, done=done)
        self._queues.release(key)

    def _end(self, delivery: Delivery, *, done: bool) -> OpenPartition | None:
        found = self._current(delivery)
        if found is not None:
            found.running -= 1
            if done:
                found.tracker.done(delivery.message.offset)
        return found

    def is_current(self, delivery: Delivery) -> bool:
        """Return whether the partition of a message is still the one that it came with."""
        return self._current(delivery) is not None

    def _current(self, delivery: Delivery) -> OpenPartition | None:
        found = self._open.get((delivery.message.topic, delivery.message.partition))
        return found if found is not None and found.epoch == delivery.epoch else None

    # Ends -----------------------------------------------------------------------------------------------------

    def forget(self, which: Iterable[TopicPart] | None) -> set[TopicPart]:
        """Forget what has not begun of partitions, None: of all; return those of them that are open."""
        places = set(self._open if which is None else which) & self._open.keys()
        self._queues.forget(lambda each: (each.message.topic, each.message.partition) in places)
        return places

    def has_running(self, places: Iterable[TopicPart]) -> bool:
        """Return whether a message of these partitions is in a thread's hands."""
        return any(place in self._open and self._open[place].running > 0 for place in places)

    def close(self, places: Iterable[TopicPart]) -> list[StoredOffset]:
        """End partitions, as far as they are open, and return the offsets to store: what runs counts as not done."""
        closed = [place for place in places if place in self._open]
        return [self._open.pop(place).offset(place, self.server) for place in closed]

    def restart(self) -> None:
        """End all partitions at once and store nothing of them: another server of PostgreSQL has taken over."""
        self.server += 1
        self.forget(None)
        self._open.clear()

    # Offsets and bounds ---------------------------------------------------------------------------------------

    def offsets(self) -> list[StoredOffset]:
        """Return the offsets that moved since they were stored."""
        moved = [(place, each) for place, each in self._open.items() if each.tracker.safe > each.stored]
        return [each.offset(place, self.server) for place, each in moved]

    def stored(self, offsets: Iterable[StoredOffset]) -> None:
        """Note offsets that are stored."""
        for each in offsets:
            if found := self._open.get((each.topic, each.part)):
                found.stored = max(found.stored, each.offset)

    def full(self) -> tuple[list[TopicPart], list[TopicPart]]:
        """Return the partitions to pause now, and those to resume: these are at half of their limits."""
        pause, resume = [], []
        for place, each in self._open.items():
            load = each.load(self._limits)
            if load >= 1 and not each.paused:
                each.paused = True
                pause.append(place)
            elif load <= 0.5 and each.paused:
                each.paused = False
                resume.append(place)
        return pause, resume

    def idle(self) -> list[TopicPart]:
        """Return the partitions of which everything that was seen is done."""
        return [place for place, each in self._open.items() if not each.tracker.incomplete]

    def vitals(self, ends: Mapping[TopicPart, int]) -> tuple[PartitionVitals, ...]:
        """Return how each partition stands; `ends`: where they end in Kafka, as far as that is known."""
        return tuple(
            PartitionVitals(
                *place, each.tracker.safe, ends.get(place), each.waiting, each.running, each.paused
            )
            for place, each in sorted(self._open.items())
        )


def size_of(delivery: Delivery) -> int:
    """Return roughly how many bytes of a message are kept in memory."""
    message = delivery.message
    values = sum(len(value or b"") for _, value in message.headers)
    return len(message.key or b"") + len(message.body or b"") + values + 64 * (4 + len(message.headers))
