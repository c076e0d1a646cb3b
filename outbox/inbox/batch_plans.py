"""How a batch of messages is taken over, as logic without I/O; see `batches` for the transactions, and `plans`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple
from uuid import UUID

from outbox.inbox.messages import Delivery
from outbox.inbox.plans import SQL, identity
from outbox.statements import ByteaArray, Plan, Rows, Statement, array_text


class TakenBatch(NamedTuple):
    """What became of the attempt to take several messages over."""

    xid: str
    """Empty: none of them was taken."""
    is_new: list[bool]
    """For each of them whether its row was inserted."""


def take_batch(group: int, deliveries: Sequence[Delivery]) -> Plan[TakenBatch]:
    """Insert the rows of several messages, no two of which have one id.

    All batches insert in the order of the ids. A transaction of a single message has one row, so no two transactions
    wait for rows of each other.
    """
    ordered = sorted(deliveries, key=_row)
    columns = list(zip(*(identity(group, each) for each in ordered), strict=True))
    digests = ByteaArray([each.digest for each in ordered])
    rows = yield Statement(SQL["take_batch"], (str(group), *map(array_text, columns[1:6]), digests))
    inserted = {(message_id, born_on) for message_id, born_on, _ in rows}
    return TakenBatch(rows[0][2] if rows else "", [_row(each) in inserted for each in deliveries])


def known_batch(group: int, deliveries: Sequence[Delivery]) -> Plan[list[bool]]:
    """Return for each message that was refused whether its row is of the same content."""
    ids, days = [each.message.message_id for each in deliveries], [each.born_on for each in deliveries]
    digests = ByteaArray([each.digest for each in deliveries])
    rows = yield Statement(SQL["known_batch"], (str(group), array_text(ids), array_text(days), digests))
    return _flags(rows, len(deliveries))


def held_keys(group: int, deliveries: Sequence[Delivery]) -> Plan[list[bool]]:
    """Return for each message whether its key is held; nothing is locked."""
    keys = ByteaArray([each.order_key for each in deliveries])
    rows = yield Statement(
        SQL["held_keys"], (str(group), array_text(each.topic_id for each in deliveries), keys)
    )
    return _flags(rows, len(deliveries))


def _row(delivery: Delivery) -> tuple[UUID, date]:
    return delivery.message.message_id, delivery.born_on


def _flags(rows: Rows, count: int) -> list[bool]:
    """Return which of so many places, counted from 1, are among the rows."""
    found = {place for (place,) in rows}
    return [place in found for place in range(1, count + 1)]
