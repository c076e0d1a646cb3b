"""The messages on their way to Kafka: one stream for each partition, and the producers that carry them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter, is_
from typing import NamedTuple

from outbox_relay.publisher.core.values import Item, Limits, Row, Scope


class Producer(NamedTuple):
    """A producer of Kafka that the driver keeps. The next one has a higher number.

    The main producer pipelines the messages of a partition, so a refusal ends it: nothing behind the refused message
    may arrive. A single-message producer has at most one message of a partition, so it survives a refusal.
    """

    number: int
    is_single: bool


_number = attrgetter("number")

NO_PRODUCER = Producer(0, is_single=False)
"""Of a stream of which nothing was sent."""


@dataclass(slots=True, eq=False)
class Stream:
    """One partition: the messages that wait to be sent, and those on the wire of one producer, in order."""

    queued: deque[Item] = field(default_factory=deque)
    sent: deque[Item] = field(default_factory=deque)
    producer: Producer = NO_PRODUCER


class Streams:
    """All streams. Every row of a key is in one of them."""

    def __init__(self, limits: Limits) -> None:
        """Begin with nothing on the way."""
        self.limits = limits
        self.by_name: dict[tuple[str, int], Stream] = {}
        self.main = Producer(1, is_single=False)
        self.single = Producer(2, is_single=True)
        self.probation: dict[str, int] = {}
        self.published: list[Item] = []
        self._last = 2

    # Sending ------------------------------------------------------------------------------------------------------

    def push(self, item: Item) -> None:
        """Put a message behind all others of its partition."""
        name = (item.row.topic, item.partition)
        stream = self.by_name.get(name)
        if stream is None:
            stream = self.by_name[name] = Stream()
        stream.queued.append(item)

    def to_send(self, is_moving: Callable[[str], bool]) -> list[tuple[Item, Producer]]:
        """Return messages for the producers, in their order of arrival.

        Partitions are not sent one after the other: Kafka's client would send each message of a run by itself.

        A stream changes its producer when nothing of it is on the wire (R2). A topic on probation sends one message of
        a partition at a time, by a producer that other topics do not use: a refusal costs its topic only (R8).
        """
        found: dict[Producer, list[Item]] = {}
        for (topic, _), stream in self.by_name.items():
            if is_moving(topic):
                continue
            producer = self.single if topic in self.probation else self.main
            if stream.sent and stream.producer != producer:
                continue
            stream.producer = producer
            window = 1 if producer.is_single else self.limits.window
            room = window - len(stream.sent)
            if len(stream.queued) <= room:
                items = [*stream.queued]
                stream.queued.clear()
            else:
                items = [stream.queued.popleft() for _ in range(room)]
            stream.sent += items
            found.setdefault(producer, []).extend(items)
        return [
            each
            for producer, items in found.items()
            for each in zip(sorted(items, key=_number), repeat(producer))
        ]

    def holder(self, item: Item, producer: Producer) -> Stream | None:
        """Return the stream that has a message on a producer's wire; None if the message waits elsewhere since."""
        stream = self.by_name.get((item.row.topic, item.partition))
        if stream is None or stream.producer != producer or item not in stream.sent:
            return None
        return stream

    def acknowledged(self, items: Collection[Item], producer: Producer) -> None:
        """Publish messages of one partition.

        A late acknowledgement of a message that is in the table again changes nothing.
        """
        first = next(iter(items))
        topic, name = first.row.topic, (first.row.topic, first.partition)
        stream = self.by_name.get(name)
        if stream is None or stream.producer != producer:
            return
        before = len(self.published)
        if len(items) <= len(stream.sent) and all(map(is_, items, stream.sent)):
            for _ in items:
                stream.sent.popleft()
            self.published += items
        else:
            self._publish_those_sent(items, stream)
        if not stream.sent:
            self._drop_empty(name)
        if topic in self.probation:
            self.probation[topic] -= len(self.published) - before
            if self.probation[topic] <= 0:
                del self.probation[topic]

    def _publish_those_sent(self, items: Iterable[Item], stream: Stream) -> None:
        for item in items:
            if item in stream.sent:
                stream.sent.remove(item)
                self.published.append(item)

    def _drop_empty(self, name: tuple[str, int]) -> None:
        stream = self.by_name[name]
        if not stream.sent and not stream.queued:
            del self.by_name[name]

    def in_order(self) -> list[Item]:
        """Return the published messages in their order of arrival, which is how they lie in memory."""
        self.published.sort(key=_number)
        return self.published

    def recorded(self, items: Collection[Item]) -> None:
        """Forget published messages: a write has recorded them."""
        if self.published[: len(items)] == [*items]:
            del self.published[: len(items)]
        else:
            known = set(map(id, items))
            self.published = [item for item in self.published if id(item) not in known]

    # Failures -----------------------------------------------------------------------------------------------------

    def suspect(self, topic: str) -> None:
        """Put a topic on probation: one of its messages was refused, or failed before (R8)."""
        self.probation[topic] = self.limits.probation

    def end(self, producer: Producer) -> None:
        """Use a producer no longer for messages that are not on its wire yet."""
        if producer in (self.main, self.single):
            self._last += 1
            if producer.is_single:
                self.single = Producer(self._last, is_single=True)
            else:
                self.main = Producer(self._last, is_single=False)

    def lost(self, producer: Producer, certain: Collection[Item] = ()) -> list[Item]:
        """Take everything out of the streams that a producer had messages of, because it ended.

        Args:
            producer: the one that ended.
            certain: messages that are certainly not in Kafka. The others of the wire are in doubt (R8).

        Returns:
            The items in order. They are to be routed again (R2).
        """
        self.end(producer)
        items: list[Item] = []
        for name in [name for name, one in self.by_name.items() if one.producer == producer]:
            stream = self.by_name.pop(name)
            for item in stream.sent:
                item.in_doubt = item.in_doubt or item not in certain
            items += (*stream.sent, *stream.queued)
        return items

    def give_up(self, topic: str, partition: int) -> list[Item]:
        """Take a silent partition out. Its messages on the wire may arrive at any time, so they are in doubt (R8).

        Every other stream goes over to the next producer when its own wire is empty, and repeats nothing (isolation).
        """
        stream = self.by_name.pop((topic, partition), None)
        if stream is None:
            return []
        self.end(stream.producer)
        for item in stream.sent:
            item.in_doubt = True
        return [*stream.sent, *stream.queued]

    def take_back(self, items: Collection[Item]) -> None:
        """Queue messages again that no producer took: the last ones that `to_send` returned of their partitions."""
        for item in reversed([*items]):
            stream = self.by_name[item.row.topic, item.partition]
            stream.queued.appendleft(stream.sent.pop())

    def remove(self, item: Item) -> bool:
        """Take one message out that is certainly not in Kafka. Return whether it was here."""
        stream = self.by_name.get((item.row.topic, item.partition))
        for part in (stream.sent, stream.queued) if stream else ():
            if item in part:
                part.remove(item)
                self._drop_empty((item.row.topic, item.partition))
                return True
        return False

    def take_queued(self, scope: Scope) -> list[Item]:
        """Take the messages of a scope out that were not sent. What was sent is waited for."""
        taken: list[Item] = []
        for name, stream in list(self.by_name.items()):
            if name[0] != scope.topic or (scope.kind == "partition" and name[1] != scope.part):
                continue
            mine = [item for item in stream.queued if scope.kind != "key" or item.row.key == scope.part]
            if mine:
                left = set(map(id, mine))
                stream.queued = deque(item for item in stream.queued if id(item) not in left)
                taken += mine
                self._drop_empty(name)
        return taken

    def take_unsent(self, claimed: set[tuple[str, Hashable]]) -> list[Item]:
        """Take out, from the end of each stream, what was never sent.

        A doubtful row keeps what is in front of it. So does a claim, because it is written behind its key's rows (R4).

        Args:
            claimed: topic and key of the claims that no write has recorded.
        """
        taken: list[Item] = []
        for name, stream in list(self.by_name.items()):
            while stream.queued:
                item = stream.queued[-1]
                if item.in_doubt or (item.row.topic, item.row.key) in claimed:
                    break
                taken.append(stream.queued.pop())
            self._drop_empty(name)
        return taken

    def move(self, topic: str, partition_of: Callable[[Row], int]) -> None:
        """Put the messages of a topic into the partitions of its new count, in the order of arrival (R9)."""
        names = [name for name in self.by_name if name[0] == topic]
        items = [item for name in names for item in self.by_name.pop(name).queued]
        for item in sorted(items, key=lambda one: one.number):
            item.partition = partition_of(item.row)
            self.push(item)

    # Questions ----------------------------------------------------------------------------------------------------

    def has_sent(self, topic: str) -> bool:
        """Return whether a message of a topic is on the wire."""
        return any(stream.sent for name, stream in self.by_name.items() if name[0] == topic)

    def first_of(self, topics: set[str]) -> dict[tuple[str, Hashable], int]:
        """Return the number of the first message on its way, for each key of some topics (R4)."""
        first: dict[tuple[str, Hashable], int] = {}
        for item in self._items(topics):
            first.setdefault((item.row.topic, item.row.key), item.number)
        return first

    def _items(self, topics: set[str]) -> Iterator[Item]:
        for name, stream in self.by_name.items():
            if name[0] in topics:
                yield from stream.sent
                yield from stream.queued

    def producers(self) -> set[Producer]:
        """Return the producers that are still of use; the driver closes the others."""
        used = {stream.producer for stream in self.by_name.values() if stream.sent}
        return used | {self.main, self.single}
