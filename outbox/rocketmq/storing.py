"""Storing a half message durably, in a transaction of its own: step one of both programming models.

Whatever a crash leaves behind is safe: before COMMIT nothing is stored; after it the half message is UNKNOWN, no
local transaction has begun, and the check finds nothing of it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import psycopg

from outbox.durations import Duration
from outbox.errors import OutboxError
from outbox.message import Message
from outbox.operations import decide
from outbox.operations.prepare import prepare
from outbox.records import HalfMessage
from outbox.rocketmq.counts import Counts
from outbox.rocketmq.io import IO, Flow
from outbox.rocketmq.log import log, one_line
from outbox.rocketmq.results import SendStatus
from outbox.rocketmq.session import Session, one, standby_warnings
from outbox.statements import Plan, Rows, load

_SQL = load("rocketmq.sql")


class HalfMessageOptions(NamedTuple):
    """What a producer's caller can choose for one half message; see `outbox.Outbox.prepare`."""

    check_after: Duration | None = None
    idempotency_key: str | None = None


class Stored(NamedTuple):
    """A half message whose COMMIT was sent: how that ended, and what was done about it."""

    half: HalfMessage
    status: SendStatus
    remark: str | None = None
    error: Exception | None = None


def store_half_message(
    session: Session, counts: Counts, message: Message, options: HalfMessageOptions
) -> Flow[Stored]:
    """Prepare and COMMIT; where that leaves a doubt, roll the half message back in another transaction.

    Raises:
        OutboxError: the message cannot be prepared; nothing was stored.
        psycopg.Error: the server refused, or the connection was lost before COMMIT was sent; nothing was stored.
    """
    io = session.io
    transaction = yield from session.begin()
    try:
        half: HalfMessage = yield partial(io.run, session.conn, _prepare(io, message, options))
    except BaseException:
        yield partial(io.rollback, transaction)
        raise
    error: Exception | None = None
    with standby_warnings(session.conn) as warned:
        try:
            yield partial(io.commit, transaction)
        except psycopg.Error as lost:
            if not session.lost:
                raise  # the server answered that it did not commit
            error = lost
    if error is None and not warned:
        counts.add("half_messages_total")
        return Stored(half, SendStatus.SEND_OK)
    counts.add("ambiguous_total")
    if error is None:
        status, why = SendStatus.FLUSH_SLAVE_TIMEOUT, "the wait for the synchronous standby was cancelled"
    else:
        status, why = (
            SendStatus.FLUSH_DISK_TIMEOUT,
            f"the connection was lost during COMMIT ({one_line(error)})",
        )
    fenced = yield from fence(
        session, counts, half, f"half message in doubt: {why}; local transaction not run"
    )
    return Stored(half, status, f"{why}; local transaction not run; half message {fenced}", error)


def _prepare(io: IO, message: Message, options: HalfMessageOptions) -> Plan[HalfMessage]:
    return prepare(
        io.sender, message, check_after=options.check_after, idempotency_key=options.idempotency_key
    )


def fence(session: Session, counts: Counts, half: HalfMessage, remark: str) -> Flow[str]:
    """Roll a half message back whose local transaction will never run; answer in words how that went.

    Where it cannot be found, its COMMIT may still be under way: should it appear, the check decides it.
    """

    def rollback(conn: Any) -> Flow[str]:
        yield partial(session.io.run, conn, hurry())
        yield partial(session.io.run, conn, decide.rollback(half, remark))
        return "rolled back"

    try:
        answer: str = yield from session.apart(rollback)
    except (OutboxError, psycopg.Error) as error:
        counts.add("confirm_failed_total")
        log.warning(
            "half message %s is in doubt and could not be rolled back: %s", half.message_id, one_line(error)
        )
        return f"not rolled back ({one_line(error)})"
    return answer


def note(session: Session, half: HalfMessage, remark: str) -> Flow[None]:
    """Store the remark of a half message that stays UNKNOWN, as far as that is possible."""

    def update(conn: Any) -> Flow[None]:
        yield partial(session.io.run, conn, hurry())
        yield partial(session.io.run, conn, remarking(half, remark))

    try:
        yield from session.apart(update)
    except (OutboxError, psycopg.Error) as error:
        log.warning("half message %s: its remark was not stored: %s", half.message_id, one_line(error))


def remarking(half: HalfMessage, remark: str) -> Plan[Rows]:
    """The plan that stores a remark."""
    return one(_SQL["note_remark"], str(half.id), str(half.message_id), remark)


def hurry() -> Plan[Rows]:
    """The plan that keeps a repair from waiting."""
    return one(_SQL["hurry"])
