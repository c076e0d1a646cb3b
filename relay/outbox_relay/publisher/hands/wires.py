"""Kafka's side: the producers of the core, what is on the wire of each, and what came of it.

Each delivery names its message: librdkafka reports those of a partition in the order of produce(), but not where a
producer ends: what it purges from its queue comes before the outcome of what was sent already. A producer that
pipelines ends with its first refusal (`enable.gapless.guarantee`); one of single messages goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from outbox_relay.publisher.core.streams import Producer
from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.errors import REFUSED, TOPICS_FAULT, Unpublishable
from outbox_relay.publisher.finder import BODY, KEY, RawRow
from outbox_relay.publisher.hands.rows import record_headers
from outbox_relay.publisher.kafka import QUEUE_KBYTES, Producers
from outbox_relay.publisher.records import Topic, reason_of

SERVE_EVERY = 500
"""Messages between two polls of deliveries while messages are handed over."""
WITH_ANOTHER = frozenset({"_FATAL", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_GAPLESS_GUARANTEE"})
"""Errors of messages that failed because another one did."""
MORE_S = 0.02
MORE_TIMES = 5
"""So often, and so long, a failed producer is polled for more: what was refused with a message may be reported late."""


class Failure(NamedTuple):
    """A message that was not delivered, and why."""

    item: Item
    error: KafkaError


class Wire:
    """The messages of one partition that one producer has."""

    __slots__ = ("acknowledged", "delivered", "partition", "produce", "since", "topic", "waiting")

    def __init__(self, topic: str, partition: int, produce: Callable[..., None], reports: Reports) -> None:
        self.topic, self.partition, self.produce = topic, partition, produce
        self.waiting = 0
        """Messages that have no outcome yet."""
        self.acknowledged: list[Item] = []
        """Messages whose acknowledgement the core does not know yet."""
        self.since = 0.0
        """Since when it has been waiting for the next acknowledgement (monotonic seconds)."""
        acknowledged = self.acknowledged

        def delivered(item: Item, error: KafkaError | None, message: Message) -> None:
            self.waiting -= 1
            if error is None:
                item.offset = message.offset()  # type: ignore[assignment]  # a delivered message has one
                if not acknowledged:
                    reports.acknowledged.append(self)
                acknowledged.append(item)
            else:
                reports.failures.append(Failure(item, error))

        self.delivered = delivered

    def hand_over(self, item: Item, now: float) -> None:
        """Give a message to the producer. What this raises concerns it alone, but see `fault_of`."""
        if not self.waiting:
            self.since = now
        content: tuple[RawRow, Any] = item.row.content  # type: ignore[assignment]  # what `Rows` made
        raw, own = content
        headers = record_headers(raw, own)
        self.produce(
            self.topic, raw[BODY], raw[KEY], self.partition, partial(self.delivered, item), headers=headers
        )
        self.waiting += 1
        item.sent_at = now

    def close(self) -> None:
        """Let go of the producer: the wire and what it is called back with keep each other."""
        del self.produce


@dataclass(slots=True)
class Reports:
    """What a producer reported and the core does not know yet."""

    acknowledged: list[Wire] = field(default_factory=list)
    """The wires with messages that were acknowledged."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def refused(self) -> list[Failure]:
        """What Kafka refused."""
        return [one for one in self.failures if one.error.name() in REFUSED]

    @property
    def first(self) -> Failure | None:
        """What failed first, and not because another message did; what Kafka refused goes before."""
        own = (one for one in self.failures if one.error.name() not in WITH_ANOTHER)
        return next(iter(self.refused), None) or next(own, None)

    def complete(self, poll: Callable[[float], object]) -> None:
        """Poll a producer that failed, a few times: what was refused may be reported behind what it took along."""
        for _ in range(MORE_TIMES):
            if self.refused:
                return
            poll(MORE_S)


def fault_of(raised: Exception) -> Unpublishable | None:
    """Return what is wrong with a message that was not handed over; None: nothing, the producer is at fault.

    Args:
        raised: what `Wire.hand_over` raised; BufferError: of a producer that has no other message.
    """
    if isinstance(raised, BufferError):
        text = "the message is larger than the relay's queue.buffering.max.kbytes"
        return Unpublishable("MESSAGE_TOO_LARGE", text)
    if isinstance(raised, KafkaException) and raised.args[0].name() not in REFUSED:
        return None
    return reason_of(raised)


class Handle:
    """A producer of the core: its librdkafka producers, its wires, and what it reported."""

    def __init__(self, producers: Producers, *, is_single: bool) -> None:
        self.producers = producers
        self._is_single = is_single
        self.wires: dict[tuple[str, int], Wire] = {}
        self.reports = Reports()

    @property
    def has_ended(self) -> bool:
        """Whether it takes no message any more: one of single messages goes on after a refusal."""
        return self.producers.ended is not None or (bool(self.reports.failures) and not self._is_single)


