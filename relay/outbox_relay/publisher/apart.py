"""Topics that are read apart: how much of them is read in a turn, and what is recorded of their lanes meanwhile."""

from __future__ import annotations

import time

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.lane_groups import Group, floor_of
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.read_ahead import QUANTUM
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.snapshot import Progress

OTHERS_S = 1.0
"""For how long after a message of another topic there are others."""
MOST_ALONE = 8_000
"""Messages on the wire of topics that are read apart while there are no others; from then on no list is read."""
PAGE_S = 0.005
"""While there are others, how long it shall take to publish a page of a list; the next page has as many messages."""
LEAST = 100
"""Messages of such a page at least. Two of them may be on the wire."""


class ApartTopics:
    """The part of a session that keeps the backlog of a topic from holding up the others."""

    _publisher: Publisher
    _reader: Reader
    _groups: list[Group]
    _pages: list[Page]
    _page: int
    """Messages of a page."""
    _others_at = 0.0
    _quantum = QUANTUM

    def _as_recorded(self, group: Group, known: Progress) -> Progress:
        """Return what is recorded of a group's lanes when it has come to `known`.

        For a part of a split that is the floor of all parts. Pages that were read and not published do not count.
        """
        if group.split is None:
            return known
        pending = {id(page.group): page.before for page in reversed(self._pages)}
        others = (one for one in self._groups if one.split is group.split and one is not group)
        return floor_of([known, *(pending.get(id(one), one.progress) for one in others)])

    def _lists_to_read(self) -> int:
        """Return of how many topics that are read apart a page is taken in this turn, and set the size of a page."""
        has_others = time.monotonic() - self._others_at < OTHERS_S
        self._reader.quantum = min(self._quantum, self._page) if has_others else self._page
        apart = sum(batch.messages for batch in self._publisher.in_flight if batch.topic is not None)
        return 1 if apart < (2 * self._quantum if has_others else MOST_ALONE) else 0

    def _note_published(self, group: Group, batch: Batch) -> None:
        """Note that there are others, or how many messages of a list are published in `PAGE_S`."""
        batch.topic = group.topic
        now = time.monotonic()
        if batch.topic is None:
            self._others_at = now if batch.messages else self._others_at
        elif batch.messages >= LEAST:
            fits = batch.messages * PAGE_S / max(now - batch.since, PAGE_S / 100)
            self._quantum = max(LEAST, min(QUANTUM, int(fits + self._quantum) // 2))
