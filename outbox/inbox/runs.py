"""The count of a run, before its listener is called; see `suspects`."""

from __future__ import annotations

from outbox.inbox.assignments import Assignments
from outbox.inbox.core.suspects import MOST_RETRY_RUNS, MOST_RUNS
from outbox.inbox.failures import killed
from outbox.inbox.handling import Connection, Handling, ListenerFailedError
from outbox.inbox.messages import Delivery
from outbox.inbox.parked_rows import Retry


def count_delivery(conn: Connection, how: Handling, work: Assignments, delivery: Delivery) -> None:
    """Count that a message is run which may have ended an earlier process.

    Args:
        conn: in the transaction that took the message.
        how: the group.
        work: the partitions of the member.
        delivery: the message.

    Raises:
        ListenerFailedError: It has begun too often without an end; the transaction is rolled back.
        LockedError: It cannot be counted now.
    """
    runs = how.count_run(delivery, False)
    with work as partitions:
        partitions.suspects.ran(delivery)
    if runs > MOST_RUNS:
        conn.rollback()
        raise ListenerFailedError(killed(runs - 1))


def count_retry(how: Handling, retry: Retry) -> None:
    """Count that a retry is run.

    Raises:
        ListenerFailedError: It has begun too often without an end.
        LockedError: It cannot be counted now.
    """
    runs = how.count_run(retry.delivery, True)
    if runs > MOST_RETRY_RUNS:
        raise ListenerFailedError(killed(runs - 1))
