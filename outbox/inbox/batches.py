"""Many messages through one call of a listener, on one connection: the transactions around it.

A batch has at most one message of a key, so it keeps the order of keys as single messages do: what comes before each
of its messages was committed or parked before the batch began. It is tried in one transaction:

    1  take_batch     insert all rows of the inbox, sorted by id, so that two batches never deadlock on them
    2  known_batch    only if some rows were there: messages whose own rows they are, are done
       held_keys      only in an orderly group: which keys are held
    3  the listener   gets the messages whose rows were inserted
    4  still_in, commit

If a key is held, the transaction is rolled back before the listener: the messages of held keys are parked singly, with
the lock that `take` needs, and the others are taken again. If the listener raises, or reports that some messages
failed, the transaction is rolled back: `core.rounds` decides what is run again. What it discarded is recorded in a
transaction of its own: `take_batch`, commit.

When the process dies, PostgreSQL ends the transaction, or a rebalance takes the partition away:

- before 4 is done: nothing of the batch is committed, so each message is where it was before, and comes again;
- during 4: all of it is committed, or nothing; what is committed is refused by its rows of the inbox;
- between two transactions (a rest that is run again, each half, a message that is parked, a discard): each of them
  commits whole messages, with their rows of the inbox. A message whose transaction is not committed comes again,
  because its offset moves after its own transaction only. One whose transaction is committed is refused. So nothing is
  lost, and nothing is applied twice; a listener may only run more often than is counted.

If the listener commits the transaction itself, all rows of the batch are committed with a part of its effect. Each
message is then refused when it is taken alone, and becomes a dead letter, as a single one does; see `plans`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outbox.drivers.psycopg_sync import run
from outbox.errors import ListenerError
from outbox.inbox import batch_plans
from outbox.inbox.core.hands import BatchOutcome
from outbox.inbox.failures import LockedError
from outbox.inbox.handling import Connection, Listener, call_listener
from outbox.inbox.messages import Attempt, ConsumedMessage, Delivery
from outbox.inbox.results import RESULTS, Consumed, ConsumeResult, failure_of, is_success
from outbox.inbox.sessions import locked_by_others

BatchListener = Callable[[Connection, list[ConsumedMessage]], Consumed | Sequence[Consumed]]
_ALLOWED = f"allowed for a batch: {RESULTS}, or a list that has one for each message"


@dataclass(frozen=True, slots=True)
class Batching:
    """How messages are put together."""

    listener: BatchListener
    most: int
    linger: float
    """Seconds to wait for more messages once there is one."""


@dataclass(slots=True)
class _Taken:
    """What `take_batch` found, by places in the batch."""

    xid: str = ""
    new: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    unclear: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


def one_by_one(listener: BatchListener) -> Listener:
    """Make a listener of single messages of a batch listener: it gets a list of one."""

    def called(conn: Connection, message: ConsumedMessage) -> Consumed:
        return results_of(listener(conn, [message]), 1)[0]

    return called


def results_of(result: object, count: int) -> list[Consumed]:
    """Return one result for each message.

    Raises:
        ListenerError: The listener returned something else.
    """
    if isinstance(result, Consumed):
        return [result] * count
    if not isinstance(result, list | tuple):
        raise ListenerError(f"the listener returned {type(result).__name__}; {_ALLOWED}")
    if len(result) != count:
        raise ListenerError(f"the listener returned {len(result)} results for {count} messages; {_ALLOWED}")
    for each in result:
        if not isinstance(each, Consumed):
            raise ListenerError(f"the listener returned a list with {type(each).__name__}; {_ALLOWED}")
    return list(result)


def handle_batch(
    conn: Connection,
    group: int,
    listener: BatchListener,
    deliveries: Sequence[Delivery],
    begins: Callable[[Attempt, list[int]], None] = lambda *_: None,
) -> BatchOutcome:
    """Try messages together, once.

    Args:
        conn: a connection outside a transaction.
        group: the number of the group.
        listener: gets all messages that were not taken over before.
        deliveries: at most one message of each key that has an order.
        begins: called before the listener, with the attempt and the places of its messages.

    Raises:
        psycopg.Error: PostgreSQL is away, or asks for another try; nothing is lost, and nothing is known of a commit.
        LockedError: Others have the row of one of them locked. The caller rolls back.
        ListenerFailedError: The listener raised; everything is rolled back.
    """
    taken = _take(conn, group, deliveries)
    outcome = BatchOutcome(refused=taken.refused, alone=[*taken.unclear, *taken.held])
    if taken.held or not taken.new:
        conn.rollback()
        outcome.again = [place for place in taken.new if place not in taken.held]
        return outcome
    attempt = Attempt(taken.xid)
    begins(attempt, taken.new)
    messages = [deliveries[place].message for place in taken.new]
    results: list[Consumed] = []

    def called(conn: Connection, _: ConsumedMessage) -> ConsumeResult:
        results[:] = results_of(listener(conn, messages), len(messages))
        return ConsumeResult.SUCCESS if is_success(results) else ConsumeResult.DISCARD

    if call_listener(conn, called, messages[0], attempt) is ConsumeResult.SUCCESS:
        conn.commit()
        outcome.done, outcome.applied = taken.new, len(taken.new)
        return outcome
    conn.rollback()
    discarded: list[int] = []
    for place, result in zip(taken.new, results, strict=True):
        if (failure := failure_of(result)) is not None:
            outcome.failed[place] = failure
        else:
            (outcome.again if result is ConsumeResult.SUCCESS else discarded).append(place)
    if discarded:
        try:
            with locked_by_others():
                recorded = run(
                    conn, batch_plans.take_batch(group, [deliveries[place] for place in discarded])
                )
        except LockedError:  # what the listener returned for the others holds
            conn.rollback()
            outcome.alone += discarded
            return outcome
        conn.commit()
        for place, is_new in zip(discarded, recorded.is_new, strict=True):
            (outcome.done if is_new else outcome.alone).append(place)
    return outcome


def _take(conn: Connection, group: int, deliveries: Sequence[Delivery]) -> _Taken:
    """Take messages over, in a transaction for the listener."""
    places = _places(deliveries)
    chosen = [deliveries[place] for place in places]
    with locked_by_others():
        found = run(conn, batch_plans.take_batch(group, chosen, for_listener=True))
    taken = _Taken(found.xid)
    # Two copies of one message: the second one is taken when the first one has ended.
    taken.unclear = sorted(set(range(len(deliveries))) - set(places))
    taken.new = [place for place, is_new in zip(places, found.is_new, strict=True) if is_new]
    if len(taken.new) < len(places):
        others = [place for place, is_new in zip(places, found.is_new, strict=True) if not is_new]
        known = run(conn, batch_plans.known_batch(group, [deliveries[place] for place in others]))
        taken.refused = [place for place, is_known in zip(others, known, strict=True) if is_known]
        taken.unclear += [place for place, is_known in zip(others, known, strict=True) if not is_known]
    ordered = [place for place in taken.new if deliveries[place].order_key is not None]
    if ordered:
        held = run(conn, batch_plans.held_keys(group, [deliveries[place] for place in ordered]))
        taken.held = [place for place, is_held in zip(ordered, held, strict=True) if is_held]
    return taken


def _places(deliveries: Sequence[Delivery]) -> list[int]:
    """Return the places of all messages, each id once."""
    first: dict[object, int] = {}
    for place, each in enumerate(deliveries):
        first.setdefault((each.message.message_id, each.born_on), place)
    return list(first.values())
