"""The spans of what was sent together, where batches are traced: they end when all of it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from outbox_relay.publisher.core.streams import Producer
from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.finder import RawRow


class Traced(Protocol):
    """The span of a batch."""

    def end(self, error: str | None = None) -> None:
        """End it, if that was not done; `error`: why the batch is not recorded."""


Begin = Callable[[Sequence[RawRow]], Traced]
"""Begins the span of messages that are given to Kafka together."""


@dataclass(slots=True)
class SentTogether:
    """The span of messages that were sent together, and how many of them are not recorded."""

    span: Traced
    left: int


@dataclass(slots=True)
class Spans:
    """Begins a span for the messages of each turn, and ends it."""

    begin: Begin | None
    _open: dict[int, SentTogether] = field(default_factory=dict)
    """By id, the batch that a message was sent with last."""

    def sent(self, messages: Collection[tuple[Item, Producer]]) -> None:
        """Begin the span of messages that were given to producers."""
        if self.begin is None or not messages:
            return
        items = [item for item, _ in messages]
        self.ended((item.row.id for item in items), "not_recorded")  # those that were sent before
        span = self.begin([cast("tuple[RawRow, object]", item.row.content)[0] for item in items])
        batch = SentTogether(span, len(items))
        self._open.update((item.row.id, batch) for item in items)

    def ended(self, ids: Iterable[int], error: str | None = None) -> None:
        """Note messages that are recorded, or are not going to be, by their ids."""
        if self.begin is None:
            return
        for id_ in ids:
            batch = self._open.pop(id_, None)
            if batch is not None:
                batch.left -= 1
                if not batch.left or error is not None:
                    batch.span.end(error)

    def close(self) -> None:
        """End all spans: their messages are not recorded."""
        for batch in self._open.values():
            batch.span.end("not_recorded")
        self._open.clear()
