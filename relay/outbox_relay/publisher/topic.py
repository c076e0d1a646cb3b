"""One topic as the relay publishes to it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from outbox.partitioning.selectors import partition_of

KEYS_CACHED = 100_000
ROOM = 16_384
"""Bytes below a topic's limit within which a message's full size is computed before it is produced."""


@dataclass(slots=True)
class Topic:
    """One topic: what is pinned, and a cache of key → partition for the default selector."""

    name: str
    partitions: int
    selector: str | None
    max_message_bytes: int
    """The smaller of what is registered and what Kafka takes, so that no batch of several is refused."""
    skip_ahead: bool = False
    """Whether a message that cannot be published parks alone."""
    needs_key: bool = False
    """Whether it is compacted, so that Kafka refuses a record without a key."""
    leaderless: frozenset[int] = frozenset()
    """The partitions that had no leader when it was read."""
    short: frozenset[int] = frozenset()
    """The partitions that had fewer in-sync replicas than min.insync.replicas then, where that may be read."""
    missing: int = 0
    """Where it may not: how many replicas of the pinned partitions were not in sync."""
    used_at: float = field(default_factory=time.monotonic)
    cache: dict[bytes, int] = field(default_factory=dict)
    small: int = 0
    """A body up to this many bytes certainly fits."""

    def __post_init__(self) -> None:
        self.small = max(self.max_message_bytes - ROOM, 0)

    @property
    def is_available(self) -> bool:
        """Whether each of its pinned partitions had a leader, and in-sync replicas, when it was read."""
        return all(number >= self.partitions for number in self.leaderless | self.short)

    def hash(self, key: bytes) -> int:
        """Return the partition of a key by the default selector, and remember it."""
        partition = partition_of(None, key, self.partitions)
        if len(self.cache) >= KEYS_CACHED:
            self.cache.clear()
        self.cache[key] = partition
        return partition
