"""RocketMQ 5.x's programming model: transactions that the application commits around its own local transaction.

producer = Producer(dsn, producer_group="payments", checker=PaymentChecker(), topics=["payments"])
with producer:
    with producer.begin(conn) as transaction:      # recommended: rows and message are committed together
        conn.execute("INSERT INTO payments …")
        transaction.send(Message("payments:charged", key="p-7"))

    transaction = producer.begin_transaction()     # RocketMQ's order, for rows in another database
    producer.send(Message("payments:charged", key="p-8"), transaction)
    charge()
    transaction.commit()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Self

from outbox.checking.listeners import Listeners
from outbox.codecs.codec import Codec
from outbox.errors import ConfigurationError
from outbox.message import Message
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.decide import DecidedState, Decision
from outbox.operations.sender import Sender
from outbox.records import HalfMessage
from outbox.rocketmq.errors import ProducerStateError
from outbox.rocketmq.identity import new_transaction_id
from outbox.rocketmq.io import perform, perform_async
from outbox.rocketmq.lifecycle import Life
from outbox.rocketmq.running import AwaitingLife, BlockingLife
from outbox.rocketmq.storing import HalfMessageOptions
from outbox.rocketmq.transaction import Block, HalfMessages
from outbox.tracing import Tracing


class _TransactionalProducer(Life):
    """What both producers share."""

    def _checked(self, checker: Any, listeners: Listeners | None, *, check: bool) -> None:
        if check and checker is None and listeners is None:
            raise ConfigurationError(
                "checker: missing; it is asked about half messages without a decision. Allowed: an object with "
                "check(message_view), a function, listeners=…, or check=False where another process checks this group"
            )
        self._lenient = not check

    def _half_messages(self) -> HalfMessages:
        self._require_running()
        return HalfMessages(self._io, self.counts, new_transaction_id())

    def _admit(self, message: Message) -> None:
        self._require_running()
        if self._lenient:
            self._require_topic(message)
        else:
            self._find(message)


class _Transaction:
    """What transactions of both producers share."""

    def __init__(self, producer: _TransactionalProducer, half_messages: HalfMessages) -> None:
        self._producer, self._half_messages = producer, half_messages

    @property
    def transaction_id(self) -> str:
        """The id of its messages, where they bring none."""
        return self._half_messages.transaction_id

    @property
    def messages(self) -> tuple[HalfMessage, ...]:
        """The half messages that were sent in it."""
        return tuple(self._half_messages.stored)


class Transaction(_Transaction):
    """RocketMQ's Transaction: half messages, of any number, that are decided together. Not for several threads."""

    def commit(self, conn: Any = None, *, remark: str | None = None) -> list[Decision]:
        """Publish its messages: inside the business transaction on `conn`, which is safest, or at once.

        Without `conn`, call it after the business transaction has committed. If it fails then, the check decides.

        Raises:
            ProducerStateError: nothing was sent in it.
            DecidedOtherwiseError: a check or an operator has rolled one back; roll the business transaction back.
        """
        return perform(self._half_messages.decide(DecidedState.COMMITTED, conn, remark))

    def rollback(self, conn: Any = None, *, remark: str | None = None) -> list[Decision]:
        """Withdraw its messages: inside the transaction on `conn`, or at once. Raises as `commit`."""
        return perform(self._half_messages.decide(DecidedState.ROLLED_BACK, conn, remark))

    def join(self, conn: Any) -> None:
        """Lock its messages until the transaction on `conn` ends: a long local transaction is not asked about."""
        perform(self._half_messages.join(conn))


class AsyncTransaction(_Transaction):
    """`Transaction` for asyncio."""

    async def commit(self, conn: Any = None, *, remark: str | None = None) -> list[Decision]:
        """See `Transaction.commit`."""
        return await perform_async(self._half_messages.decide(DecidedState.COMMITTED, conn, remark))

    async def rollback(self, conn: Any = None, *, remark: str | None = None) -> list[Decision]:
        """See `Transaction.rollback`."""
        return await perform_async(self._half_messages.decide(DecidedState.ROLLED_BACK, conn, remark))

    async def join(self, conn: Any) -> None:
        """See `Transaction.join`."""
        await perform_async(self._half_messages.join(conn))


class _Business(_Transaction):
    """What business transactions of both producers share."""

    def __init__(self, producer: _TransactionalProducer, half_messages: HalfMessages, conn: Any) -> None:
        super().__init__(producer, half_messages)
        self._block = Block(half_messages, conn)

    def rollback(self, remark: str | None = None) -> None:
        """Roll business rows and messages back when the block ends, which goes on; nothing is raised."""
        self._block.withdraw(remark)


class BusinessTransaction(_Business):
    """What `Producer.begin(conn)` returns: a `with` block whose end commits business rows and messages together.

    An exception rolls the rows back and leaves the messages UNKNOWN, with the remark: it does not show what the
    block did outside the database, so the checker is asked. `rollback()` withdraws both.
    """

    def __enter__(self) -> Self:
        perform(self._block.enter())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return perform(self._block.leave(error))

    def send(self, message: Message, *, check_after: timedelta | float | None = None) -> HalfMessage:
        """Store a half message on a connection of the producer's, durably, and lock it on the block's.

        Raises as `Producer.send`; UnknownMessageError under REPEATABLE READ, when the block has read before.
        """
        self._producer._admit(message)
        return perform(self._block.send(message, HalfMessageOptions(check_after)))


