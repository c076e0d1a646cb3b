"""What applications call on an outbox, whatever their connections are: each method runs one operation on one.

A class for a kind of connection only knows how to run a plan on it: see `outbox.client` and `outbox.adapters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar, Unpack

from outbox.codecs.codec import Codec
from outbox.drivers.stepwise import run_in_steps
from outbox.durations import Duration
from outbox.message import Message
from outbox.operations.cancel import cancel
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.decide import AnyMessage, Decision, commit, join, rollback
from outbox.operations.groups import GroupOptions, ProducerGroup
from outbox.operations.prepare import prepare
from outbox.operations.send import send, send_many
from outbox.operations.sender import Sender
from outbox.operations.topics import KNOWN_FOR, MessageType, Topic
from outbox.records import HalfMessage, Receipt
from outbox.statements import Plan
from outbox.tracing import Tracing

C = TypeVar("C")
"""What the caller's transaction runs on."""
T = TypeVar("T")


class OutboxCalls(ABC, Generic[C]):
    """The calls of an outbox whose connections are synchronous."""

    def __init__(
        self,
        producer_group: str | None = None,
        *,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        topic_ttl: float = KNOWN_FOR,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Configure an outbox; it opens nothing and keeps no connection, so one serves any number of threads.

        Args:
            producer_group: Who sends: goes with every message; half messages need it, because the group's checker is
                asked about them. Idempotency keys are unique within it.
            selectors: Custom message queue selectors by name, see `outbox.operations.custom_selectors`.
            topic_ttl: Seconds for which the registration of a topic, and of the group, is remembered.
            codecs: Encode bodies, by topic; see `outbox.codecs`. Consumers of these topics need them, too.
            tracing: Gives messages the trace that runs when they are sent; see `outbox.opentelemetry`.

        Raises:
            ConfigurationError: naming the argument.
        """
        self._sender = Sender(
            producer_group, selectors=selectors, topic_ttl=topic_ttl, codecs=codecs, tracing=tracing
        )

    @property
    def producer_group(self) -> str | None:
        """Who sends."""
        return self._sender.producer_group

    def send(
        self,
        conn: C,
        message: Message,
        *,
        ordered: bool = False,
        idempotency_key: str | None = None,
        selector: MessageQueueSelector | None = None,
    ) -> Receipt:
        """Write one message, in one round trip (and one more when the topic was not read lately).

        Call it after the write that serialises the order key, as an UPDATE of the business row: that keeps its order.

        Args:
            conn: A connection in, or able to begin, a transaction.
            message: What to send.
            ordered: Take a lock of (topic, order key) until the transaction ends, for callers without such a write.
            idempotency_key: 1 to 255 characters; the same key again, in this producer group, sends nothing and
                returns the first receipt. One more round trip.
            selector: Chooses the partition of this message, which then names neither `selector` nor `queue`; see
                `outbox.operations.custom_selectors.MessageQueueSelector`. The topic must be registered.

        Raises:
            NoTransactionError: the connection is in autocommit and outside a transaction.
            InvalidMessageError: the topic does not take the message, or a selector cannot place it.
            TooManyOrderedKeysError: the transaction holds locks of 1,000 other order keys by `ordered=True`.
            IdempotencyConflictError: the key stands for other content.
            GroupTypeError: the producer group is registered for half messages only.
            ConfigurationError: an option cannot work here.
        """
        return self._run(
            conn,
            send(self._sender, message, ordered=ordered, idempotency_key=idempotency_key, selector=selector),
        )

    def send_many(
        self,
        conn: C,
        messages: Iterable[Message],
        *,
        ordered: bool = False,
        selector: MessageQueueSelector | None = None,
    ) -> list[Receipt]:
        """Write many messages in the order given, up to 1,000 per round trip; all are checked before the first.

        With `ordered=True` it first takes the locks of all order keys: at most 1,000 different ones in a transaction.

        Raises:
            NoTransactionError: as for `send`.
            InvalidMessageError, TooManyOrderedKeysError: as for `send`; nothing of the list was written.
        """
        return self._run(conn, send_many(self._sender, messages, ordered=ordered, selector=selector))

    def register_topic(
        self,
        conn: C,
        name: str,
        partitions: int,
        *,
        message_type: MessageType | str | None = None,
        max_message_bytes: int | None = None,
        selector: str | None = None,
        skip_ahead: bool | None = None,
        move_keys: bool = False,
    ) -> Topic:
        """Register a topic, or change what is given of a registered one, inside the caller's transaction.

        What is not given stays as it is registered, so an application may call this at each start. Other processes
        notice a change within their `topic_ttl`.

        Args:
            conn: A connection in, or able to begin, a transaction.
            name: The topic's name.
            partitions: Kafka's partition count. It is pinned: another one later would send keys to other partitions.
            message_type: Its type; a new one is MIXED.
            max_message_bytes: The largest record, in bytes; of a new one 1,048,588, Kafka's default.
            selector: The default selector of its messages; pinned, because it decides where keys go.
            skip_ahead: Whether a message that cannot be published holds no others of its order key. Not for FIFO.
            move_keys: Let `partitions` and `selector` change all the same; drain the topic first, or keys lose order.

        Raises:
            InvalidTopicError: an argument is wrong, or the topic is pinned to another partition count or selector.
        """
        register = self._sender.registry.register_topic
        options = (message_type, max_message_bytes, selector)
        plan = register(name, partitions, *options, skip_ahead=skip_ahead, move_keys=move_keys)
        return self._run(conn, plan)

    def register_group(self, conn: C, name: str, **options: Unpack[GroupOptions]) -> ProducerGroup:
        """Register a producer group, or change what is given of a registered one, inside the caller's transaction.

        A group that is not registered is MIXED and has the defaults. A producer's rights are enough for name and
        type; how a group is asked about is for the operator to decide. Times are seconds or timedeltas.

        Args:
            conn: A connection in, or able to begin, a transaction.
            name: 1 to 255 characters.
            options: See `outbox.operations.groups.GroupOptions`.

        Raises:
            GroupTypeError: the group is registered with another type.
            InvalidGroupError: an argument is wrong.
            NoTransactionError: as for `send`.
        """
        return self._run(conn, self._sender.registry.register_group(name, options))

    def prepare(
        self,
        conn: C,
        message: Message,
        *,
        check_after: Duration | None = None,
        ordered: bool = False,
        idempotency_key: str | None = None,
        selector: MessageQueueSelector | None = None,
    ) -> HalfMessage:
        """Write a half message: durable when the caller's transaction commits, published only once it is committed.

        Write it together with the first local write, so that a message without its business row cannot be; and
        commit the transaction before the outside world is asked for anything.

        Args:
            conn: A connection in, or able to begin, a transaction.
            message: What will be sent. Its `checker`, `biz_type` and `biz_id` name who is asked, and about what,
                when no decision comes.
            check_after: Seconds (or a timedelta) until it is first asked about; the group's if None (6 s).
            ordered: Not here: a half message takes its place when it is committed, see `commit`.
            idempotency_key: As for `send`: the same key again returns the one half message, decided or not,
                and `duplicate=True`.
            selector: As for `send`.

        Raises:
            ConfigurationError: the outbox has no producer group, or an option cannot work.
            InvalidMessageError: the topic does not take half messages, or not this one.
            GroupTypeError: the producer group is registered for normal messages only.
            NoTransactionError, IdempotencyConflictError: as for `send`.
        """
        plan = prepare(
            self._sender,
            message,
            check_after=check_after,
            ordered=ordered,
            idempotency_key=idempotency_key,
            selector=selector,
        )
        return self._run(conn, plan)

    def commit(
        self, conn: C, half: AnyMessage, *, remark: str | None = None, ordered: bool = False
    ) -> Decision:
        """Decide that a half message is published, if and when the caller's transaction commits; one round trip.

        Carry it inside the last local transaction. A decider that has not ended yet is waited for. If a checker or
        an operator has rolled the message back, this raises, and the local transaction with it: let it pass.

        Args:
            conn: A connection in, or able to begin, a transaction.
            half: What `prepare` returned, or the message id.
            remark: Why, for the audit; 500 characters are kept.
            ordered: Take the lock of (topic, order key) first, for callers whose transaction has not written a row
                that serialises the key. One more round trip.

        Returns:
            The decision; the earlier one, `repeated`, if it was committed before.

        Raises:
            DecidedOtherwiseError: it was rolled back; the error names by whom, when and why.
            ExhaustedError: its checks are used up and an operator must decide.
            NotAHalfMessageError, UnknownMessageError: there is nothing to decide.
            psycopg.errors.SerializationFailure: above READ COMMITTED, somebody decided meanwhile; run it all again.
        """
        return self._run(conn, commit(half, remark, ordered=ordered))

    def rollback(self, conn: C, half: AnyMessage, *, remark: str | None = None) -> Decision:
        """Decide that a half message is never published, if and when the caller's transaction commits.

        Raises:
            DecidedOtherwiseError: it was committed before.
            ExhaustedError, NotAHalfMessageError, UnknownMessageError: as for `commit`.
        """
        return self._run(conn, rollback(half, remark))

    def join(self, conn: C, half: AnyMessage) -> None:
        """Bind a half message to the local transaction that runs now; call it first in there.

        It locks the half message until the transaction ends. A locked one is alive: no checker asks about it or
        decides it, however long the transaction takes.

        Raises:
            DecidedOtherwiseError: it is decided already, so the local transaction comes too late.
            ExhaustedError, NotAHalfMessageError, UnknownMessageError: as for `commit`.
        """
        self._run(conn, join(half))

    def cancel(self, conn: C, message_id: AnyMessage, *, remark: str | None = None) -> Decision:
        """Withdraw a delayed message before it is delivered; cancelling twice is fine.

        If the relay releases it at the same time, one of the two wins: this returns or raises accordingly.

        Raises:
            TooLateError: it has been released to the relay; the transaction stays usable.
            NotDelayedError: it has no `deliver_at`, or is an undecided half message.
            DecidedOtherwiseError: it was rolled back.
            UnknownMessageError: there is no such message.
        """
        return self._run(conn, cancel(message_id, remark))

    @abstractmethod
    def _run(self, conn: C, plan: Plan[T]) -> T:
        """Run a plan inside the caller's transaction."""


class AsyncOutboxCalls(ABC, Generic[C]):
    """`OutboxCalls` for asynchronous connections: the same calls, awaited."""

    def __init__(
        self,
        producer_group: str | None = None,
        *,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        topic_ttl: float = KNOWN_FOR,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """See `Outbox`."""
        self._sender = Sender(
            producer_group, selectors=selectors, topic_ttl=topic_ttl, codecs=codecs, tracing=tracing
        )

    @property
    def producer_group(self) -> str | None:
        """Who sends."""
        return self._sender.producer_group

    async def send(
        self,
        conn: C,
        message: Message,
        *,
        ordered: bool = False,
        idempotency_key: str | None = None,
        selector: MessageQueueSelector | None = None,
    ) -> Receipt:
        """See `Outbox.send`."""
        return await self._run_coded(
            conn,
            send(self._sender, message, ordered=ordered, idempotency_key=idempotency_key, selector=selector),
        )

    async def send_many(
        self,
        conn: C,
        messages: Iterable[Message],
        *,
        ordered: bool = False,
        selector: MessageQueueSelector | None = None,
    ) -> list[Receipt]:
        """See `Outbox.send_many`."""
        plan = send_many(self._sender, messages, ordered=ordered, selector=selector)
        return await self._run_coded(conn, plan)

    async def register_topic(
        self,
        conn: C,
        name: str,
        partitions: int,
        *,
        message_type: MessageType | str | None = None,
        max_message_bytes: int | None = None,
        selector: str | None = None,
        skip_ahead: bool | None = None,
        move_keys: bool = False,
    ) -> Topic:
        """See `Outbox.register_topic`."""
        register = self._sender.registry.register_topic
        options = (message_type, max_message_bytes, selector)
        plan = register(name, partitions, *options, skip_ahead=skip_ahead, move_keys=move_keys)
        return await self._run(conn, plan)

    async def register_group(self, conn: C, name: str, **options: Unpack[GroupOptions]) -> ProducerGroup:
        """See `Outbox.register_group`."""
        return await self._run(conn, self._sender.registry.register_group(name, options))

    async def prepare(
        self,
        conn: C,
        message: Message,
        *,
        check_after: Duration | None = None,
        ordered: bool = False,
        idempotency_key: str | None = None,
        selector: MessageQueueSelector | None = None,
    ) -> HalfMessage:
        """See `Outbox.prepare`."""
        plan = prepare(
            self._sender,
            message,
            check_after=check_after,
            ordered=ordered,
            idempotency_key=idempotency_key,
            selector=selector,
        )
        return await self._run_coded(conn, plan)

    async def commit(
        self, conn: C, half: AnyMessage, *, remark: str | None = None, ordered: bool = False
    ) -> Decision:
        """See `Outbox.commit`."""
        return await self._run(conn, commit(half, remark, ordered=ordered))

    async def rollback(self, conn: C, half: AnyMessage, *, remark: str | None = None) -> Decision:
        """See `Outbox.rollback`."""
        return await self._run(conn, rollback(half, remark))

    async def join(self, conn: C, half: AnyMessage) -> None:
        """See `Outbox.join`."""
        await self._run(conn, join(half))

    async def cancel(self, conn: C, message_id: AnyMessage, *, remark: str | None = None) -> Decision:
        """See `Outbox.cancel`."""
        return await self._run(conn, cancel(message_id, remark))

    async def _run_coded(self, conn: C, plan: Plan[T]) -> T:
        if self._sender.blocks:
            return await run_in_steps(lambda each: self._run(conn, each), plan)
        return await self._run(conn, plan)

    @abstractmethod
    async def _run(self, conn: C, plan: Plan[T]) -> T:
        """Run a plan inside the caller's transaction."""
