"""RocketMQ's producer of plain messages, for code that has one; it sends by `Outbox.send`.

producer = DefaultMQProducer("orders", dsn)
with producer:
result = producer.send(Message("orders:created", key="o-7"), selector, "o-7", conn=conn)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, Self, TypeAlias

from outbox.codecs.codec import Codec
from outbox.drivers import psycopg_sync
from outbox.errors import ConfigurationError
from outbox.message import Message
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.send import send
from outbox.operations.sender import Sender
from outbox.records import Receipt
from outbox.rocketmq.connections import Connections
from outbox.rocketmq.errors import ProducerStateError
from outbox.rocketmq.results import MessageQueue, SendResult, SendStatus
from outbox.tracing import Tracing


class Selecting(Protocol):
    """A selector as RocketMQ's is written: an object with `select`."""

    def select(self, mqs: list[MessageQueue], msg: Message, arg: Any, /) -> MessageQueue:
        """Return one of the topic's queues."""


Selector: TypeAlias = str | MessageQueueSelector | Selecting
"""A built-in selector's name, a function (queues, message, arg) that returns a queue's number, or RocketMQ's form."""


class DefaultMQProducer:
    """RocketMQ's DefaultMQProducer; stateless while it runs, so any number of threads send at once."""

    def __init__(
        self,
        producer_group: str,
        connect: Any,
        *,
        connections: int = 10,
        connection_timeout: float = 30.0,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Configure a producer; nothing is opened before the first send.

        Args:
            producer_group: Its group, of type NORMAL or MIXED.
            connect: The outbox's database: a DSN, a callable that returns a new connection, or a pool with
                `.connection()`; used by sends without `conn`.
            connections: How many are open at a time, where `connect` is not a pool.
            connection_timeout: Seconds to wait for one.
            codecs: Encode bodies before they are stored, by topic; see `outbox.codecs`.
            tracing: Gives messages the trace that runs when they are sent; see `outbox.opentelemetry`.

        Raises:
            ConfigurationError: naming the argument.
        """
        self._sender = Sender(producer_group, codecs=codecs, tracing=tracing)
        self.producer_group = producer_group
        self._connections = Connections(connect, connections, connection_timeout)
        self._running = False

    def start(self) -> None:
        """Let it send.

        Raises:
            ProducerStateError: it was started before.
        """
        if self._running:
            raise ProducerStateError(f"producer of group {self.producer_group!r} was started before")
        self._connections.reopen()
        self._running = True

    def shutdown(self) -> None:
        """Close the connections; those in use are closed when they are given back."""
        self._running = False
        self._connections.close()

    def send(
        self,
        msg: Message,
        selector: Selector | None = None,
        arg: Any = None,
        *,
        conn: Any = None,
        idempotency_key: str | None = None,
    ) -> SendResult:
        """Send one message: in the business transaction on `conn`, or, as RocketMQ does, by itself.

        Args:
            msg: What to send.
            selector: Chooses the queue; None: the topic's. The topic must be registered.
            arg: What the selector decides by: text, bytes or a whole number. It becomes the message's order key.
            conn: A psycopg connection of the outbox's database; the message is sent if its transaction commits. None: a
                transaction of its own, committed on return.
            idempotency_key: See `Outbox.send`.

        Raises:
            ProducerStateError: the producer is not running.
            ConfigurationError: the selector is of no such form, or `arg` comes without one.
            SelectorError: it chose no queue of the topic, or the topic is not registered.
            OutboxError, psycopg.Error: as `Outbox.send`; NoConnectionError without `conn`.
        """
        if not self._running:
            raise ProducerStateError(
                f"producer of group {self.producer_group!r} is not running; allowed: between start() and shutdown(), "
                "or inside `with producer:`"
            )
        message, function = selected(msg, selector, arg)
        with self._connection(conn) as own:
            plan = send(
                self._sender, message, ordered=False, idempotency_key=idempotency_key, selector=function
            )
            receipt = psycopg_sync.run(own, plan)
        return _result(receipt)

    @contextmanager
    def _connection(self, conn: Any) -> Iterator[Any]:
        """Yield the caller's connection, or one in a transaction that is committed at the end."""
        if conn is not None:
            yield conn
            return
        lease = self._connections.take()
        try:
            with lease.conn.transaction():
                yield lease.conn
        finally:
            self._connections.give(lease)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


def selected(
    message: Message, selector: Selector | None, arg: Any
) -> tuple[Message, MessageQueueSelector | None]:
    """Return the message with what its selector decides by, and the function to call, if it is not one by name.

    Raises:
        ConfigurationError: the selector is of no form that is allowed, or is missing.
    """
    if selector is None:
        if arg is not None:
            raise ConfigurationError(
                "arg: comes without a selector; allowed: send(msg), send(msg, selector, arg)"
            )
        return message, None
    given = {} if arg is None else {"order_key": arg}
    if isinstance(selector, str):
        return replace(message, selector=selector, **given), None
    message = replace(message, **given)
    select = getattr(selector, "select", None)
    if select is None:
        return message, selector  # type: ignore[return-value]  # Outbox.send refuses what cannot be called

    def choose(queues: int, message: Message, arg: Any) -> int:
        listed = [MessageQueue(message.topic, number) for number in range(queues)]
        chosen = select(listed, message, arg)
        return listed.index(chosen) if chosen in listed else -1

    choose.__name__ = type(selector).__name__
    return message, choose


def _result(receipt: Receipt) -> SendResult:
    return SendResult(
        SendStatus.SEND_OK,
        MessageQueue(receipt.topic, receipt.queue),
        receipt.message_id,
        duplicate=receipt.duplicate,
        row_id=receipt.id,
    )
