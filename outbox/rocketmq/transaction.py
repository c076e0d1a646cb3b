"""RocketMQ 5.x's transaction as flows: half messages that are decided together.

Where the business rows are in the outbox's own database, the decision belongs into their transaction: then there is
no moment between the two. Where they are elsewhere, it follows their commit; a crash between the two leaves the half
messages UNKNOWN, and the checker finds the rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg

from outbox.checking.answers import answer_of_error
from outbox.errors import DecidedOtherwiseError, OutboxError, UnknownMessageError
from outbox.message import Message
from outbox.operations import decide
from outbox.operations.decide import DecidedState, Decision
from outbox.records import HalfMessage
from outbox.rocketmq.counts import Counts
from outbox.rocketmq.errors import AmbiguousHalfMessageError, ProducerStateError
from outbox.rocketmq.identity import identified
from outbox.rocketmq.io import IO, Flow
from outbox.rocketmq.log import log, one_line
from outbox.rocketmq.results import SendStatus
from outbox.rocketmq.session import Session, one
from outbox.rocketmq.storing import HalfMessageOptions, note, store_half_message
from outbox.statements import load

_SQL = load("rocketmq.sql")
_OLD_SNAPSHOT = (
    "The half message was stored by another connection after this transaction's snapshot was taken. Under REPEATABLE "
    "READ and SERIALIZABLE send before the block's first statement, or use READ COMMITTED"
)

_METHODS = {DecidedState.COMMITTED: "commit", DecidedState.ROLLED_BACK: "rollback"}
_LOCKED = (
    "Another transaction has locked the message, perhaps the caller's own, by join(conn): end that first, or decide "
    "inside it, with commit(conn) or rollback(conn)"
)


class HalfMessages:
    """The half messages of one transaction, in the order in which they were sent."""

    def __init__(self, io: IO, counts: Counts, transaction_id: str) -> None:
        self.io, self.counts, self.transaction_id = io, counts, transaction_id
        self.stored: list[HalfMessage] = []
        self._joined = False

    def send(self, message: Message, options: HalfMessageOptions) -> Flow[HalfMessage]:
        """Store one more, durably: its transaction has ended when this returns.

        Raises:
            AmbiguousHalfMessageError: it is not known whether it was stored; it is not part of this transaction.
            OutboxError, psycopg.Error: it was not stored.
        """
        session = Session(self.io)
        message = identified(message, self.transaction_id)
        try:
            stored = yield from store_half_message(session, self.counts, message, options)
        finally:
            yield from session.close()
        if stored.status is not SendStatus.SEND_OK:
            raise AmbiguousHalfMessageError(
                f"half message {stored.half.message_id}: {stored.remark}"
            ) from stored.error
        self.stored.append(stored.half)
        return stored.half

    def decide(self, target: DecidedState, conn: Any, remark: str | None) -> Flow[list[Decision]]:
        """Decide all, inside the transaction of `conn`, or in one of their own where that is None.

        Raises:
            ProducerStateError: none was sent.
            DecidedOtherwiseError: one was decided otherwise; none is decided now.
            psycopg.Error: none is decided, unless COMMIT itself was lost: then its end is unknown.
        """
        if not self.stored:
            raise ProducerStateError(
                f"transaction {self.transaction_id}: transactional message has not been sent yet; allowed: "
                f"producer.send(message, transaction) before {_METHODS[target]}"
            )
        if conn is not None:
            return (yield from self._all(target, conn, remark))
        session = Session(self.io)
        try:
            decisions: list[Decision] = yield from session.apart(partial(self._apart, target, remark=remark))
        except (OutboxError, psycopg.Error) as error:
            self._failed(target, error)
            raise
        finally:
            yield from session.close()
        self.counts.add(
            "committed_total" if target is DecidedState.COMMITTED else "rolled_back_total", len(self.stored)
        )
        return decisions

    def join(self, conn: Any) -> Flow[None]:
        """Take the rows' locks: who checks sees that the local transaction on `conn` is running."""
        self._joined = True
        for half in self.stored:
            yield from lock_half_message(self.io, conn, half)

    def _apart(self, target: DecidedState, conn: Any, remark: str | None) -> Flow[list[Decision]]:
        if self._joined:
            yield partial(self.io.run, conn, one(_SQL["wait_briefly"]))
        try:
            return (yield from self._all(target, conn, remark))
        except psycopg.errors.LockNotAvailable as error:
            error.add_note(_LOCKED)
            raise

    def _all(self, target: DecidedState, conn: Any, remark: str | None) -> Flow[list[Decision]]:
        decisions = []
        for half in self.stored:
            decisions.append((yield partial(self.io.run, conn, decide.decide(half, target, remark))))
        return decisions

    def _failed(self, target: DecidedState, error: BaseException) -> None:
        self.counts.add("confirm_failed_total", len(self.stored))
        log.warning("transaction %s: %s failed: %s", self.transaction_id, _METHODS[target], one_line(error))


