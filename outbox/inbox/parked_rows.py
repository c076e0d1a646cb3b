"""A parked message, as its row has it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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


SEARCHED_FROM_S = 0.25
SKEW_US = 20_000
"""So much later may a retry be committed than one that is due after it."""


class DueSince:
    """Where the next search for due messages begins: a moment before what the last one found, for 0.25 seconds.

    Rows that were found before are dead, and a held snapshot keeps them in front of the index. A row may be due in
    front of that place, too: it was committed later, its transaction was rolled back, or the server's clock was set
    back. Then it is found a quarter of a second later.
    """

    def __init__(self, skew: int = SKEW_US) -> None:
        self._skew, self._place, self._until = skew, BEGINNING, 0.0
        self._since = BEGINNING

    def begin(self, now: float) -> int:
        """Return from when on due messages are searched, in microseconds since 1970."""
        self._since = self._place if self.left(now) > 0 else BEGINNING
        return self._since

    def left(self, now: float) -> float:
        """Return the seconds until a search begins at the beginning."""
        return self._until - now

    def found(self, due_at: int, now: float) -> None:
        """Note when one was due that the search has found."""
        if self._since == BEGINNING:
            self._until = now + SEARCHED_FROM_S
        self._place = max(BEGINNING, due_at - self._skew)


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
