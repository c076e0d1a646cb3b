"""One producer with a transactional id, and the batch that it has."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from outbox_relay.publisher.core.values import Batch, Item
from outbox_relay.publisher.hands.wires import Reports, Wire
from outbox_relay.publisher.kafka import QUEUE_KBYTES, Disturbance, new_log_reader, new_producer

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic whose partitions the offsets name. Kafka insists on one that exists; no user can delete this one."""
PRODUCERS = 2
"""They alternate, and each has a partition of that topic for its offsets."""
CALL_S = 5.0
"""For so long a call to Kafka may wait before it is given up."""
FENCE_S = 15.0
"""For so long Kafka may take to end what a former producer of an id had open."""


def transactional_settings(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a producer with a transactional id, from those of the relay's others."""
    return {
        **settings,
        "transactional.id": name,
        "enable.gapless.guarantee": False,  # the whole transaction fails with one message
        "queue.buffering.max.kbytes": max(
            8 * QUEUE_KBYTES, int(settings.get("queue.buffering.max.kbytes", 0))
        ),
    }


class Sender:
    """One producer, and the batch that it has."""

    def __init__(self, settings: Mapping[str, Any], name: str) -> None:
        self.disturbance = Disturbance()
        self.kafka: KafkaProducer = new_producer(
            transactional_settings(settings, name), self.disturbance.note
        )
        self.reports = Reports()
        self.clear()

    def clear(self) -> None:
        """Begin without a batch."""
        self.batch: Batch | None = None
        self.wires: dict[tuple[str, int], Wire] = {}
        self.backlog: deque[Item] = deque()
        self.call: Future[Any] | None = None
        self.since = 0.0
        self._calm_until = self.disturbance.until
        self._begun_at = time.monotonic()

    def poll(self, seconds: float) -> None:
        """Collect deliveries. What an ended producer raises, it raises again for `events`."""
        with suppress(KafkaException):
            self.kafka.poll(seconds)

    def close(self) -> None:
        """Drop what was not sent. Its transaction stays open until the next producer of its id."""
        with suppress(KafkaException):
            self.kafka.purge()
            self.kafka.poll(0)
        for wire in self.wires.values():
            wire.close()

    @property
    def is_disturbed(self) -> bool:
        """Whether a connection was lost since the batch began: a request may have been sent twice."""
        return self.disturbance.until > self._calm_until

    @property
    def may_be_disturbed(self) -> bool:
        """Whether one may have been lost since the batch began: librdkafka reports none soon after the last one."""
        return self.disturbance.until > self._begun_at

    @property
    def is_delivered(self) -> bool:
        """Whether all of the batch is acknowledged, and its offset is in the transaction."""
        is_sent = not self.backlog and not any(wire.waiting for wire in self.wires.values())
        return is_sent and self.is_confirmed

    @property
    def is_confirmed(self) -> bool:
        """Whether the call has ended well. One that fails after its failure was asked about is asked about again."""
        return self.call is not None and self.call.done() and self.call.exception() is None


def check(settings: Mapping[str, Any], name: str) -> None:
    """Commit a transaction of its own id and group, so that what would be refused is known before lanes are taken.

    Args:
        settings: of the relay's producers.
        name: of the group, and of the transactional id.

    Raises:
        KafkaException: Kafka does not reply, or refuses.
    """
    sender = Sender(settings, name)
    try:
        fence(sender.kafka, time.monotonic() + FENCE_S)
        sender.kafka.begin_transaction()
        reader = new_log_reader(settings, committed=True, group=name)
        places = [TopicPartition(OFFSETS_TOPIC, number, 0) for number in range(PRODUCERS)]
        sender.kafka.send_offsets_to_transaction(places, reader.consumer_group_metadata(), CALL_S)
        reader.close()
        sender.kafka.commit_transaction(CALL_S)
    finally:
        sender.close()


def fence(kafka: KafkaProducer, deadline: float) -> None:
    """Fence the former producer of an id, and wait until Kafka has ended its transaction."""
    while True:
        left = deadline - time.monotonic()
        try:
            kafka.init_transactions(max(0.1, min(left, CALL_S)))
        except KafkaException as error:
            if error.args[0].name() != "_TIMED_OUT" or left <= 0:
                raise
        else:
            return
