"""One message through one listener, on one connection: the transactions around it.

Everything that touches order or recovery is in `plans`. Here is who commits and who rolls back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus

from outbox.drivers.psycopg_sync import run
from outbox.errors import ListenerError
from outbox.inbox import plans
from outbox.inbox.core.partitions import Pauses
from outbox.inbox.counts import MessageCounts
from outbox.inbox.delays import DelaySchedule
from outbox.inbox.failures import Failure, describe, reported
from outbox.inbox.guard import guarded
from outbox.inbox.header_filters import UndecidedError
from outbox.inbox.messages import Attempt, ConsumedMessage, Delivery
from outbox.inbox.parked_rows import BEGINNING, Retry
from outbox.inbox.results import RESULTS, Consumed, ConsumeResult, failure_of
from outbox.inbox.round_trips import begin_and_take, check_and_commit
from outbox.inbox.sessions import is_infrastructure, locked_by_others
from outbox.inbox.settings import Subscribed

Connection = psycopg.Connection[Any]
Listener = Callable[[Connection, ConsumedMessage], Consumed]
CountRun = Callable[[Delivery, bool], int]
"""Counts durably that a run of a message, or a retry, begins; returns in how many processes it has begun."""
Commit = Callable[[Connection, str], None]
"""Commits the transaction of a connection if it has this number; see `check_and_commit`."""
log = logging.getLogger("outbox.inbox")
_KEEPS_TRANSACTION = "listener_keeps_transaction"


class Handled(Enum):
    """What became of a message."""

    APPLIED = "applied"
    DISCARDED = "discarded"
    REFUSED = "refused"
    """The group had taken it over before."""
    PARKED = "parked"
    DEAD = "dead"
    GONE = "gone"
    """Somebody else dealt with it, or with the retry, meanwhile."""


@dataclass(frozen=True, slots=True)
class Handling:
    """How a group handles messages."""

    group: int
    listener: Listener
    delays: DelaySchedule
    subscription: Mapping[str, Subscribed] = field(default_factory=dict)
    counts: MessageCounts = field(default_factory=MessageCounts)
    member: str = ""
    count_run: CountRun = lambda *_: 1
    require_room: Callable[[str, bytes | None], None] = lambda *_: None
    """Admits a message of a topic and a key that is parked behind held ones, or raises FullKeyError."""
    pauses: Pauses = field(default_factory=Pauses)


class ListenerFailedError(Exception):
    """Carries the failure of a listener from its call to the code that parks the message."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.fingerprint)
        self.failure = failure


def handle(
    conn: Connection,
    how: Handling,
    delivery: Delivery,
    begins: Callable[[Attempt], None] = lambda _: None,
    previous: Attempt | None = None,
    *,
    taken: plans.Taken | None = None,
    commit: Commit | None = None,
) -> Handled:
    """Handle a message that was delivered.

    Args:
        conn: a connection outside a transaction, or in the one in which the message was taken over.
        how: the group.
        delivery: the message.
        begins: called with the attempt before the listener.
        previous: the last attempt with this message, whose outcome may be unknown.
        taken: what became of the attempt to take the message over, if that was made before.
        commit: commits the effect; None: `check_and_commit`.

    Raises:
        psycopg.Error: PostgreSQL is away, or asks for another try; nothing is lost, and nothing is known of a commit.
        LockedError: Others have its row or its key locked, or its key is full. The caller rolls back.
        ListenerFailedError: The listener failed; everything is rolled back, and the message is to be parked.
    """
    if taken is None:
        with locked_by_others():
            taken = begin_and_take(conn, how.group, delivery)
    if not taken.is_new:
        copy = run(conn, plans.copy_of(how.group, delivery))
        if copy is None:
            return _refused(conn, how, delivery, previous)
        conn.rollback()
        return handle(conn, how, copy, begins, previous, commit=commit)
    if taken.is_too_old:
        parked = run(conn, plans.park_too_old(how.group, delivery))
        conn.commit()
        _log_dead(delivery.message, parked.failure, parked.id)
        return Handled.DEAD
    if taken.is_held:
        how.require_room(delivery.message.topic, delivery.order_key)
        run(conn, plans.park_behind(how.group, delivery))
        conn.commit()
        return Handled.PARKED
    attempt = Attempt(taken.xid)
    begins(attempt)
    committing = commit or check_and_commit
    if (
        call_listener(conn, how.listener, delivery.message, attempt, commit=committing)
        is ConsumeResult.SUCCESS
    ):
        return Handled.APPLIED
    conn.rollback()
    with locked_by_others():
        is_new = run(conn, plans.take(how.group, delivery)).is_new
    if not is_new:
        conn.rollback()
        return handle(conn, how, delivery, begins, attempt, commit=commit)
    conn.commit()
    return Handled.DISCARDED


