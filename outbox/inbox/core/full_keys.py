"""How much may wait in PostgreSQL behind messages that failed, of a key and of a group. The rest stays in Kafka.

A message whose key is full is put back in front of its key, and tried again after a pause. Its offset does not move, so
nothing is lost, and the order of its key stays. Other keys of its partition go on until as much of the partition is in
memory as may be (`Limits`); then the partition is not fetched until the key has room. Other partitions go on.

No message costs a count. The keeper counts every ten seconds, and the member adds what it has admitted since.
Schedules:

- A message is admitted, and parked after the keeper has counted: what was admitted since the count before the last one
  is added to it. What the count has as well is added twice, and a key with room may wait for ten seconds more.
- A key is not named by the count: it has half of its bound at most, and that is assumed.
- A message is admitted and not parked, because its transaction was rolled back: its place is free after two counts.
- Members share what the group may still park. One that was not listed when another one counted may park its share
  besides, for ten seconds. The bound of a key has no such exception while its partition has one reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox.inbox.failures import LockedError

HeldKey = tuple[str, bytes | None]
"""Topic and order key."""


class FullKeyError(LockedError):
    """As many messages wait behind the key of a message, or behind all keys of its group, as may."""


class CountBehind(NamedTuple):
    """What waits behind messages of a group that failed."""

    keys: int
    messages: int
    members: int
    long: Mapping[HeldKey, int]
    """Messages behind each key that has more than half of its bound."""


@dataclass(slots=True)
class _Since:
    """What was admitted and refused since a count."""

    admitted: Counter[HeldKey] = field(default_factory=Counter)
    total: int = 0
    refused: set[HeldKey] = field(default_factory=set)


class FullKeys:
    """Admits what is parked behind held keys. Not thread-safe."""

    def __init__(self, per_key: int, per_group: int) -> None:
        self.per_key, self.per_group = per_key, per_group
        self._last, self._now = _Since(), _Since()
        self._long: Mapping[HeldKey, int] = {}
        self._share = per_group
        self.held: int | None = None
        """Keys of the group that are held, as of the last count."""

    @property
    def count(self) -> int:
        """How many keys were refused since the count before the last one: their messages wait in Kafka."""
        return len(self._last.refused | self._now.refused)

    def begin_count(self) -> None:
        """Note that the keeper counts from now on."""
        self._last, self._now = self._now, _Since()

    def counted(self, found: CountBehind) -> None:
        """Note what the keeper has counted."""
        self.held, self._long = found.keys, found.long
        self._share = (self.per_group - found.messages) // max(1, found.members)

    def require(self, topic: str, order_key: bytes | None) -> None:
        """Admit one message behind its key.

        Raises:
            FullKeyError: It has to wait.
        """
        if not self.admit(topic, order_key, 1):
            raise FullKeyError(
                f"{self.per_key} messages wait behind its key, or {self.per_group} behind all keys of the group, as "
                "many as may; see outbox dlq ls"
            )

    def admit(self, topic: str, order_key: bytes | None, wanted: int) -> int:
        """Return how many messages of a key may be parked behind it now, of so many."""
        key = topic, order_key
        behind = self._long.get(key, self.per_key // 2)
        room = self.per_key - behind - self._last.admitted[key] - self._now.admitted[key]
        shared = self._share - self._last.total - self._now.total
        admitted = max(0, min(wanted, room, shared))
        if admitted < wanted:
            self._now.refused.add(key)
        if admitted:
            self._now.admitted[key] += admitted
            self._now.total += admitted
        return admitted
