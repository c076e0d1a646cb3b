"""What waits behind a message that was parked: parked together, so that a key that fails costs the others little.

A thread that has just parked a message of a key has its later messages in hand, too: while it holds the key no other
thread takes one. It parks as many as are in memory in one transaction. Schedules:

- The process dies, or the transaction fails, at any place: nothing is committed. The messages are in front of their key
  again, and each is handled alone, which also reports what is wrong; or they are delivered again.
- The outcome of the commit is unknown: each is handled alone, and is refused if it was committed.
- A retry releases the key meanwhile: the transaction finds no held key, and is rolled back. Or the retry waits for the
  transaction, and then finds the messages: the first of them follows.
- The partition is given away meanwhile: they count as running, so that is waited for. If it takes too long, the next
  member comes to their rows, waits for this transaction, and is refused; or takes them over.
- Another member has taken some of them over, or one is too old to be proven new: those are handled alone. They
  are never parked as waiting, so the order of the others is that of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import date
from uuid import UUID

from outbox.drivers.psycopg_sync import run
from outbox.inbox import batch_plans
from outbox.inbox.core.partitions import size_of
from outbox.inbox.handling import Connection
from outbox.inbox.messages import Delivery

MOST = 200
MOST_BYTES = 1 << 20
"""Of the messages of one transaction, together; a single larger one is parked alone."""


def fitting(days: Collection[date]) -> Callable[[Delivery], bool]:
    """Return a function that checks of one message after the other whether it can be parked with those before it.

    Args:
        days: of birth, whose partitions of the inbox exist.
    """
    seen: set[UUID] = set()
    size = 0

    def fits(delivery: Delivery) -> bool:
        nonlocal size
        size += size_of(delivery)
        if len(seen) == MOST or size > MOST_BYTES or delivery.failure is not None:
            return False
        if delivery.born_on not in days or delivery.message.message_id in seen:
            return False
        seen.add(delivery.message.message_id)
        return True

    return fits


def park_followers(conn: Connection, group: int, deliveries: list[Delivery]) -> list[bool]:
    """Park messages behind those of their key; return for each of them whether it is parked now.

    Args:
        conn: a connection outside a transaction.
        group: the number of the group.
        deliveries: of one key, in its order; at least one.

    Raises:
        psycopg.Error: as for `handling.handle`; nothing is lost, and nothing is known of a commit.
    """
    parked = run(conn, batch_plans.park_behind_all(group, deliveries))
    if parked is None or not any(parked):
        conn.rollback()
        return [False] * len(deliveries)
    conn.commit()
    return parked
