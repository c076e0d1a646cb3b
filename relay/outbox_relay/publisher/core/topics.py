"""The topics' partition counts, and the counts that they are asked to move to."""

from __future__ import annotations

from collections.abc import Mapping

from outbox_relay.publisher.core.values import Count, Partitioner, Row


class TopicCounts:
    """Which partition a key of a topic belongs to."""

    def __init__(
        self, counts: Mapping[str, Count], skip_ahead: frozenset[str], partition_of: Partitioner
    ) -> None:
        """Begin with the counts that the tables have."""
        self.counts = dict(counts)
        self.skip_ahead = skip_ahead
        self.moving: dict[str, Count] = {}
        self.partition_of = partition_of

    def partition(self, row: Row) -> int:
        """Return a message's partition; -1 while the topic is unknown."""
        count = self.counts.get(row.topic)
        return -1 if count is None else self.partition_of(row, count)

    def request(self, topic: str, count: Count) -> bool:
        """Note the count that a topic is to have. Return whether the topic was unknown: it has the count at once."""
        if topic not in self.counts:
            self.counts[topic] = count
            return True
        if self.counts[topic] == count:
            self.moving.pop(topic, None)
        else:
            self.moving[topic] = count
        return False

    def move(self, topic: str, count: Count) -> None:
        """Give a topic its new count (R9)."""
        self.counts[topic] = count
        if self.moving.get(topic) == count:
            del self.moving[topic]
