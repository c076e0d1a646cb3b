"""RocketMQ 4.x's transactional send as a flow: half message, local transaction, decision.

Transaction A stores the half message. Transaction B takes its row lock, runs the listener and decides; the lock shows
every checker that the local transaction is running. What a crash leaves, by where it strikes:

- before A commits: nothing;
- after A, before B commits: an UNKNOWN half message, and none of the rows that the listener wrote on B;
- after B: message and rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from outbox.checking.answers import Answer, LocalTransactionState, answer_of, answer_of_error
from outbox.errors import DecidedOtherwiseError, OutboxError
from outbox.message import Message
from outbox.operations import decide
from outbox.operations.remarks import shortened
from outbox.records import HalfMessage
from outbox.rocketmq.confirming import not_confirmed, rolled_back, state_of
from outbox.rocketmq.counts import Counts
from outbox.rocketmq.io import IO, Flow
from outbox.rocketmq.listener import LocalMessage, local_message
from outbox.rocketmq.log import log, one_line
from outbox.rocketmq.results import MessageQueue, SendStatus, TransactionSendResult
from outbox.rocketmq.session import Session, one
from outbox.rocketmq.storing import HalfMessageOptions, fence, note, remarking, store_half_message
from outbox.statements import load

_SQL = load("rocketmq.sql")
COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)
LOCAL_BRANCH = "executeLocalTransactionBranch"


@dataclass(frozen=True, slots=True)
class LocalTransaction:
    """One send: what to store, whom to call, where to count."""

    io: IO
    counts: Counts
    producer_group: str
    message: Message
    execute: Callable[[LocalMessage, Any], Any]
    arg: Any
    options: HalfMessageOptions
    plan_queue: Callable[[Message, HalfMessage], MessageQueue]

    def flow(self) -> Flow[TransactionSendResult]:
        """The whole send.

        Raises:
            OutboxError: the message was refused; nothing was stored.
            DecidedOtherwiseError: somebody decided against the local transaction; what it wrote on `msg.connection`
                is rolled back.
            psycopg.Error: the half message could not be stored; nothing was.
        """
        session = Session(self.io)
        try:
            stored = yield from store_half_message(session, self.counts, self.message, self.options)
            half = stored.half
            if stored.status is not SendStatus.SEND_OK:
                answer = Answer(ROLLBACK, shortened(stored.remark))
            elif half.duplicate:
                answer, half = yield from self._earlier(session, half)
            else:
                answer = yield from self._run(session, half)
        finally:
            yield from session.close()
        return TransactionSendResult(
            send_status=stored.status,
            message_queue=self.plan_queue(self.message, half),
            msg_id=half.message_id,
            transaction_id=half.transaction_id or "",
            local_transaction_state=answer.state,
            remark=answer.remark,
            duplicate=half.duplicate,
            row_id=half.id,
        )

    def _run(self, session: Session, half: HalfMessage) -> Flow[Answer]:
        """Transaction B."""
        io, transaction = self.io, None
        try:
            transaction = yield from session.begin()
            yield partial(io.run, session.conn, decide.join(half))
        except BaseException as error:
            if transaction is not None:
                yield partial(io.rollback, transaction)
            if isinstance(error, OutboxError | psycopg.Error):
                return (yield from self._not_begun(session, half, error))
            raise
        try:
            answer, sound = yield from self._ask(session.conn, half)
            if sound and answer.state is COMMIT:
                yield partial(io.run, session.conn, decide.commit(half))
            elif sound and answer.state is UNKNOWN and answer.remark is not None:
                yield partial(io.run, session.conn, remarking(half, answer.remark))
        except BaseException as error:
            yield partial(io.rollback, transaction)
            if isinstance(error, DecidedOtherwiseError):
                # Nobody can decide under the row's lock; whoever did, the business rows must not contradict it.
                self.counts.add("confirm_failed_total")
            elif isinstance(error, psycopg.Error):
                return (yield from not_confirmed(session, self.counts, half, error))
            raise
        if answer.state is ROLLBACK:
            yield partial(io.rollback, transaction)
            return (yield from rolled_back(session, self.counts, half, answer))
        self.counts.add("committed_total" if answer.state is COMMIT and sound else "unknown_total")
        if not sound:
            yield partial(io.rollback, transaction)
            yield from note(session, half, answer.remark or "")
            return answer
        try:
            yield partial(io.commit, transaction)
        except psycopg.Error as error:
            return (yield from not_confirmed(session, self.counts, half, error, in_doubt=session.lost))
        return answer

    def _ask(self, conn: Any, half: HalfMessage) -> Flow[tuple[Answer, bool]]:
        """Call the listener; answer also whether it ended normally and left transaction B as it should be."""
        view = local_message(self.message, half, self.producer_group, conn)
        try:
            value = yield partial(self.io.call, self.execute, view, self.arg)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is no rollback: the outside world may have moved
            self.counts.add("exceptions_total")
            log.warning("message %s: %s exception", half.message_id, LOCAL_BRANCH, exc_info=error)
            return answer_of_error(LOCAL_BRANCH, error), False
        answer = answer_of(value)
        status = conn.info.transaction_status
        if status == TransactionStatus.INTRANS or answer.state is ROLLBACK:
            return answer, True
        if status == TransactionStatus.INERROR:
            wrong = "a statement on msg.connection had failed, so its transaction cannot commit"
        elif status == TransactionStatus.IDLE:
            wrong = "the listener had ended the transaction of msg.connection itself"
        else:
            wrong = "the connection msg.connection was lost or closed"
        remark = f"{LOCAL_BRANCH} answered {answer.state}, but {wrong}"
        log.warning("message %s: %s", half.message_id, remark)
        return Answer(UNKNOWN, remark), False

    def _not_begun(self, session: Session, half: HalfMessage, error: Exception) -> Flow[Answer]:
        """The row lock was not had, so the listener was not called: withdraw what it would have decided."""
        why = f"local transaction not run: {one_line(error)}"
        if isinstance(error, DecidedOtherwiseError):
            if state_of(error) is not ROLLBACK:
                raise error
            return Answer(ROLLBACK, shortened(why))  # a check came first, and found nothing
        fenced = yield from fence(session, self.counts, half, why)
        return Answer(ROLLBACK, shortened(f"{why}; half message {fenced}"))

    def _earlier(self, session: Session, half: HalfMessage) -> Flow[tuple[Answer, HalfMessage]]:
        """What an earlier send with the same idempotency key has come to, and its transaction id."""

        def read(conn: Any) -> Flow[Any]:
            return (
                yield partial(self.io.run, conn, one(_SQL["read_state"], str(half.id), str(half.message_id)))
            )

        rows = yield from session.apart(read)
        state, remark, transaction_id = rows[0] if rows else ("UNKNOWN", "the earlier message is gone", None)
        return Answer(state_of(state), remark), half._replace(transaction_id=transaction_id)
