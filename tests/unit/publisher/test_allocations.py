"""What the publisher makes of a message, counted in blocks of Python's memory: the hottest loop makes little.

Blocks are counted while nothing is collected, and with them what a caller lets go of at once: the stand-in for the
producer keeps the headers that it is handed. What librdkafka copies is no such block.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox_relay.publisher.batch import Batch, publications
from outbox_relay.publisher.finder import FIELDS, RawRow
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.snapshot import Progress, Snapshot
from outbox_relay.publisher.topic import Topic

TOPIC, PARTITIONS, MESSAGES = "orders", 12, 5_000
LANES = frozenset(range(8))
SEEN = Progress(Snapshot(10, 10))


def row(number: int) -> RawRow:
    """Return a row as the finder reads it: many have the same headers, and none the same id."""
    values: dict[str, Any] = dict.fromkeys(FIELDS)
    values |= {
        "position": 1_000 + number,
        "id": 1_000 + number,
        "lane": number % 8,
        "topic": TOPIC,
        "key": b"key-%d" % (number % 500),
        "body": b"a body",
        "message_id": f"id-{number}",
        "born_at": "1700000000000",
        "headers": '{"source": "till"}',
        "tags": "paid",
    }
    return tuple(values.values())


class Producers:
    """Take everything; with `headers`, keep the headers of each message."""

    def __init__(self, headers: list[Any] | None) -> None:
        self.main = self
        self.lists: dict[str, Any] = {}
        self.ended = None
        self._headers = headers
        self._count = 0
        self.delivered: list[Any] = [None] * MESSAGES

    def of(self, _name: str, _limit: int) -> Producers:
        return self

    def produce(
        self, _name: str, _body: bytes, _key: bytes, _partition: int, delivered: Any, *, headers: Any
    ) -> None:
        self.delivered[self._count] = delivered
        if self._headers is not None:
            self._headers[self._count] = headers
        self._count += 1

    def poll(self, _seconds: float) -> None:
        pass


def publish(rows: list[RawRow], headers: list[Any] | None = None) -> tuple[Batch, Producers]:
    topic = Topic(TOPIC, PARTITIONS, None, 1_000_000)
    topic.cache = {values[4]: 0 for values in rows}
    producers = Producers(headers)
    topics = SimpleNamespace(changes=SimpleNamespace(), known=lambda name: topic)
    publisher = Publisher(cast("Any", producers), cast("Any", topics))
    return publisher.publish(rows, SEEN, SEEN, LANES), producers


def blocks_of(make: Any) -> float:
    """Return how many blocks a message has of what is made, the second time: nothing is cached then."""
    make()
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        made = make()
        return round((sys.getallocatedblocks() - before) / MESSAGES, 2)
    finally:
        gc.enable()
        del made


@pytest.fixture(scope="module")
def rows() -> list[RawRow]:
    return [row(number) for number in range(MESSAGES)]


def test_a_message_on_the_wire_is_one_block(rows: list[RawRow]) -> None:
    """Its place in the partition; its position, lane and ids are those of the row."""
    assert blocks_of(lambda: publish(rows)) <= 1.1


def test_a_message_that_is_handed_over_is_six_blocks_more(rows: list[RawRow]) -> None:
    """The list of headers, with its items, and the pairs of id, time and tags."""
    assert blocks_of(lambda: publish(rows, [None] * MESSAGES)) <= 6.1


def test_recording_a_message_takes_few_bytes_for_a_moment(rows: list[RawRow]) -> None:
    """A row of position, partition and offset, which are sorted, and their places in lists."""
    batch, _ = publish(rows)
    for slot in batch.slots.values():
        slot.offsets += range(10_000, 10_000 + len(slot.indexes))
    tracemalloc.start()
    try:
        list(publications([batch], [10**9]))
        assert tracemalloc.get_traced_memory()[1] / MESSAGES <= 190
    finally:
        tracemalloc.stop()
