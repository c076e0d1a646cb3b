"""Deliveries that relays of this process never learn of: messages arrive, and their partitions seem to be silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, Message

from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.hands import wires
from outbox_relay.publisher.hands.wires import Reports, Wire


def _nothing(item: Item, error: KafkaError | None, message: Message) -> None:
    """Take a delivery, and note nothing of it."""


@contextmanager
def deaf_to(*topics: str) -> Iterator[None]:
    """Let no wire that begins in this block report a delivery of these topics."""

    class Deaf(Wire):
        def __init__(
            self, topic: str, partition: int, produce: Callable[..., None], reports: Reports
        ) -> None:
            super().__init__(topic, partition, produce, reports)
            if topic in topics:
                self.delivered = _nothing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wires, "Wire", Deaf)
        yield
