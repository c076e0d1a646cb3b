"""How a batch of messages is taken over, as logic without I/O; see `batches` for the transactions, and `plans`.

And how the messages behind one that was parked are parked in one transaction, instead of in one each. It is the same as
if `take` and `park_behind` ran for each of them, one after the other: the rows of the inbox first, then the held key,
whose row is locked until the end, then the parked rows in the order of the key. If the key was released meanwhile, the
transaction is rolled back, and each of them is handled alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple
from uuid import UUID

from outbox.inbox.messages import Delivery, as_copy, headers_of_all
from outbox.inbox.parked_rows import milliseconds
from outbox.inbox.plans import BEHIND, SQL, identity, lock_held_key
from outbox.statements import ByteaArray, Plan, Rows, Statement, TextArray, array_text


class TakenBatch(NamedTuple):
    """What became of the attempt to take several messages over."""

    xid: str
    """Empty: none of them was taken."""
    is_new: list[bool]
    """For each of them whether its row was inserted."""


def take_batch(group: int, deliveries: Sequence[Delivery], *, for_listener: bool = False) -> Plan[TakenBatch]:
    """Insert the rows of several messages, no two of which have one id.

    All batches insert in the order of the ids. A transaction of a single message has one row, so no two transactions
    wait for rows of each other. `for_listener`: a listener runs in the transaction, whose waits for locks get no limit.
    """
    ordered = sorted(deliveries, key=_row)
    columns = list(zip(*(identity(group, each) for each in ordered), strict=True))
    digests = ByteaArray([each.digest for each in ordered])
    rows = yield Statement(
        SQL["take_batch"],
        (str(group), *map(array_text, columns[1:6]), digests, "true" if for_listener else "false"),
    )
    inserted = {(message_id, born_on) for message_id, born_on, *_ in rows}
    return TakenBatch(rows[0][2] if rows else "", [_row(each) in inserted for each in deliveries])


def known_batch(group: int, deliveries: Sequence[Delivery]) -> Plan[list[bool | None]]:
    """Return for each message that was refused whether its row is its own, or of another record; None: it has none."""
    ids, days = [each.message.message_id for each in deliveries], [each.born_on for each in deliveries]
    digests = ByteaArray([each.digest for each in deliveries])
    topics = array_text(each.topic_id for each in deliveries)
    rows = yield Statement(
        SQL["known_batch"], (str(group), array_text(ids), array_text(days), digests, topics)
    )
    found: dict[int, bool] = dict(rows)
    return [found.get(place) for place in range(1, len(deliveries) + 1)]


def take_all(group: int, deliveries: Sequence[Delivery]) -> Plan[list[Delivery | None]]:
    """Take several messages over, no two of which have one id; copies of others get ids of their own.

    All transactions insert the ids that headers state before those of copies, and both in order, so none wait for each
    other in a circle.

    Returns:
        Each message as it was taken; None: it was not, because it was taken over before, or is too old.
    """
    is_new = (yield from take_batch(group, deliveries)).is_new
    found: list[Delivery | None] = [
        each if new else None for each, new in zip(deliveries, is_new, strict=True)
    ]
    refused = [place for place, new in enumerate(is_new) if not new]
    if refused:
        own = yield from known_batch(group, [deliveries[place] for place in refused])
        copies = [place for place, is_own in zip(refused, own, strict=True) if is_own is False]
        if copies:
            taken = yield from take_all(group, [as_copy(deliveries[place]) for place in copies])
            for place, each in zip(copies, taken, strict=True):
                found[place] = each
    return found


def held_keys(group: int, deliveries: Sequence[Delivery]) -> Plan[list[bool]]:
    """Return for each message whether its key is held; nothing is locked."""
    keys = ByteaArray([each.order_key for each in deliveries])
    rows = yield Statement(
        SQL["held_keys"], (str(group), array_text(each.topic_id for each in deliveries), keys)
    )
    return _flags(rows, len(deliveries))


def park_behind_all(group: int, deliveries: Sequence[Delivery]) -> Plan[list[bool] | None]:
    """Take messages of one key over, and park them behind the others of their key.

    Args:
        group: the number of the group.
        deliveries: of one topic and order key, in the order of their offsets; no two of them have one id.

    Returns:
        For each of them whether it is parked now; one that is not was taken over before, or is too old to be taken
        together with others. None: the key is not held, and the transaction is to be rolled back.
    """
    taken = yield from take_all(group, deliveries)
    new = [each for each in taken if each is not None]
    if new:
        key = (str(group), str(new[0].topic_id), new[0].order_key)
        if not (yield from lock_held_key(key)):
            return None
        yield _park_all(key, new)
    return [each is not None for each in taken]


def _park_all(key: tuple[str, str, bytes | None], deliveries: Sequence[Delivery]) -> Statement:
    messages = [each.message for each in deliveries]
    headers = headers_of_all(messages)
    return Statement(
        SQL["park_followers"],
        (
            *key,
            array_text(each.message_id for each in messages),
            array_text(each.born_on for each in deliveries),
            array_text(each.partition for each in messages),
            array_text(each.offset for each in messages),
            ByteaArray([each.digest for each in deliveries]),
            ByteaArray([each.key for each in messages]),
            ByteaArray([each.body for each in messages]),
            array_text(milliseconds(each.published_at) for each in messages),
            TextArray(headers.names),
            ByteaArray(headers.values),
            array_text(headers.firsts),
            array_text(headers.lasts),
            BEHIND,
        ),
        answers=False,
    )


def _row(delivery: Delivery) -> tuple[UUID, date]:
    return delivery.message.message_id, delivery.born_on


def _flags(rows: Rows, count: int) -> list[bool]:
    """Return which of so many places, counted from 1, are among the rows."""
    found = {place for (place,) in rows}
    return [place in found for place in range(1, count + 1)]