def park(
    conn: Connection, how: Handling, delivery: Delivery, failure: Failure, attempt: Attempt | None
) -> Handled:
    """Park a message whose listener failed in an attempt, in a transaction of its own.

    Raises:
        psycopg.Error, LockedError: As for `handle`.
    """
    with locked_by_others():
        parked = run(conn, plans.park(how.group, delivery, failure, how.delays, attempt))
    conn.commit()
    if parked is None:
        return Handled.GONE
    if parked.state != "dead":
        return Handled.PARKED
    _log_dead(delivery.message, parked.failure, parked.id)
    return Handled.DEAD


def handle_due(
    conn: Connection,
    how: Handling,
    begins: Callable[[Retry], None] = lambda _: None,
    *,
    since: int = BEGINNING,
    with_suspects: bool = True,
) -> Retry | None:
    """Try one retry that is due again; return it, or None when nothing is due.

    Args:
        conn: a connection outside a transaction.
        how: the group.
        begins: called with the retry before its listener; it may raise ListenerFailedError.
        since: retries that were due before are not found; microseconds since 1970.
        with_suspects: whether it may be one that has begun in another process, and has not ended.

    Raises:
        psycopg.Error: as for `handle`; the retry is still due.
    """
    retry = run(
        conn,
        plans.next_due(
            how.group,
            how.member,
            since=since,
            with_suspects=with_suspects,
            paused=how.pauses.topics,
            topics=how.subscription or None,
        ),
    )
    if retry is None:
        conn.rollback()
        return None
    try:
        begins(retry)
        if _is_refused_by_filter(how, retry):
            result = ConsumeResult.DISCARD
        else:
            result = call_listener(
                conn, how.listener, retry.delivery.message, Attempt(retry.xid), _take_back_retry
            )
    except ListenerFailedError as failed:
        count_failure(conn, how, retry, failed.failure)
        return retry
    try:
        if result is ConsumeResult.DISCARD:
            _take_back_retry(conn)
            run(conn, plans.take_out_discarded(how.group, retry))
        else:
            run(conn, plans.take_out(how.group, retry))
        conn.commit()
    except psycopg.Error as error:
        if is_infrastructure(error):
            raise
        _take_back_retry(conn)
        count_failure(conn, how, retry, describe(error))
        return retry
    how.counts.retry("discarded" if result is ConsumeResult.DISCARD else "applied")
    return retry


def count_failure(conn: Connection, how: Handling, retry: Retry, failure: Failure) -> None:
    """Count a retry that failed, commit that, and log it if that was the last attempt.

    If its transaction is still open, the row is locked in it. If it has ended, it was given up or lost, or the listener
    has ended it: another thread may have run the retry meanwhile, and what it counted is left alone.
    """
    state = run(conn, plans.failed_again(retry, failure, how.delays))
    conn.commit()
    if state is not None:
        how.counts.retry("dead" if state == "dead" else "failed")
    if state == "dead":
        _log_dead(retry.delivery.message, failure, retry.id)


def try_later(conn: Connection, retry: Retry, seconds: float) -> None:
    """Try a retry again later, in a transaction of its own; log it if its listener has committed it as dead."""
    is_dead = run(conn, plans.postpone(retry, seconds))
    conn.commit()
    if is_dead:
        _log_dead(retry.delivery.message, reported(plans.COMMITTED), retry.id)


def _log_dead(message: ConsumedMessage, failure: Failure, id_: int | None) -> None:
    """Log a message that is dead from now on; after the commit, so that an operator finds it."""
    command = "outbox dlq ls" if id_ is None else f"outbox dlq show {id_}"
    log.error("%s is dead: %s; next: %s", message.message_id, failure.fingerprint, command)


def _take_back(conn: Connection) -> None:
    """Take back what the listener of a delivery wrote, and the row of the inbox."""
    conn.rollback()


