"""A call to somebody else's system, between the transaction that prepares a message and the one that decides it.

    charge = OutsideCall(outbox, pool.connection, call=charge_card, settle=write_payment)
    listeners.register(charge, checker="payment")

    with pool.connection() as conn:
        conn.execute("INSERT INTO payments VALUES ('p-7', 'pending')")
        half = charge.prepare(conn, Message("payments", key="p-7", transaction_id="p-7", checker="payment"))
    charge.run(half)

A process that dies during the call leaves the message undecided. The check then makes the same call again, with the
same transaction id, and settles its result as `run` would have: so the business rows follow, not only the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Generic, TypeVar

from outbox.calls import AsyncOutboxCalls, OutboxCalls
from outbox.checking.answers import LocalTransactionState
from outbox.durations import Duration
from outbox.errors import InvalidMessageError
from outbox.message import Message
from outbox.records import HalfMessage, MessageView

C = TypeVar("C")
"""What the application's transaction runs on."""
R = TypeVar("R")
"""What the call returns."""


class OutsideCall(Generic[C, R]):
    """A call that is made once, and settled though its process dies; also the listener of its half messages."""

    def __init__(
        self,
        outbox: OutboxCalls[C],
        transaction: Callable[[], AbstractContextManager[C]],
        *,
        call: Callable[[str], R],
        settle: Callable[[C, str, R], bool],
    ) -> None:
        """Name the call, and what its result means.

        Args:
            outbox: Decides the half message.
            transaction: Opens a transaction of the application that commits at the end of its `with` block and rolls
                back on an exception: `pool.connection` of psycopg, `sessionmaker.begin` of SQLAlchemy.
            call: Gets the transaction id and returns the result. It runs again, in any process, if this one dies, or
                is not done when the message is asked about. So the id must make it one: pass it on as the provider's
                idempotency key, or ask by it first. Where the outcome is not known (a time-out), raise: the message
                stays undecided, and is asked about later.
            settle: Gets the transaction, the transaction id and the result; writes the business rows, and returns
                whether the message is published. Twice must be as good as once.
        """
        self._outbox, self._transaction, self._call, self._settle = outbox, transaction, call, settle

    def prepare(self, conn: C, message: Message, *, check_after: Duration | None = None) -> HalfMessage:
        """Write the half message, inside the transaction that writes the first business rows.

        Args:
            conn: The connection of that transaction.
            message: It names the call by `transaction_id`, and this listener by `checker`, or by its topic and tag.
            check_after: Seconds until it is asked about first: longer than the call takes. The group's if None.

        Raises:
            InvalidMessageError: it has no transaction id; else as `outbox.prepare`.
        """
        _require(message.transaction_id)
        return self._outbox.prepare(conn, message, check_after=check_after)

    def run(self, half: HalfMessage) -> R:
        """Make the call, settle its result, and return it; the transaction of `prepare` has committed before.

        Raises:
            DecidedOtherwiseError: somebody else had decided the opposite; no business row was written.
            Exception: what `call` and `settle` raise. The message stays undecided and is asked about.
        """
        return self._run(half)[0]

    def check(self, view: MessageView) -> LocalTransactionState:
        """Settle what a process that fell silent has left; the checker calls it."""
        return LocalTransactionState.COMMIT if self._run(view)[1] else LocalTransactionState.ROLLBACK

    def _run(self, half: HalfMessage | MessageView) -> tuple[R, bool]:
        transaction_id = _require(half.transaction_id)
        result = self._call(transaction_id)
        with self._transaction() as conn:
            publishes = self._settle(conn, transaction_id, result)
            decide = self._outbox.commit if publishes else self._outbox.rollback
            decide(conn, half)
        return result, publishes


class AsyncOutsideCall(Generic[C, R]):
    """`OutsideCall` for asynchronous connections: the same calls, awaited."""

    def __init__(
        self,
        outbox: AsyncOutboxCalls[C],
        transaction: Callable[[], AbstractAsyncContextManager[C]],
        *,
        call: Callable[[str], Awaitable[R]],
        settle: Callable[[C, str, R], Awaitable[bool]],
    ) -> None:
        """See `OutsideCall`."""
        self._outbox, self._transaction, self._call, self._settle = outbox, transaction, call, settle

    async def prepare(self, conn: C, message: Message, *, check_after: Duration | None = None) -> HalfMessage:
        """See `OutsideCall.prepare`."""
        _require(message.transaction_id)
        return await self._outbox.prepare(conn, message, check_after=check_after)

    async def run(self, half: HalfMessage) -> R:
        """See `OutsideCall.run`."""
        return (await self._run(half))[0]

    async def check(self, view: MessageView) -> LocalTransactionState:
        """See `OutsideCall.check`."""
        return LocalTransactionState.COMMIT if (await self._run(view))[1] else LocalTransactionState.ROLLBACK

    async def _run(self, half: HalfMessage | MessageView) -> tuple[R, bool]:
        transaction_id = _require(half.transaction_id)
        result = await self._call(transaction_id)
        async with self._transaction() as conn:
            publishes = await self._settle(conn, transaction_id, result)
            decide = self._outbox.commit if publishes else self._outbox.rollback
            await decide(conn, half)
        return result, publishes


def _require(transaction_id: str | None) -> str:
    if transaction_id is None:
        raise InvalidMessageError(
            "transaction_id",
            "missing, the call outside has nothing to be recognised by",
            "a name of this one call",
        )
    return transaction_id
