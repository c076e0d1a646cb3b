"""How many rows a page has."""

from __future__ import annotations

from collections.abc import Sequence

from outbox_relay.publisher.core.values import Read
from tests.support.core_search.tables import Msg


def _size(rows: Sequence[Msg]) -> int:
    return sum(msg.size for msg in rows)


def fits(rows: Sequence[Msg], read: Read) -> bool:
    """Return whether rows fit a page."""
    return len(rows) == 1 or (len(rows) <= read.rows and _size(rows) <= read.size)


def first_of(rows: Sequence[Msg], read: Read) -> list[Msg]:
    """Return the first rows that fit a page, one at least."""
    count = min(len(rows), read.rows)
    while count > 1 and _size(rows[:count]) > read.size:
        count -= 1
    return list(rows[:count])
