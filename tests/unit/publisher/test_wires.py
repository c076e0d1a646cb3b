"""A wire: which message a delivery is of."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from outbox_relay.publisher.core.values import Item, Row
from outbox_relay.publisher.hands.wires import Reports, Wire


class _Delivered:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


def test_what_a_producer_purges_first_is_not_taken_for_what_it_had_sent() -> None:
    """Librdkafka's order where a producer ends: its queue is purged before the outcome of what was sent is known."""
    reports = Reports()
    wire = Wire("orders", 0, lambda: None, reports)
    sent, queued = (_item(number) for number in range(2))
    wire.waiting = 2
    outcome: Any = wire.delivered
    outcome(queued, KafkaError(KafkaError._PURGE_QUEUE), _Delivered(None))
    outcome(sent, None, _Delivered(7))
    assert wire.acknowledged == [sent]
    assert reports.acknowledged == [wire]
    assert sent.offset == 7
    assert [failure.item for failure in reports.failures] == [queued]
    assert wire.waiting == 0


def _item(number: int) -> Item:
    return Item(Row(number, number, "orders", None, 1), number, 0, in_doubt=False, taken_from=None)
