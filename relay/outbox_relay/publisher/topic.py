"""One topic as the relay publishes to it."""

from __future__ import annotations

from dataclasses import dataclass

ROOM = 16_384
"""Bytes below a topic's limit within which a message's full size is computed before it is produced."""


@dataclass(slots=True)
class Topic:
    """One topic: what is pinned, and what Kafka listed when it was read."""

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
    small: int = 0
    """A body up to this many bytes certainly fits."""

    def __post_init__(self) -> None:
        self.small = max(self.max_message_bytes - ROOM, 0)
