"""The producers of one session: one for most topics, and others for topics that take small batches only.

Kafka's size limit of a topic is one of record batches. librdkafka fills batches up to one size for all topics, so
that small messages in one batch would be refused where each of them fits.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from outbox_relay.publisher.kafka import BATCH_BYTES, new_producer, readable
from outbox_relay.publisher.records import Topic
from outbox_relay.text.logs import Log

SPARE = 512
"""Bytes between a batch and its topic's limit."""
OTHERS_WAIT_S = 0.001
LIST_TIMEOUT_S = 0.1
"""How long a broker may take to list the partitions of one topic; the publishing loop waits for it."""

log = Log("topics")

Settings = Mapping[str, Any]
OnText = Callable[[str], None]

# A connection that was made, and failed. librdkafka names the state in its log line, or in its error.
_LOST = re.compile(r"in state (?!INIT|DOWN|TRY_CONNECT|CONNECT\b)")
_SILENT_S = 31.0
"""For 30 s librdkafka does not report the same failure of a broker again."""


def batch_bytes(limit: int) -> int:
    """Size of batches for a topic with this limit; powers of two, so that many limits need few producers."""
    if limit >= BATCH_BYTES + SPARE:
        return BATCH_BYTES
    return 1 << (max(limit - SPARE, 1).bit_length() - 1)


def lists(producer: Producer, topic: Topic) -> bool:
    """Return whether a producer knows all partitions of a topic, after reading them from a broker."""
    try:
        known = producer.list_topics(topic.name, timeout=LIST_TIMEOUT_S).topics[topic.name]
    except KafkaException as error:
        log.info("partitions of a topic not read yet", topic=topic.name, error=readable(error))
        return False
    return len(known.partitions) >= topic.partitions


class Disturbance:
    """Until when what was handed over before may have been sent twice, because a connection was lost.

    It is apart from the producers, which call it back: they would keep each other, and their threads, alive.
    """

    def __init__(self) -> None:
        self.until = -math.inf
        """Monotonic seconds."""

    def note(self, text: str) -> None:
        """Take a line or an error of librdkafka's."""
        # Called by poll(), in the order of the deliveries: before the outcome of anything that was sent again.
        if _LOST.search(text):
            self.until = time.monotonic() + _SILENT_S


class Producers:
    """Opens producers as topics need them, and serves them together.

    A topic keeps its producer to the end: two would not keep its order. If its limit is lowered meanwhile the
    broker refuses a batch, and the session starts over with new producers.
    """

    def __init__(
        self, settings: Settings, open_producer: Callable[[Settings, OnText], Any] = new_producer
    ) -> None:
        self._settings = settings
        self._open = open_producer
        self._disturbance = Disturbance()
        self.main: Producer = open_producer(settings, self._disturbance.note)
        self._by_size: dict[int, Producer] = {BATCH_BYTES: self.main}
        self._by_topic: dict[str, Producer] = {}
        self.ended: KafkaError | None = None
        """Why a producer takes nothing more, once one does not."""

    def of(self, topic: str, limit: int) -> Producer:
        """Return the producer of a topic whose batches may have `limit` bytes."""
        producer = self._by_topic.get(topic)
        if producer is None:
            size = batch_bytes(limit)
            producer = self._by_size.get(size)
            if producer is None:
                producer = self._by_size[size] = self._open(
                    {**self._settings, "batch.size": size}, self._disturbance.note
                )
            self._by_topic[topic] = producer
        return producer

    def lists(self, topic: Topic) -> bool:
        """Return whether the producer of a topic knows all its partitions, after reading them from a broker."""
        return lists(self.of(topic.name, topic.max_message_bytes), topic)

    def __len__(self) -> int:
        """Messages that are not delivered yet."""
        return sum(map(len, self._by_size.values()))

    def poll(self, seconds: float) -> None:
        """Call back about deliveries, waiting up to `seconds` for the first; a fatal error is kept in `ended`."""
        if len(self._by_size) > 1:
            seconds = min(seconds, OTHERS_WAIT_S)
            for producer in self._by_size.values():
                if producer is not self.main:
                    self._serve(producer, 0)
        self._serve(self.main, seconds)

    def _serve(self, producer: Producer, seconds: float) -> None:
        try:
            producer.poll(seconds)
        except KafkaException as error:
            # confluent_kafka raises what is fatal here, in front of the deliveries that tell more about it.
            self.ended = error.args[0]

    @property
    def disturbed_until(self) -> float:
        """What was handed over before (monotonic seconds) may have been sent twice, because a connection was lost."""
        return self._disturbance.until

    def close(self) -> None:
        """Drop what is not delivered yet, so that the producers can be destroyed without waiting."""
        for producer in self._by_size.values():
            producer.purge()
            self._serve(producer, 0)
