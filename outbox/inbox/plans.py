"""How a message is taken over, parked and tried again, as logic without I/O: a plan for each part of a transaction.

A delivery, in one transaction: `take`, the listener, `still_in`, commit. If the listener failed: roll back, then in a
second transaction `park`, commit. A retry, in one transaction: `next_due`, the listener, `still_in`, `take_out`,
commit; if the listener failed: back to the savepoint that `next_due` has set, `failed_again`, commit. So its row is
locked until the attempt is counted, and no other thread or member runs it in between, unless the listener has ended
the transaction itself.

What happens when the process dies, or PostgreSQL ends its transaction, between any two lines: nothing is
committed but whole transactions, so the message is where it was before. It is delivered again, because the
offset moves after the commit only; or it is still parked, and due, and an attempt that failed before that is not
counted: it is run at least once more than is counted. Two processes that run the same message at
once both come to its row: the second waits for the end of the first transaction, then is refused, or takes over. An
unknown outcome of a commit is one of both.

What happens when the listener commits the transaction itself, whatever it does afterwards (return, raise, run past
its time-out, lose its connection): a delivery has committed its row of the inbox, so the message is refused from then
on; `park` finds that the transaction of the `Attempt` is committed although the listener had not returned, and writes a
dead letter. A retry has made its row dead in `next_due`, so the row is committed as dead, and `failed_again` and
`postpone` leave it alone.

Records that other programs made of a message, such as Kafka Streams, have its headers, and so its id. The first one is
taken over under that id, and others under ids of their own (`copy_of`), which a redelivery finds again.

What happens when the partition of a message's day has been dropped: the floor of the group was raised and committed
before that, so `take` inserts a row and reports that it proves nothing. The row and a dead letter are committed
together; if the process dies before that, there is neither, and the message is delivered again. After it, the row
refuses the message. A `take` that read the floor before it was raised has locked the inbox since before that; the
partition is dropped after its transaction has ended and was checked. See `outbox_relay/operations/inbox_drop.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outbox.inbox.core.suspects import MOST_RETRY_RUNS
from outbox.inbox.delays import DelaySchedule
from outbox.inbox.failures import KILLED, Failure, LockedError
from outbox.inbox.header_filters import UNDECIDED
from outbox.inbox.messages import Attempt, Delivery, as_copy, header_columns
from outbox.inbox.parked_rows import BEGINNING, Retry, milliseconds, retry_of
from outbox.inbox.snapshots import require_new_snapshots
from outbox.statements import ByteaArray, Plan, Statement, TextArray, load

SQL = load("inbox.sql")
BEHIND = "waits behind a message of its key that failed"
ENDED = "the listener ended the transaction that it was given"
COMMITTED = f"{ENDED}, and committed its writes up to there"
"""A part of the effect may exist: the message is dead, and is tried again only if an operator names it."""
ROLLED_BACK = f"{ENDED}, and rolled it back"
"""Nothing of the effect exists: a failed attempt like any other."""
TOO_OLD = "too old to prove that it was not applied"
UNREADABLE_HEADERS = "headers that cannot be read, so it is unknown whether the message is subscribed to"
"""An operator who names it in a redrive decides that it is."""


class Taken(NamedTuple):
    """What became of the attempt to take a message over."""

    xid: str
    is_new: bool
    """False: the group has taken it over before, and the transaction has nothing to commit."""
    is_held: bool
    """Whether its key is held: it must be parked, in this transaction."""
    is_too_old: bool
    """Whether rows of its day may have been dropped, so that a new row proves nothing: it must be parked as dead."""
    is_deleted: bool = False
    """Whether the group was deleted: nothing may be committed."""

    def of_group(self) -> Taken:
        """Return this.

        Raises:
            LockedError: The group was deleted while the member stood still; the keeper ends the member.
        """
        if self.is_deleted:
            raise LockedError("its group was deleted")
        return self


class Parked(NamedTuple):
    """What became of a message that failed."""

    state: str
    id: int | None
    """None: it was parked before."""
    failure: Failure


def take(group: int, delivery: Delivery) -> Plan[Taken]:
    """Insert the row of the inbox, lock the held key if there is one, and read the floor of the group.

    No listener may run in the transaction: its waits for locks are limited, see `sessions`.
    """
    rows = yield Statement(SQL["take"], (*identity(group, delivery), delivery.order_key, "false"))
    return Taken(*rows[0][:5]).of_group()


def copy_of(group: int, delivery: Delivery) -> Plan[Delivery | None]:
    """Return a message under an id of its own, if the row that refused it is of another record with its headers."""
    rows = yield Statement(
        SQL["known"],
        (
            str(group),
            str(delivery.message.message_id),
            str(delivery.born_on),
            delivery.digest,
            str(delivery.topic_id),
        ),
    )
    return as_copy(delivery) if rows and not rows[0][0] else None


def park_behind(group: int, delivery: Delivery) -> Plan[None]:
    """Park a message that was taken, behind the others of its key."""
    yield _park(group, delivery, "waiting", None)


def park_dead(group: int, delivery: Delivery, failure: Failure, *, attempts: int) -> Plan[Parked]:
    """Park a message that must not be applied; it holds up no other. Once only, however often it is delivered."""
    rows = yield _park(group, delivery, "dead", failure, attempts=attempts, ordered=False)
    return Parked("dead", rows[0][0] if rows else None, failure)


def park_too_old(group: int, delivery: Delivery, failure: Failure | None = None) -> Plan[Parked]:
    """Park a message that was taken and is too old as dead.

    Args:
        group: the number of the group.
        delivery: the message.
        failure: why it failed after it was taken before.
    """
    error = f"{TOO_OLD}: it was born on {delivery.born_on}, and rows of the inbox of that day may have been dropped"
    if failure is not None:
        error = f"{error}. Before that: {failure.error}"
    attempts = 0 if failure is None else 1
    return (yield from park_dead(group, delivery, Failure(TOO_OLD, error), attempts=attempts))


def park(
    group: int, delivery: Delivery, failure: Failure, delays: DelaySchedule, attempt: Attempt | None = None
) -> Plan[Parked | None]:
    """Take over a message that failed, and park it; return None if somebody else has taken it over.

    The inbox row comes first, as in `take`, and then the held key.

    Args:
        group: the number of the group.
        delivery: the message.
        failure: why it is parked.
        delays: the pauses before its retries.
        attempt: the run of the listener that failed, if it ran.
    """
    rows = yield Statement(SQL["take"], (*identity(group, delivery), None, "false"))
    taken = Taken(*rows[0][:5]).of_group()
    if not taken.is_new:
        copy = yield from copy_of(group, delivery)
        if copy is not None:
            return (yield from park(group, copy, failure, delays, attempt))
        if not (yield from is_committed_by_listener(attempt)):
            return None
        return (yield from park_dead(group, delivery, _committed(failure), attempts=1))
    if taken.is_too_old:
        return (yield from park_too_old(group, delivery, failure))
    if failure.fingerprint == UNREADABLE_HEADERS:
        return (yield from park_dead(group, delivery, failure, attempts=0))
    pause = delays.next(failure, 1)
    state = "dead" if pause is None else "retry"
    if delivery.order_key is not None:
        rows = yield Statement(SQL["hold"], (str(group), str(delivery.topic_id), delivery.order_key))
        if not rows[0][0]:
            state, pause = "waiting", None
    attempts = MOST_RETRY_RUNS if failure.fingerprint == KILLED else 1
    rows = yield _park(group, delivery, state, failure, attempts=attempts, pause=pause)
    return Parked(state, rows[0][0] if rows else None, failure)


def is_committed_by_listener(attempt: Attempt | None) -> Plan[bool]:
    """Return whether a listener committed its transaction; to be asked when the message is found to be taken over.

    The transaction has ended then: `take` has waited for it. `returned` is read after PostgreSQL was asked, because the
    consumer sets it before it commits.
    """
    if attempt is None:
        return False
    rows = yield Statement(SQL["is_committed"], (attempt.xid,))
    return bool(rows[0][0]) and not attempt.returned


def _committed(failure: Failure) -> Failure:
    return Failure(COMMITTED, f"{COMMITTED}. Afterwards: {failure.error}")


def still_in(xid: str) -> Plan[None]:
    """Take back a role that the listener has set; raise unless the transaction is the one that took the message."""
    yield Statement(SQL["reset_role"])
    yield Statement(SQL["require_transaction"], (xid,))


def next_due(
    group: int,
    member: str = "",
    *,
    since: int = BEGINNING,
    with_suspects: bool = True,
    paused: Iterable[str] = (),
    topics: Iterable[str] | None = None,
) -> Plan[Retry | None]:
    """Lock the retry that has been due for the longest time, unless other processes have all of them.

    A suspect is one of which a run has begun in a process of another member, and has not ended; see `suspects`. None is
    found of topics that are paused, or that other members read and this one does not; `topics`: of this one, None: all.

    It is dead until its transaction deletes it (`take_out`), counts its attempt as failed (`failed_again`) or is rolled
    back. What follows can be taken back without that (`take_back`).
    """
    allowed = "true" if with_suspects else "false"
    rows = yield Statement(
        SQL["next_due"], (str(group), COMMITTED, allowed, member, str(since), *topic_arrays(paused, topics))
    )
    if not rows:
        return None
    yield Statement(SQL["before_retry"], answers=False)
    *columns, _, due_at, is_suspect = rows[0]
    return retry_of(columns)._replace(due_at=due_at, is_suspect=is_suspect)


def topic_arrays(paused: Iterable[str], topics: Iterable[str] | None) -> tuple[TextArray, TextArray | None]:
    """Return what `next_due` and `receive` get of topics that are paused, and of those that the member reads."""
    return TextArray(list(paused)), None if topics is None else TextArray(list(topics))


def take_back() -> Plan[None]:
    """Take back what was written since `next_due`; the row stays locked.

    Raises:
        psycopg.errors.InvalidSavepointSpecification: The transaction of `next_due` has ended.
    """
    yield Statement(SQL["take_back"], answers=False)


def take_out(group: int, retry: Retry) -> Plan[None]:
    """Delete a parked message with its effect, let the next one of its key follow, and check deferred constraints.

    The held key is locked first. A message of the key that is delivered now waits for this transaction to end,
    and is then parked behind the next one, or finds the key released.
    """
    yield from remove(group, retry.delivery.topic_id, retry.delivery.order_key, retry.id)
    yield Statement(SQL["check_constraints"], answers=False)


def remove(group: int, topic_id: int, order_key: bytes | None, id_: int) -> Plan[None]:
    """Delete a parked message whose row this transaction has locked, and let the next one of its key follow.

    A row that is gone changes nothing: the key is that of another message then.

    Raises:
        IsolationLevelError: The transaction keeps its snapshot; nothing was written.
    """
    key = (str(group), str(topic_id), order_key)
    if order_key is not None:
        yield from lock_held_key(key)
    removed = yield Statement(SQL["take_out"], (str(id_),))
    if order_key is None or not removed:
        return
    following = yield Statement(SQL["follow"], (*key, str(id_)))
    if not following:
        yield Statement(SQL["let_go"], key)


def lock_held_key(key: tuple[str, str, bytes | None]) -> Plan[bool]:
    """Lock a held key, given by group, topic and order key; return whether it is held.

    Raises:
        IsolationLevelError: The transaction keeps its snapshot; nothing was locked.
    """
    [(isolation, is_held)] = yield Statement(SQL["lock_held_key"], key)
    require_new_snapshots(isolation)
    return bool(is_held)


def take_out_discarded(group: int, retry: Retry) -> Plan[None]:
    """Take out a retry that its listener discarded, after `take_back`.

    If the listener ended the transaction, this is another one, and the row was due and free in between. Who has taken
    it meanwhile decides on it: another member that runs it, or an operator.
    """
    locked = yield Statement(SQL["lock_again"], (str(retry.id), str(retry.attempts), retry.xid))
    if locked:
        yield from take_out(group, retry)


def failed_again(retry: Retry, failure: Failure, delays: DelaySchedule) -> Plan[str | None]:
    """Count a failed retry and schedule the next one; return its new state.

    In the transaction of `next_due`, or in a new one after that has ended. None if somebody else has dealt with it. A
    retry that its listener has committed is dead already.
    """
    pause = delays.next(failure, retry.attempts + 1)
    rows = yield Statement(
        SQL["failed_again"],
        (
            str(retry.id),
            str(retry.attempts),
            None if pause is None else str(pause),
            failure.fingerprint,
            failure.error,
            retry.xid,
        ),
    )
    if not rows:
        rows = yield Statement(SQL["died"], (str(retry.id), str(retry.attempts)))
    return str(rows[0][0]) if rows else None


def postpone(retry: Retry, seconds: float) -> Plan[bool]:
    """Try a retry again later, without counting an attempt; return whether its listener has made it a dead letter."""
    if (yield Statement(SQL["postpone"], (str(retry.id), str(seconds), str(retry.attempts)))):
        return False
    return bool((yield Statement(SQL["died"], (str(retry.id), str(retry.attempts)))))


def await_commits() -> Plan[None]:
    """Let commits of the session return when they are on disk, where the server's default is not to wait."""
    yield Statement(SQL["await_commits"])