class AsyncBusinessTransaction(_Business):
    """`BusinessTransaction` for asyncio: `async with`."""

    async def __aenter__(self) -> Self:
        await perform_async(self._block.enter())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return await perform_async(self._block.leave(error))

    async def send(self, message: Message, *, check_after: timedelta | float | None = None) -> HalfMessage:
        """See `BusinessTransaction.send`."""
        self._producer._admit(message)
        return await perform_async(self._block.send(message, HalfMessageOptions(check_after)))


class Producer(_TransactionalProducer, BlockingLife):
    """RocketMQ 5.x's producer of transactional messages; any number of threads share it."""

    def __init__(
        self,
        connect: Any,
        *,
        producer_group: str,
        checker: Any = None,
        topics: Iterable[str] = (),
        listeners: Listeners | None = None,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        connections: int = 10,
        connection_timeout: float = 30.0,
        check: bool = True,
        checker_connect: Any = None,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Configure a producer; nothing is opened before `start()`.

        Args:
            connect: The outbox's database, as for `TransactionMQProducer`; a connection is in use while a half
                message is stored, or decided without a connection of the caller's.
            producer_group: Who is asked about its messages; of its own, not shared with other kinds of messages.
            checker: Who is asked: an object with `check(message_view)`, or a function.
            topics: The topics it may send to; others are refused. None: all.
            listeners: A registry of many checkers, instead of one.
            selectors: Custom message queue selectors by name, see `outbox.operations.custom_selectors`.
            connections: How many of them are open at a time, where `connect` is not a pool.
            connection_timeout: Seconds to wait for one.
            check: Whether this process handles the checks of its group.
            checker_connect: The checker's own connection, if not made from `connect`.
            codecs: Encode bodies before they are stored, by topic; see `outbox.codecs`. A check gets the body as it
                is stored.
            tracing: Gives messages the trace that runs when they are sent; see `outbox.opentelemetry`.

        Raises:
            ConfigurationError: naming the argument.
        """
        super().__init__(producer_group, listeners, checker, topics)
        self._checked(checker, listeners, check=check)
        sender = Sender(self.producer_group, selectors=selectors, codecs=codecs, tracing=tracing)
        self._connect(connect, sender, connections, connection_timeout, checker_connect, check=check)

    def begin_transaction(self) -> Transaction:
        """Begin a transaction of half messages; nothing is opened or written."""
        return Transaction(self, self._half_messages())

    def send(
        self, message: Message, transaction: Transaction, *, check_after: timedelta | float | None = None
    ) -> HalfMessage:
        """Store a half message, durably; it is published when its transaction is committed.

        Args:
            message: What to send; to one of the producer's topics.
            transaction: Of this producer.
            check_after: Seconds, or a timedelta, until the first check; None: the group's (6 s).

        Raises:
            ProducerStateError: the producer is not running, or the transaction is another's.
            InvalidMessageError, ConfigurationError: the message, its topic or its listener is wrong.
            GroupTypeError, WrongMessageTypeError: the group or the topic takes no half messages.
            AmbiguousHalfMessageError: it is not known whether it was stored; do not go on with the local transaction.
        """
        self._admit(message)
        _require_own(transaction, Transaction, self)
        return perform(transaction._half_messages.send(message, HalfMessageOptions(check_after)))

    def begin(self, conn: Any) -> BusinessTransaction:
        """Begin a business transaction on `conn`, of the outbox's database, whose messages are decided with it.

        Inside a transaction that runs already it is a savepoint, and its end is decided with the outer one's.
        """
        return BusinessTransaction(self, self._half_messages(), conn)

    def close(self) -> None:
        """`shutdown`, by RocketMQ 5.x's name."""
        self.shutdown()


class AsyncProducer(_TransactionalProducer, AwaitingLife):
    """`Producer` for asyncio."""

    def __init__(
        self,
        connect: Any,
        *,
        producer_group: str,
        checker: Any = None,
        topics: Iterable[str] = (),
        listeners: Listeners | None = None,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        connections: int = 10,
        connection_timeout: float = 30.0,
        check: bool = True,
        checker_connect: Any = None,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """See `Producer` and, for `checker_connect`, `AsyncTransactionMQProducer`."""
        super().__init__(producer_group, listeners, checker, topics)
        self._checked(checker, listeners, check=check)
        sender = Sender(self.producer_group, selectors=selectors, codecs=codecs, tracing=tracing)
        self._connect(connect, sender, connections, connection_timeout, checker_connect, check=check)

    def begin_transaction(self) -> AsyncTransaction:
        """See `Producer.begin_transaction`."""
        return AsyncTransaction(self, self._half_messages())

    async def send(
        self, message: Message, transaction: AsyncTransaction, *, check_after: timedelta | float | None = None
    ) -> HalfMessage:
        """See `Producer.send`."""
        self._admit(message)
        _require_own(transaction, AsyncTransaction, self)
        return await perform_async(transaction._half_messages.send(message, HalfMessageOptions(check_after)))

    def begin(self, conn: Any) -> AsyncBusinessTransaction:
        """See `Producer.begin`."""
        return AsyncBusinessTransaction(self, self._half_messages(), conn)

    async def close(self) -> None:
        """See `Producer.close`."""
        await self.shutdown()


def _require_own(transaction: Any, kind: type[_Transaction], producer: Any) -> None:
    if not isinstance(transaction, kind):
        raise ProducerStateError(
            f"transaction: is {type(transaction).__name__}; allowed: what begin_transaction() of this producer returns"
        )
    if transaction._producer is not producer:
        raise ProducerStateError(
            "transaction: is another producer's; allowed: this producer's begin_transaction()"
        )
