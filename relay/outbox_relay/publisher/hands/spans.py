"""The spans of what was sent together, where batches are traced: they end when all of it is recorded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import cast

from outbox_relay.publisher.batch import Batch, Slot, ignore
from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.finder import MESSAGE_ID, RawRow
from outbox_relay.publisher.producing import Begin
from outbox_relay.publisher.snapshot import START


@dataclass(slots=True)
class Spans:
    """Begins a span for the messages of each turn, and ends it."""

    begin: Begin | None
    _open: dict[int, Batch] = field(default_factory=dict)
    """By id, the batch that a message was sent with last."""
    _left: dict[int, int] = field(default_factory=dict)
    """By batch, how many of its messages are not recorded."""

    def sent(self, items: Collection[Item]) -> None:
        """Begin the span of messages that were given to producers."""
        if self.begin is None or not items:
            return
        rows = [cast("tuple[RawRow, object]", item.row.content)[0] for item in items]
        batch = Batch((), START, START)
        batch.positions = [item.row.position for item in items]
        batch.message_ids = [row[MESSAGE_ID] for row in rows]
        for item in items:
            name = item.row.topic, item.partition
            batch.slots.setdefault(name, Slot(*name, ignore))
        self.begin(batch, rows)
        self.ended(items, "not_recorded")  # those that were sent before
        self._open.update((item.row.id, batch) for item in items)
        self._left[id(batch)] = len(items)

    def ended(self, items: Collection[Item], error: str | None = None) -> None:
        """Note messages that are recorded, or are not going to be."""
        self.ended_ids((item.row.id for item in items), error)

    def ended_ids(self, ids: Iterable[int], error: str | None = None) -> None:
        """Do the same for messages by their ids."""
        if self.begin is None:
            return
        for id_ in ids:
            batch = self._open.pop(id_, None)
            if batch is None:
                continue
            left = self._left[id(batch)] = self._left[id(batch)] - 1
            if batch.span is not None and (not left or error is not None):
                batch.span.end(error)
            if not left:
                del self._left[id(batch)]

    def close(self) -> None:
        """End all spans: their messages are not recorded."""
        for batch in self._open.values():
            if batch.span is not None:
                batch.span.end("not_recorded")
        self._open.clear()
        self._left.clear()
