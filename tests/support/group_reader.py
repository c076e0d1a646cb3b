"""A consumer group of Kafka with one member, which reads and commits when the test says so."""

from __future__ import annotations

from types import TracebackType
from typing import Self
from uuid import uuid4

from confluent_kafka import Consumer, Message, TopicPartition

from tests.support.waiting import wait_until


class GroupReader:
    """One member of a group of its own."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.group = f"readers-{uuid4().hex[:8]}"
        self.read: list[Message] = []
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        wait_until(self._is_assigned, "the member has its partitions")

    def _is_assigned(self) -> bool:
        self.poll(0.05)
        return bool(self._consumer.assignment())

    def poll(self, timeout: float = 0.1, *, most: int = 500) -> int:
        """Read what there is; return how many records."""
        found = [one for one in self._consumer.consume(most, timeout) if one.error() is None]
        self.read += found
        return len(found)

    def read_up_to(self, count: int) -> None:
        """Read until so many records are read, and commit them."""

        def is_read() -> bool:
            self.poll()
            return len(self.read) >= count

        wait_until(is_read, f"{count} records are read")
        self.commit()

    def commit(self, offsets: dict[int, int] | None = None) -> None:
        """Commit these offsets, or what was read."""
        if offsets is None:
            offsets = {int(one.partition() or 0): int(one.offset() or 0) + 1 for one in self.read}
        self._consumer.commit(
            offsets=[TopicPartition(self._topic, *place) for place in offsets.items()], asynchronous=False
        )

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