class ProducerEnd(NamedTuple):
    """Why a producer ended, or one message of it was refused.

    `code` is Kafka's name of the error. `refused`: the messages that the broker refused, and that are certainly not in
    Kafka; none for an error that leaves that open. `topic`: of the message that failed first; none where the producer
    itself is at fault.
    """

    producer: Producer
    code: str
    text: str
    refused: tuple[Item, ...]
    topic: str | None = None

    @property
    def is_of_topic(self) -> bool:
        """Whether every message of the topic would be refused."""
        return self.code in TOPICS_FAULT


class Wires:
    """All producers that the core uses."""

    def __init__(self, settings: Mapping[str, Any], topics: Mapping[str, Topic]) -> None:
        """Begin without a producer; each is made for its first message.

        Args:
            settings: of the main producers.
            topics: what is known of topics; a topic's limit decides how large its batches are.
        """
        self._settings = settings
        self._topics = topics
        self._handles: dict[Producer, Handle] = {}
        self._backlog: deque[tuple[Item, Producer]] = deque()
        self.handed = 0
        """Messages that were handed over so far."""
        self.unacknowledged = 0
        """Messages that were handed over and are not acknowledged, as of the last check; other threads read it."""

    @property
    def is_full(self) -> bool:
        """Whether librdkafka had no room for messages, which wait here to be handed over."""
        return bool(self._backlog)

    def _handle(self, producer: Producer) -> Handle:
        handle = self._handles.get(producer)
        if handle is None:
            settings = dict(self._settings)
            if settings.get("queue.buffering.max.kbytes") == QUEUE_KBYTES:
                # The core bounds what is in memory; a partition that takes nothing must not fill all of the queue.
                settings["queue.buffering.max.kbytes"] = 8 * QUEUE_KBYTES
            if producer.is_single:  # one message of a partition at a time: nothing is behind the refused one
                settings["enable.gapless.guarantee"] = False
            handle = self._handles[producer] = Handle(Producers(settings), is_single=producer.is_single)
        return handle

    def open(self, producer: Producer) -> Producers:
        """Return the librdkafka producers of one, made now if it has none."""
        return self._handle(producer).producers

    def send(self, messages: Collection[tuple[Item, Producer]]) -> list[tuple[list[Item], Unpublishable]]:
        """Hand messages over, in order; those that find no room wait for the next call.

        Returns:
            Messages that no producer takes, by partition: the first one is at fault.
        """
        self._backlog.extend(messages)
        refused: list[tuple[list[Item], Unpublishable]] = []
        now = time.monotonic()
        while self._backlog:
            handle = self._handle(self._backlog[0][1])
            if handle.has_ended:  # the core learns that it is lost
                self._backlog.popleft()
                self.handed += 1
                continue
            try:
                self._hand_over(handle, now)
            except MemoryError:
                raise
            except Exception as raised:  # noqa: BLE001  (whatever it is: see below)
                if isinstance(raised, BufferError) and self._waits_for_room(handle):
                    break
                error = fault_of(raised)
                if error is None:
                    handle.producers.ended = raised.args[0]
                    continue
            else:
                if self._backlog:
                    self.serve(0)
                continue
            item = self._backlog[0][0]
            refused.append((self._take_stream(item.row.topic, item.partition), error))
        return refused

    def _waits_for_room(self, handle: Handle) -> bool:
        """Return whether librdkafka's queue has messages, so that there will be room."""
        return bool(len(handle.producers))

    def _hand_over(self, handle: Handle, now: float) -> None:
        """Hand over what is first, and what follows it for its producer; an error concerns the first that is left."""
        backlog, wires = self._backlog, handle.wires
        producer = backlog[0][1]
        for _ in range(min(SERVE_EVERY, len(backlog))):
            item, by = backlog[0]
            if by is not producer:
                return
            name = item.row.topic, item.partition
            wire = wires.get(name) or self._new_wire(handle, name)
            wire.hand_over(item, now)
            backlog.popleft()
            self.handed += 1

    def _new_wire(self, handle: Handle, name: tuple[str, int]) -> Wire:
        of_topic = self._topics.get(name[0])
        limit = 1 << 30 if of_topic is None else of_topic.max_message_bytes
        wire = handle.wires[name] = Wire(*name, handle.producers.of(name[0], limit).produce, handle.reports)
        return wire

    def _take_stream(self, topic: str, partition: int) -> list[Item]:
        """Take what waits to be handed over of a partition."""
        mine: list[Item] = []
        others: deque[tuple[Item, Producer]] = deque()
        for item, producer in self._backlog:
            if (item.row.topic, item.partition) == (topic, partition):
                mine.append(item)
            else:
                others.append((item, producer))
        self._backlog = others
        return mine

    def serve(self, seconds: float) -> None:
        """Collect deliveries, waiting up to `seconds` for the first."""
        handles = list(self._handles.values())
        for number, handle in enumerate(handles):
            handle.producers.poll(seconds if number == len(handles) - 1 else 0)

    def take_acknowledged(self) -> list[tuple[list[Item], Producer]]:
        """Return what was acknowledged since the last call, of each producer and partition, in its order."""
        found, now = [], time.monotonic()
        for producer, handle in self._handles.items():
            for wire in handle.reports.acknowledged:
                wire.since = now
                found.append(([*wire.acknowledged], producer))
                wire.acknowledged.clear()  # and not another list: deliveries append to this one
            handle.reports.acknowledged.clear()
        return found

    def take_ended(self) -> list[ProducerEnd]:
        """Return which producers have ended, or had a single message refused, since the last call."""
        found = []
        for producer, handle in list(self._handles.items()):
            if not handle.has_ended and not handle.reports.failures:
                continue
            handle.reports.complete(handle.producers.poll)
            found += self._ends_of(producer, handle)
            if producer.is_single and handle.producers.ended is None:
                handle.reports.failures.clear()
        return found

    def _ends_of(self, producer: Producer, handle: Handle) -> list[ProducerEnd]:
        refused = handle.reports.refused
        if not refused:
            first = handle.reports.first
            if first is None:
                error = handle.producers.ended or handle.reports.failures[0].error
                return [ProducerEnd(producer, error.name(), error.str(), ())]
            item, error = first
            return [ProducerEnd(producer, error.name(), error.str(), (), item.row.topic)]
        requests: dict[tuple[str, int], list[Failure]] = {}
        for one in refused:
            requests.setdefault((one.item.row.topic, one.item.partition), []).append(one)
        disturbed_until = handle.producers.disturbed_until
        ended = []
        for failures in requests.values():
            error = failures[0].error
            for one in failures:
                # A refusal by librdkafka itself (a negative code), or after a lost connection, may be of a second
                # request: the first one may have arrived.
                uncertain = one.error.code() < 0 or one.item.sent_at <= disturbed_until
                one.item.in_doubt = one.item.in_doubt or uncertain
            items = tuple(one.item for one in failures)
            ended.append(ProducerEnd(producer, error.name(), error.str(), items))
        others = [one.error for one in handle.reports.failures if one.error.name() not in REFUSED]
        if producer.is_single and (others or handle.producers.ended is not None):
            error = handle.producers.ended or others[0]
            ended.append(ProducerEnd(producer, error.name(), error.str(), ()))
        return ended

    def waiting(self) -> list[Wire]:
        """Return the wires with messages that are not acknowledged."""
        found = [wire for handle in self._handles.values() for wire in handle.wires.values() if wire.waiting]
        self.unacknowledged = sum(wire.waiting for wire in found)
        return found

    def may_deliver(self, topic: str) -> bool:
        """Return whether a producer has messages of a topic; also what is in the table again may arrive."""
        return any(wire.topic == topic for wire in self.waiting())

    def forget(self, topic: str, partition: int) -> None:
        """Wait no longer for what a partition has on any wire: its messages are in the table again."""
        self._take_stream(topic, partition)
        for handle in self._handles.values():
            wire = handle.wires.get((topic, partition))
            if wire is not None:
                wire.since = float("inf")

    def take_back(self, current: Collection[Producer]) -> list[list[Item]]:
        """Return, by partition, what waits for room in producers that get nothing new: their queues may stay full."""
        found: dict[tuple[str, int], list[Item]] = {}
        for item, producer in self._backlog:
            if producer not in current:
                found.setdefault((item.row.topic, item.partition), []).append(item)
        self._backlog = deque(each for each in self._backlog if each[1] in current)
        return list(found.values())

    def close_unused(self, used: Collection[Producer]) -> None:
        """Close the producers that the core does not use any more."""
        for producer in self._handles.keys() - set(used):
            handle = self._handles.pop(producer)
            handle.producers.close()
            for wire in handle.wires.values():
                wire.close()
        self._backlog = deque(each for each in self._backlog if each[1] in self._handles or each[1] in used)

    def rest(self) -> bool:
        """Close the producers if nothing is on its way; return whether it is so. The next message makes new ones."""
        is_told = any(each.has_ended or each.reports != Reports() for each in self._handles.values())
        if self._backlog or is_told or self.waiting():
            return False
        self.close_unused(())
        return True

    def close(self) -> None:
        """Close all producers; what they had may arrive."""
        self._backlog.clear()
        self.close_unused(())
