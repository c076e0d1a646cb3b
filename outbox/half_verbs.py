"""The verbs of half messages for applications: what `Outbox` and `AsyncOutbox` say beside `send`."""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.drivers import psycopg_async, psycopg_sync
from outbox.durations import Span
from outbox.message import Message
from outbox.operations.decide import AnyMessage, Decision
from outbox.operations.prepare import Halves
from outbox.records import HalfMessage


class HalfVerbs(Halves):
    """Prepare, commit, roll back, join and cancel on a `psycopg.Connection`, inside the caller's transaction."""

    def prepare(
        self,
        conn: psycopg.Connection[Any],
        message: Message,
        *,
        checker: str | None = None,
        biz_type: str | None = None,
        biz_id: str | None = None,
        transaction_id: str | None = None,
        check_after: Span | None = None,
        ordered: bool = False,
        idempotency_key: str | None = None,
    ) -> HalfMessage:
        """Write a half message: durable when the caller's transaction commits, published only once it is committed.

        Write it together with the first local write, so that a message without its business row cannot be; and
        commit the transaction before the outside world is asked for anything.

        Args:
            conn: A connection in, or able to begin, a transaction.
            message: What will be sent.
            checker: Name of the checker that is asked when no decision comes. Like the next three, it wins over the
                message's own field.
            biz_type: What the message is about, for the checker.
            biz_id: Which one of these, for the checker.
            transaction_id: The application's name for the transaction, for the checker and the record's headers.
            check_after: Seconds (or a timedelta) until it is first asked about; the group's if None (6 s).
            ordered: Not here: a half message takes its place when it is committed, see `commit`.
            idempotency_key: As for `send`: the same key again answers with the one half message, decided or not,
                and `duplicate=True`.

        Raises:
            ConfigurationError: the outbox has no producer group, or an option cannot work.
            InvalidMessageError: the topic does not take half messages, or not this one.
            GroupTypeError: the producer group is registered for normal messages only.
            NoTransactionError, IdempotencyConflictError: as for `send`.
        """
        plan = self._prepare(
            message,
            checker=checker,
            biz_type=biz_type,
            biz_id=biz_id,
            transaction_id=transaction_id,
            check_after=check_after,
            ordered=ordered,
            idempotency_key=idempotency_key,
        )
        return psycopg_sync.run(conn, plan)

    def commit(
        self,
        conn: psycopg.Connection[Any],
        half: AnyMessage,
        *,
        remark: str | None = None,
        ordered: bool = False,
    ) -> Decision:
        """Decide that a half message is published, if and when the caller's transaction commits; one round trip.

        Carry it inside the last local transaction. A decider that has not ended yet is waited for. If a checker or
        an operator has rolled the message back, this raises, and the local transaction with it: let it pass.

        Args:
            conn: A connection in, or able to begin, a transaction.
            half: What `prepare` answered, or the message id.
            remark: Why, for the audit; 500 characters are kept.
            ordered: Take the lock of (topic, order key) first, for callers whose transaction has not written a row
                that serialises the key. One more round trip.

        Returns:
            The decision; the earlier one, `repeated`, if it was committed before.

        Raises:
            DecidedOtherwiseError: it was rolled back; the error says by whom, when and why.
            ExhaustedError: its checks are used up and an operator must decide.
            NotAHalfMessageError, UnknownMessageError: there is nothing to decide.
            psycopg.errors.SerializationFailure: above READ COMMITTED, somebody decided meanwhile; run it all again.
        """
        return psycopg_sync.run(conn, self._commit(half, remark, ordered=ordered))

    def rollback(
        self, conn: psycopg.Connection[Any], half: AnyMessage, *, remark: str | None = None
    ) -> Decision:
        """Decide that a half message is never published, if and when the caller's transaction commits.

        Raises:
            DecidedOtherwiseError: it was committed before.
            ExhaustedError, NotAHalfMessageError, UnknownMessageError: as for `commit`.
        """
        return psycopg_sync.run(conn, self._rollback(half, remark))

    def join(self, conn: psycopg.Connection[Any], half: AnyMessage) -> None:
        """Bind a half message to the local transaction that runs now; call it first in there.

        It locks the half message until the transaction ends. A locked one is alive: no checker asks about it or
        decides it, however long the transaction takes.

        Raises:
            DecidedOtherwiseError: it is decided already, so the local transaction comes too late.
            ExhaustedError, NotAHalfMessageError, UnknownMessageError: as for `commit`.
        """
        psycopg_sync.run(conn, self._join(half))

    def cancel(
        self, conn: psycopg.Connection[Any], message_id: AnyMessage, *, remark: str | None = None
    ) -> Decision:
        """Withdraw a delayed message before it is delivered; cancelling twice is fine.

        If the relay releases it at the same time, one of the two wins, and this tells which.

        Raises:
            TooLateError: it has been released to the relay; the transaction stays usable.
            NotDelayedError: it has no `deliver_at`, or is an undecided half message.
            DecidedOtherwiseError: it was rolled back.
            UnknownMessageError: there is no such message.
        """
        return psycopg_sync.run(conn, self._cancel(message_id, remark))


class AsyncHalfVerbs(Halves):
    """`HalfVerbs` for a `psycopg.AsyncConnection`: the same calls, awaited."""

    async def prepare(
        self,
        conn: psycopg.AsyncConnection[Any],
        message: Message,
        *,
        checker: str | None = None,
        biz_type: str | None = None,
        biz_id: str | None = None,
        transaction_id: str | None = None,
        check_after: Span | None = None,
        ordered: bool = False,
        idempotency_key: str | None = None,
    ) -> HalfMessage:
        """See `Outbox.prepare`."""
        plan = self._prepare(
            message,
            checker=checker,
            biz_type=biz_type,
            biz_id=biz_id,
            transaction_id=transaction_id,
            check_after=check_after,
            ordered=ordered,
            idempotency_key=idempotency_key,
        )
        return await psycopg_async.run(conn, plan)

    async def commit(
        self,
        conn: psycopg.AsyncConnection[Any],
        half: AnyMessage,
        *,
        remark: str | None = None,
        ordered: bool = False,
    ) -> Decision:
        """See `Outbox.commit`."""
        return await psycopg_async.run(conn, self._commit(half, remark, ordered=ordered))

    async def rollback(
        self, conn: psycopg.AsyncConnection[Any], half: AnyMessage, *, remark: str | None = None
    ) -> Decision:
        """See `Outbox.rollback`."""
        return await psycopg_async.run(conn, self._rollback(half, remark))

    async def join(self, conn: psycopg.AsyncConnection[Any], half: AnyMessage) -> None:
        """See `Outbox.join`."""
        await psycopg_async.run(conn, self._join(half))

    async def cancel(
        self, conn: psycopg.AsyncConnection[Any], message_id: AnyMessage, *, remark: str | None = None
    ) -> Decision:
        """See `Outbox.cancel`."""
        return await psycopg_async.run(conn, self._cancel(message_id, remark))
