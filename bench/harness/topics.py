"""What a topic holds, as its broker reports it: the number of records, and when each was appended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaException, TopicPartition


@contextmanager
def reader(bootstrap_servers: str) -> Iterator[Consumer]:
    """Make a consumer that belongs to no group that anything else looks at, and close it."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench"})
    try:
        yield consumer
    finally:
        consumer.close()


def record_count(consumer: Consumer, topic: str, partitions: int) -> int:
    """Return how many records the partitions of a topic hold; one that the broker does not lead yet holds none."""
    count = 0
    for partition in range(partitions):
        with suppress(KafkaException):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            count += high - low
    return count


def append_times(consumer: Consumer, topic: str, partitions: int, count: int) -> list[float]:
    """Return when each of so many records was appended, ascending, in seconds; for topics with LogAppendTime.

    Raises:
        RuntimeError: fewer could be read.
    """
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    times: list[float] = []
    while len(times) < count:
        records = consumer.consume(10_000, 5.0)
        if not records:
            raise RuntimeError(f"{len(times):,} of {count:,} records were read")
        times += [record.timestamp()[1] / 1000 for record in records]
    return sorted(times)
