"""RocketMQ 5.x's transaction as flows: half messages that are decided together.

Where the business rows are in the outbox's own database, the decision belongs into their transaction: then there is
no moment between the two. Where they are elsewhere, it follows their commit; a crash between the two leaves the half
messages UNKNOWN, and the checker finds the rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg

from outbox.errors import DecidedOtherwiseError, OutboxError, UnknownMessageError
from outbox.message import Message
from outbox.operations import decide
from outbox.operations.decide import Decision, Verdict
from outbox.records import HalfMessage
from outbox.resolution import answer_of_error
from outbox.rocketmq.counts import Counts
from outbox.rocketmq.errors import AmbiguousHalfError, ProducerStateError
from outbox.rocketmq.identity import identified
from outbox.rocketmq.io import IO, Flow
from outbox.rocketmq.log import log, told
from outbox.rocketmq.results import SendStatus
from outbox.rocketmq.session import Session, one
from outbox.rocketmq.storing import HalfOptions, note, store_half
from outbox.statements import load

_SQL = load("rocketmq.sql")
_OLD_SNAPSHOT = (
    "The half message was stored by another connection after this transaction's snapshot was taken. Under REPEATABLE "
    "READ and SERIALIZABLE send before the block's first statement, or use READ COMMITTED"
)

_METHODS = {Verdict.COMMITTED: "commit", Verdict.ROLLED_BACK: "rollback"}
_LOCKED = (
    "Another transaction has locked the message, perhaps the caller's own, by join(conn): end that first, or decide "
    "inside it, with commit(conn) or rollback(conn)"
)


class Halves:
    """The half messages of one transaction, in the order in which they were sent."""

    def __init__(self, io: IO, counts: Counts, transaction_id: str) -> None:
        self.io, self.counts, self.transaction_id = io, counts, transaction_id
        self.stored: list[HalfMessage] = []
        self._joined = False

    def send(self, message: Message, options: HalfOptions) -> Flow[HalfMessage]:
        """Store one more, durably: its transaction has ended when this returns.

        Raises:
            AmbiguousHalfError: it is not known whether it was stored; it is no part of this transaction.
            OutboxError, psycopg.Error: it was not stored.
        """
        session = Session(self.io)
        message = identified(message, self.transaction_id)
        try:
            stored = yield from store_half(session, self.counts, message, options)
        finally:
            yield from session.close()
        if stored.status is not SendStatus.SEND_OK:
            raise AmbiguousHalfError(
                f"half message {stored.half.message_id}: {stored.remark}"
            ) from stored.error
        self.stored.append(stored.half)
        return stored.half

    def decide(self, verdict: Verdict, conn: Any, remark: str | None) -> Flow[list[Decision]]:
        """Decide all, inside the transaction of `conn`, or in one of their own where that is None.

        Raises:
            ProducerStateError: none was sent.
            DecidedOtherwiseError: one was decided otherwise; none is decided now.
            psycopg.Error: none is decided, unless COMMIT itself was lost: then nobody knows.
        """
        if not self.stored:
            raise ProducerStateError(
                f"transaction {self.transaction_id}: transactional message has not been sent yet; allowed: "
                f"producer.send(message, transaction) before {_METHODS[verdict]}"
            )
        if conn is not None:
            return (yield from self._all(verdict, conn, remark))
        session = Session(self.io)
        try:
            decisions: list[Decision] = yield from session.apart(partial(self._apart, verdict, remark=remark))
        except (OutboxError, psycopg.Error) as error:
            self._failed(verdict, error)
            raise
        finally:
            yield from session.close()
        self.counts.add(
            "committed_total" if verdict is Verdict.COMMITTED else "rolled_back_total", len(self.stored)
        )
        return decisions

    def join(self, conn: Any) -> Flow[None]:
        """Take the rows' locks: who checks sees that the local transaction on `conn` is running."""
        self._joined = True
        for half in self.stored:
            yield from join(self.io, conn, half)

    def _apart(self, verdict: Verdict, conn: Any, remark: str | None) -> Flow[list[Decision]]:
        if self._joined:
            yield partial(self.io.run, conn, one(_SQL["wait_briefly"]))
        try:
            return (yield from self._all(verdict, conn, remark))
        except psycopg.errors.LockNotAvailable as error:
            error.add_note(_LOCKED)
            raise

    def _all(self, verdict: Verdict, conn: Any, remark: str | None) -> Flow[list[Decision]]:
        decisions = []
        for half in self.stored:
            decisions.append((yield partial(self.io.run, conn, decide.decide(half, verdict, remark))))
        return decisions

    def _failed(self, verdict: Verdict, error: BaseException) -> None:
        self.counts.add("confirm_failed_total", len(self.stored))
        log.warning("transaction %s: %s failed: %s", self.transaction_id, _METHODS[verdict], told(error))


class Block:
    """A business transaction on the application's connection, and the half messages that are decided with it."""

    def __init__(self, halves: Halves, conn: Any) -> None:
        self._halves, self._conn = halves, conn
        self._transaction: Any = None
        self._withdrawn: str | None = None

    def enter(self) -> Flow[None]:
        """Begin the transaction, or a savepoint of the one that runs."""
        self._transaction = yield partial(self._halves.io.begin, self._conn)

    def send(self, message: Message, options: HalfOptions) -> Flow[HalfMessage]:
        """Store a half message durably, then lock it for as long as this transaction runs."""
        if self._transaction is None:
            raise ProducerStateError(
                "transaction: the block has not begun or has ended; allowed: inside `with`"
            )
        half = yield from self._halves.send(message, options)
        yield from join(self._halves.io, self._conn, half)
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
        halves, transaction = self._halves, self._transaction
        self._transaction = None
        if isinstance(error, psycopg.Rollback) and error.transaction is None:
            self.withdraw(None)
            error = None
        if error is not None or self._withdrawn is not None:
            yield partial(halves.io.rollback, transaction)
            if error is None:
                if halves.stored:
                    yield from halves.decide(Verdict.ROLLED_BACK, None, self._withdrawn)
                return True
            if isinstance(error, Exception):
                yield from self._note(error)
            return False
        try:
            if halves.stored:
                yield from halves.decide(Verdict.COMMITTED, self._conn, None)
        except BaseException as refused:
            yield partial(halves.io.rollback, transaction)
            self._count(refused)
            raise
        try:
            yield partial(halves.io.commit, transaction)
        except BaseException as lost:
            self._count(lost)
            raise
        halves.counts.add("committed_total", len(halves.stored))
        return False

    def _note(self, error: Exception) -> Flow[None]:
        if not self._halves.stored:
            return
        remark = answer_of_error("local transaction", error).remark or ""
        self._halves.counts.add("unknown_total", len(self._halves.stored))
        self._halves.counts.add("exceptions_total", len(self._halves.stored))
        session = Session(self._halves.io)
        try:
            for half in self._halves.stored:
                yield from note(session, half, remark)
        finally:
            yield from session.close()

    def _count(self, error: BaseException) -> None:
        if isinstance(error, DecidedOtherwiseError | psycopg.Error):
            self._halves._failed(Verdict.COMMITTED, error)


def join(io: IO, conn: Any, half: HalfMessage) -> Flow[None]:
    """Lock a half message; where it cannot be seen, say why that may be."""
    try:
        yield partial(io.run, conn, decide.join(half))
    except UnknownMessageError as error:
        error.add_note(_OLD_SNAPSHOT)
        raise