def apply_policies() -> Plan[None]:
    """Let the session see the rows of its own consumer groups, where its role or database sets `row_security = off`."""
    yield Statement(SQL["apply_policies"])


def notice_dead_clients() -> Plan[None]:
    """Let PostgreSQL end the session soon after the client's host has fallen silent."""
    yield Statement(SQL["notice_dead_clients"])


def identity(group: int, delivery: Delivery) -> tuple[str | bytes, ...]:
    """Return the values of the row of the inbox, as `take` has them."""
    message = delivery.message
    return (
        str(group),
        str(message.message_id),
        str(delivery.born_on),
        str(delivery.topic_id),
        str(message.partition),
        str(message.offset),
        delivery.digest,
    )


def _park(
    group: int,
    delivery: Delivery,
    state: str,
    failure: Failure | None,
    *,
    attempts: int = 0,
    pause: float | None = None,
    ordered: bool = True,
) -> Statement:
    message = delivery.message
    names, values = header_columns(message.headers)
    return Statement(
        SQL["park"],
        (
            *identity(group, delivery),
            delivery.order_key if ordered else None,
            message.key,
            message.body,
            TextArray(names),
            ByteaArray(values),
            str(milliseconds(message.published_at)),
            state,
            str(attempts),
            None if pause is None else str(pause),
            failure.fingerprint if failure else BEHIND,
            failure.error if failure else None,
            "true" if _is_undecided(delivery) else "false",
        ),
    )


def _is_undecided(delivery: Delivery) -> bool:
    return delivery.failure is not None and delivery.failure.fingerprint.startswith(UNDECIDED)
