"""A parked message, as its row has it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

from outbox.inbox.messages import ConsumedMessage, Delivery, born_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGINNING = 0
"""A time before that of any retry, in microseconds since 1970."""


class Retry(NamedTuple):
    """A parked message that is tried again; its row is locked by this transaction, and dead in it."""

    id: int
    xid: str
    attempts: int
    delivery: Delivery
    is_undecided: bool
    """Whether its header filter could not decide when it was delivered, and is asked before the listener runs."""
    is_suspect: bool = False
    """Whether a run of it has begun in another process, and has not ended there."""
    due_at: int = BEGINNING
    """When it was due, in microseconds since 1970."""


class DueSince:
    """Where the next search for due messages begins: at what the last one found, for a second.

    Rows that were found before are dead, and a held snapshot keeps them in front of the index. A row may be due in
    front of that place, too (its transaction was rolled back, or the server's clock was set back): it is found within
    a second.
    """

    def __init__(self) -> None:
        self._place, self._until = BEGINNING, 0.0

    def begin(self) -> int:
        """Return from when on due messages are searched, in microseconds since 1970."""
        return self._place if monotonic() < self._until else BEGINNING

    def found(self, since: int, due_at: int) -> None:
        """Note when the last one that was found was due, by a search that began at `since`."""
        if since == BEGINNING:
            self._until = monotonic() + 1.0
        self._place = due_at


def retry_of(row: Sequence[Any]) -> Retry:
    """Return a parked message from the columns of `next_due`."""
    (
        number,
        message_id,
        born_on,
        topic_id,
        topic,
        part,
        off,
        digest,
        order_key,
        key,
        body,
        names,
        values,
        published,
        attempts,
        xid,
        is_undecided,
    ) = row
    headers = tuple(zip(names, values, strict=True))
    published_at = _EPOCH + timedelta(milliseconds=published)
    born_at = born_of(headers) or published_at
    message = ConsumedMessage(
        message_id, topic, part, off, key, body, headers, born_at, published_at, attempts
    )
    delivery = Delivery(message, topic_id, born_on, digest, order_key)
    return Retry(number, xid, attempts, delivery, is_undecided)


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds from 1970 to a moment."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)
