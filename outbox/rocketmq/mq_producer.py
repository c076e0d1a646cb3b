"""RocketMQ 4.x's programming model: a producer with listeners that run and check local transactions.

producer = TransactionMQProducer("payments", dsn, listener=PaymentListener())
with producer:
result = producer.send_message_in_transaction(Message("payments:charged", key="p-7"), arg=order)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from outbox.checking.listeners import Listeners, name_of
from outbox.codecs.codec import Codec
from outbox.errors import ConfigurationError
from outbox.message import Message
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.sender import Sender
from outbox.rocketmq.identity import identified, new_transaction_id
from outbox.rocketmq.io import Flow, perform, perform_async
from outbox.rocketmq.lifecycle import Life, refuse_async
from outbox.rocketmq.listener import LocalMessage
from outbox.rocketmq.local import LocalTransaction
from outbox.rocketmq.planning import planned
from outbox.rocketmq.results import TransactionSendResult
from outbox.rocketmq.running import AwaitingLife, BlockingLife
from outbox.rocketmq.storing import HalfMessageOptions
from outbox.tracing import Tracing

Execute = Callable[[LocalMessage, Any], Any]


class _SendingProducer(Life):
    """What the producers for threads and for asyncio share: from the call to the flow."""

    def set_transaction_listener(self, listener: Any) -> None:
        """Register the default listener; for messages that no other one is registered for.

        Raises:
            ConfigurationError: there is a default already, or it has nothing to call.
        """
        self.listeners.register(listener)

    def _send(
        self,
        message: Message,
        arg: Any,
        execute: Execute | None,
        options: HalfMessageOptions,
    ) -> Flow[TransactionSendResult]:
        self._require_running()
        listener = self._find(message)
        if execute is None:
            execute = getattr(listener, "execute_local_transaction", None)
        if not callable(execute):
            raise ConfigurationError(
                f"listener: {name_of(listener)} has no execute_local_transaction (RocketMQ: tranExecutor is null), so "
                "nothing was sent; allowed: a TransactionListener, or execute=…"
            )
        message = identified(message, new_transaction_id())
        return LocalTransaction(
            self._io,
            self.counts,
            self.producer_group,
            message,
            execute,
            arg,
            options,
            partial(planned, self._io.sender),
        ).flow()


class TransactionMQProducer(_SendingProducer, BlockingLife):
    """RocketMQ's TransactionMQProducer; stateless while it runs, so any number of threads send at once."""

    def __init__(
        self,
        producer_group: str,
        connect: Any,
        *,
        listener: Any = None,
        transaction_listener: Any = None,
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
            producer_group: Who is asked about its messages; of its own, not shared with other kinds of messages.
            connect: The outbox's database: a DSN, a callable that returns a new connection, or a pool with
                `.connection()`. From the first two, up to `connections` are kept open. One is in use for each local
                transaction that runs.
            listener: The one listener, or the default one.
            transaction_listener: The same by RocketMQ's name.
            listeners: A registry of many, instead.
            selectors: Custom message queue selectors by name, see `outbox.operations.custom_selectors`.
            connections: How many local transactions run at a time, where `connect` is not a pool.
            connection_timeout: Seconds for which the others wait.
            check: Whether this process handles the checks of its group. Not needed where `outbox checker run` asks
                the application by a callback.
            checker_connect: The checker's own connection, if not made from `connect`.
            codecs: Encode bodies before they are stored, by topic; see `outbox.codecs`. A check gets the body as it
                is stored.
            tracing: Gives messages the trace that runs when they are sent; see `outbox.opentelemetry`.

        Raises:
            ConfigurationError: naming the argument.
        """
        super().__init__(producer_group, listeners, _one_of(listener, transaction_listener), ())
        sender = Sender(self.producer_group, selectors=selectors, codecs=codecs, tracing=tracing)
        self._connect(connect, sender, connections, connection_timeout, checker_connect, check=check)

    def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        execute: Execute | None = None,
        check_after: timedelta | float | None = None,
        idempotency_key: str | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run its local transaction, and store the decision that it returns.

        What the listener writes on `msg.connection` is committed together with the decision COMMIT, in one
        transaction. Its UNKNOWN commits what it wrote and leaves the message to the check. An exception rolls
        it back, is logged, and leaves the message to the check too: it does not show what happened elsewhere.

        Args:
            message: What to send. A `transaction_id` is made for it, if it has none.
            arg: Handed to the listener, in memory; a check does not get it.
            execute: Called instead of the listener's `execute_local_transaction`; the listener still handles checks.
            check_after: Seconds, or a timedelta, until the first check; None: the group's (6 s).
            idempotency_key: 1 to 255 characters; a second send with the same key stores nothing and runs nothing,
                and returns what has become of the first.

        Raises:
            ProducerStateError: the producer is not running.
            InvalidMessageError, ConfigurationError: the message or its listener is wrong; nothing was written.
            GroupTypeError, WrongMessageTypeError: the group or the topic takes no half messages.
            DecidedOtherwiseError: somebody decided against the local transaction; its rows are rolled back.
            NoConnectionError, psycopg.Error: the half message could not be stored; nothing was written.
        """
        if execute is not None:
            refuse_async(execute)
        options = HalfMessageOptions(check_after, idempotency_key)
        return perform(self._send(message, arg, execute, options))


class AsyncTransactionMQProducer(_SendingProducer, AwaitingLife):
    """`TransactionMQProducer` for asyncio; its listeners may be `async`, or quick and synchronous."""

    def __init__(
        self,
        producer_group: str,
        connect: Any,
        *,
        listener: Any = None,
        transaction_listener: Any = None,
        listeners: Listeners | None = None,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        connections: int = 10,
        connection_timeout: float = 30.0,
        check: bool = True,
        checker_connect: Any = None,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """See `TransactionMQProducer`; `connect` gives `psycopg.AsyncConnection`s.

        The checker works in a thread, so where `connect` is not a DSN it needs `checker_connect`: a DSN, or a callable
        that returns a `psycopg.Connection`.
        """
        super().__init__(producer_group, listeners, _one_of(listener, transaction_listener), ())
        sender = Sender(self.producer_group, selectors=selectors, codecs=codecs, tracing=tracing)
        self._connect(connect, sender, connections, connection_timeout, checker_connect, check=check)

    async def send_message_in_transaction(
        self,
        message: Message,
        arg: Any = None,
        *,
        execute: Execute | None = None,
        check_after: timedelta | float | None = None,
        idempotency_key: str | None = None,
    ) -> TransactionSendResult:
        """See `TransactionMQProducer.send_message_in_transaction`.

        A cancelled task leaves what a crash would leave: nothing, or a half message that is asked about.
        """
        options = HalfMessageOptions(check_after, idempotency_key)
        return await perform_async(self._send(message, arg, execute, options))


def _one_of(listener: Any, transaction_listener: Any) -> Any:
    if listener is not None and transaction_listener is not None:
        raise ConfigurationError("transaction_listener: is listener by another name; allowed: one of them")
    return listener if transaction_listener is None else transaction_listener
