"""What was read back from Kafka: which messages in doubt are there, and need not be sent again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from outbox_relay.publisher.core.values import NOWHERE, Item


class ReadBack:
    """Decides which messages in doubt count as published.

    A former leader sent the messages of a key in order, so Kafka has a beginning of them, unless it deleted some since
    (retention, compaction). A message counts only if all in doubt of its key in front of it do, at lower offsets. Sent
    alone, a message that is missing would be the newest one of its key; so what follows it is sent again, too.
    """

    def __init__(self, most: int) -> None:
        """Begin with nothing read.

        Args:
            most: how many keys to remember. With more of them in doubt, everything is sent again.
        """
        self._most = most
        self._offsets: dict[tuple[str, int], dict[int, int]] = {}
        self._last: dict[tuple[str, Hashable], int] = {}

    def add(self, topic: str, partition: int, offsets: Mapping[int, int]) -> None:
        """Take which messages a partition has, before the page with them is added.

        Args:
            topic: their topic.
            partition: that in which they belong now.
            offsets: by the id of a message, the last offset at which Kafka has it.
        """
        self._offsets.setdefault((topic, partition), {}).update(offsets)

    def take(self, item: Item) -> bool:
        """Note a message in doubt that comes next of its key. Return whether it counts as published."""
        row = item.row
        offsets = self._offsets.get((row.topic, item.partition))
        if offsets is None:  # nothing of it was read, and nothing of it will count
            return False
        offset, key = offsets.pop(row.id, -1), (row.topic, row.key)
        if row.key is not None:
            if offset <= self._last.get(key, -1):
                offset = -1
            if offset >= 0 or not row.is_expired:  # what has expired is not sent behind another one
                self._last[key] = offset if offset >= 0 else NOWHERE
                if len(self._last) > self._most:
                    self.forget()
                    return False
        item.offset = offset
        return offset >= 0

    def forget(self) -> None:
        """Forget all that was read: it is settled, or sent again."""
        self._offsets.clear()
        self._last.clear()