def _take_back_retry(conn: Connection) -> None:
    """Take back what the listener of a retry wrote; its row stays locked, unless the listener ended the transaction."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        return
    try:
        run(conn, plans.take_back())
    except psycopg.errors.InvalidSavepointSpecification:
        conn.rollback()  # of a transaction that the listener began


def _is_refused_by_filter(how: Handling, retry: Retry) -> bool:
    """Ask the header filter again about a message of which it could not decide.

    Raises:
        ListenerFailedError: It still cannot.
    """
    message = retry.delivery.message
    if not retry.is_undecided or message.topic not in how.subscription:
        return False
    try:
        return not how.subscription[message.topic].selects(message.headers)
    except UndecidedError as error:
        raise ListenerFailedError(error.failure) from error


def _refused(conn: Connection, how: Handling, delivery: Delivery, previous: Attempt | None) -> Handled:
    if not run(conn, plans.is_committed_by_listener(previous)):
        conn.rollback()
        return Handled.REFUSED
    parked = run(conn, plans.park_dead(how.group, delivery, reported(plans.COMMITTED), attempts=1))
    conn.commit()
    _log_dead(delivery.message, parked.failure, parked.id)
    return Handled.DEAD


def call_listener(
    conn: Connection,
    listener: Listener,
    message: ConsumedMessage,
    attempt: Attempt,
    take_back: Callable[[Connection], None] = _take_back,
    *,
    commit: Commit | None = None,
) -> ConsumeResult:
    """Run the listener; return SUCCESS if its transaction may be committed, or DISCARD.

    Args:
        conn: in the transaction that took the message.
        listener: what to run.
        message: for the listener.
        attempt: notes what becomes of the transaction.
        take_back: takes back what the listener wrote.
        commit: commits a transaction that may be committed; None: the caller does.

    Raises:
        ListenerFailedError: it failed, and what it wrote is taken back.
    """
    failure: Failure | None = None
    result: object = None
    try:
        with guarded(conn, attempt):
            result = cast("object", listener(conn, message))
    except BaseException as error:
        if is_infrastructure(error) and not attempt.ended:
            raise
        failure = describe(error)
    else:
        failure = _unusable(conn, result)
    if commit and failure is None and result is ConsumeResult.SUCCESS and not attempt.ended:
        failure = _commit(conn, attempt, commit)
    elif failure is None or attempt.ended:
        failure = _joined(_left(conn, attempt, take_back), failure)
    if failure is not None:
        take_back(conn)
        raise ListenerFailedError(failure)
    if result is ConsumeResult.DISCARD:
        return ConsumeResult.DISCARD
    attempt.returned = True
    return ConsumeResult.SUCCESS


def _unusable(conn: Connection, result: object) -> Failure | None:
    """Return a failure if a listener that returned has not succeeded."""
    if not isinstance(result, Consumed):
        return describe(ListenerError(f"the listener returned {type(result).__name__}; allowed: {RESULTS}"))
    if result is ConsumeResult.SUCCESS and conn.info.transaction_status == TransactionStatus.INERROR:
        return describe(
            ListenerError(
                "the listener returned after an error of PostgreSQL that it did not let pass, so nothing that it "
                "wrote can be committed; allowed: let the error pass, or use `with conn.transaction():`"
            )
        )
    return failure_of(result)


def _joined(left: Failure | None, failure: Failure | None) -> Failure | None:
    """Return one failure of a listener that ended its transaction and failed: what it said of other tries holds."""
    if left is None or failure is None:
        return left or failure
    return replace(failure, fingerprint=left.fingerprint, error=f"{left.error}\nAfterwards: {failure.error}")


def _left(conn: Connection, attempt: Attempt, take_back: Callable[[Connection], None]) -> Failure | None:
    """Return a failure if the listener ended the transaction that it was given."""
    if conn.info.transaction_status == TransactionStatus.INERROR:
        take_back(conn)
        if run(conn, plans.is_committed_by_listener(attempt)):
            return reported(plans.COMMITTED)
        return None
    try:
        run(conn, plans.still_in(attempt.xid))
    except psycopg.Error as error:
        return _ended(conn, attempt, error)
    return None


def _commit(conn: Connection, attempt: Attempt, commit: Commit) -> Failure | None:
    """Commit; return a failure if the listener ended the transaction that it was given."""
    attempt.returned = True  # before the commit is sent: from here on it is the consumer's
    try:
        commit(conn, attempt.xid)
    except psycopg.Error as error:
        attempt.returned = error.diag.constraint_name != _KEEPS_TRANSACTION
        return _ended(conn, attempt, error)
    return None


def _ended(conn: Connection, attempt: Attempt, error: psycopg.Error) -> Failure:
    """Return why the listener's transaction cannot be committed: it ended it, or its writes are refused.

    Raises:
        psycopg.Error: PostgreSQL is away, or asks for another try.
    """
    if error.diag.constraint_name != _KEEPS_TRANSACTION:
        if is_infrastructure(error):
            raise error
        return describe(error)  # such as a deferred constraint
    conn.rollback()
    is_committed = run(conn, plans.is_committed_by_listener(attempt))
    conn.rollback()
    cause = plans.COMMITTED if is_committed else plans.ROLLED_BACK
    return Failure(cause, f"{cause}. {error.diag.message_hint}")
