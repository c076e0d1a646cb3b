"""What follows when a local transaction has ended, and its decision is not simply stored with it.

RocketMQ sends its decision one way and forgets about it; here a decision that fails is noticed, counted
(`confirm_failed_total`) and, where it is in doubt, read again. What stays open is left to the check.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg

from outbox.checking.answers import Answer, LocalTransactionState
from outbox.errors import DecidedOtherwiseError, OutboxError
from outbox.operations import decide
from outbox.operations.remarks import shortened
from outbox.records import HalfMessage
from outbox.rocketmq.counts import Counts
from outbox.rocketmq.io import Flow
from outbox.rocketmq.log import log, one_line
from outbox.rocketmq.session import Session
from outbox.rocketmq.storing import hurry, note

_STATES = {
    "UNKNOWN": LocalTransactionState.UNKNOWN,
    "EXHAUSTED": LocalTransactionState.UNKNOWN,
    "ROLLED_BACK": LocalTransactionState.ROLLBACK,
}


def state_of(decided: DecidedOtherwiseError | str) -> LocalTransactionState:
    """A row's state as a local transaction's; whatever follows COMMITTED was committed."""
    state = decided if isinstance(decided, str) else decided.state
    return _STATES.get(state, LocalTransactionState.COMMIT)


def rolled_back(session: Session, counts: Counts, half: HalfMessage, answer: Answer) -> Flow[Answer]:
    """Decide ROLLBACK in a transaction of its own: the one of the business rows is rolled back already.

    Between the two a check may come; it finds no rows, and at most rolls back as well.

    Raises:
        DecidedOtherwiseError: it was committed meanwhile.
    """

    def rollback(conn: Any) -> Flow[None]:
        remark = answer.remark or "the listener answered ROLLBACK"
        yield partial(session.io.run, conn, decide.rollback(half, remark))

    try:
        yield from session.apart(rollback)
    except DecidedOtherwiseError:
        counts.add("confirm_failed_total")
        raise
    except (OutboxError, psycopg.Error) as error:
        return Answer(answer.state, _failed(counts, half, answer.state, error))
    counts.add("rolled_back_total")
    return answer


def not_confirmed(
    session: Session, counts: Counts, half: HalfMessage, error: Exception, *, in_doubt: bool = False
) -> Flow[Answer]:
    """Find out what became of a transaction with business rows and COMMIT that failed, or whose end is unknown.

    It is never committed afterwards: the rows that it would speak of may be gone.
    """
    remark = _failed(counts, half, LocalTransactionState.COMMIT, error)
    if in_doubt:
        try:
            yield from session.apart(lambda conn: _look(session, conn, half))
        except DecidedOtherwiseError as decided:
            if (state := state_of(decided)) is not LocalTransactionState.UNKNOWN:
                return Answer(state, shortened(f"found decided after a lost COMMIT: {decided}"))
        except (OutboxError, psycopg.Error) as lost:
            log.warning("message %s: how its COMMIT ended is not known: %s", half.message_id, one_line(lost))
            return Answer(LocalTransactionState.UNKNOWN, remark)
    yield from note(session, half, remark)
    return Answer(LocalTransactionState.UNKNOWN, remark)


def _look(session: Session, conn: Any, half: HalfMessage) -> Flow[None]:
    """See how a lost transaction ended: the row's lock waits until it has."""
    yield partial(session.io.run, conn, hurry())
    yield partial(session.io.run, conn, decide.join(half))


def _failed(counts: Counts, half: HalfMessage, wanted: LocalTransactionState, error: Exception) -> str:
    """RocketMQ's warning, counted."""
    counts.add("confirm_failed_total")
    remark = f"local transaction execute {wanted}, but end transaction failed: {one_line(error)}"
    log.warning("message %s: %s", half.message_id, remark)
    return shortened(remark) or remark
