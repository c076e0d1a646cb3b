"""What a session knows of topics, with look-ups that the test answers and ends."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, cast

from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.topic import Topic
from outbox_relay.publisher.topics import Found, Refresher, TopicBook


class Registry:
    """The registry, and look-ups in the background that end when the test says so."""

    def __init__(self) -> None:
        self.rows: dict[str, int | Unpublishable] = {"t": 4}
        self.begun: list[tuple[Future[Found], Found]] = []
        self.wire: set[str] = set()
        self.listed = True
        self.lost: dict[str, Any] = {}
        """The partitions that cannot be written to, by attributes of `Topic`."""

    def read(self, conn: object, names: Iterable[str]) -> Found:
        return {
            name: row if isinstance(row, Unpublishable) else Topic(name, row, None, 1_000, **self.lost)
            for name in names
            for row in [self.rows[name]]
        }

    def start(self, names: Iterable[str]) -> Future[Found]:
        """Read now; `end` brings it."""
        future: Future[Found] = Future()
        self.begun.append((future, self.read(None, list(names))))
        return future

    def end(self) -> None:
        """End the look-up that began first."""
        future, found = self.begun.pop(0)
        future.set_result(found)

    def book(self) -> TopicBook:
        """A book that has read the topic at generation 1."""
        book = TopicBook(cast("Any", None), self.read, cast("Refresher", self))
        book.changes.on_the_wire = lambda: self.wire
        book.changes.lists = lambda topic: self.listed
        book.expect(1)
        book.tend()
        assert book.generation == 1
        book.prepare(["t"])
        return book


def look_up(registry: Registry, book: TopicBook, generation: int) -> None:
    """Let a book notice a generation of the registry, and look up what it knows."""
    book.expect(generation)
    book.tend()
    registry.end()
    book.tend()