class Block:
    """A business transaction on the application's connection, and the half messages that are decided with it."""

    def __init__(self, half_messages: HalfMessages, conn: Any) -> None:
        self._half_messages, self._conn = half_messages, conn
        self._transaction: Any = None
        self._withdrawn: str | None = None

    def enter(self) -> Flow[None]:
        """Begin the transaction, or a savepoint of the one that runs."""
        self._transaction = yield partial(self._half_messages.io.begin, self._conn)

    def send(self, message: Message, options: HalfMessageOptions) -> Flow[HalfMessage]:
        """Store a half message durably, then lock it for as long as this transaction runs."""
        if self._transaction is None:
            raise ProducerStateError(
                "transaction: the block has not begun or has ended; allowed: inside `with`"
            )
        half = yield from self._half_messages.send(message, options)
        yield from lock_half_message(self._half_messages.io, self._conn, half)
        return half

    def withdraw(self, remark: str | None) -> None:
        """Roll everything back when the block ends."""
        self._withdrawn = remark or "the transaction was rolled back"

    def leave(self, error: BaseException | None) -> Flow[bool]:
        """End the transaction; whether the error is dealt with.

        Normally: rows and messages are committed together. After `withdraw` or `raise psycopg.Rollback()`: both are
        rolled back. After any other error: the rows are rolled back and the messages stay UNKNOWN with a remark,
        because what the block did outside the database is not known here.
        """
        half_messages, transaction = self._half_messages, self._transaction
        self._transaction = None
        if isinstance(error, psycopg.Rollback) and error.transaction is None:
            self.withdraw(None)
            error = None
        if error is not None or self._withdrawn is not None:
            yield partial(half_messages.io.rollback, transaction)
            if error is None:
                if half_messages.stored:
                    yield from half_messages.decide(DecidedState.ROLLED_BACK, None, self._withdrawn)
                return True
            if isinstance(error, Exception):
                yield from self._note(error)
            return False
        try:
            if half_messages.stored:
                yield from half_messages.decide(DecidedState.COMMITTED, self._conn, None)
        except BaseException as refused:
            yield partial(half_messages.io.rollback, transaction)
            self._count(refused)
            raise
        try:
            yield partial(half_messages.io.commit, transaction)
        except BaseException as lost:
            self._count(lost)
            raise
        half_messages.counts.add("committed_total", len(half_messages.stored))
        return False

    def _note(self, error: Exception) -> Flow[None]:
        if not self._half_messages.stored:
            return
        remark = answer_of_error("local transaction", error).remark or ""
        self._half_messages.counts.add("unknown_total", len(self._half_messages.stored))
        self._half_messages.counts.add("exceptions_total", len(self._half_messages.stored))
        session = Session(self._half_messages.io)
        try:
            for half in self._half_messages.stored:
                yield from note(session, half, remark)
        finally:
            yield from session.close()

    def _count(self, error: BaseException) -> None:
        if isinstance(error, DecidedOtherwiseError | psycopg.Error):
            self._half_messages._failed(DecidedState.COMMITTED, error)


def lock_half_message(io: IO, conn: Any, half: HalfMessage) -> Flow[None]:
    """Lock a half message; where it cannot be seen, explain why that may be."""
    try:
        yield partial(io.run, conn, decide.join(half))
    except UnknownMessageError as error:
        error.add_note(_OLD_SNAPSHOT)
        raise
