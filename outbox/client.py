"""`Outbox` and `AsyncOutbox`: what applications call, thin skins of one core over psycopg's two connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from outbox.drivers import psycopg_async, psycopg_sync
from outbox.durations import Span
from outbox.half_verbs import AsyncHalfVerbs, HalfVerbs
from outbox.message import Message
from outbox.operations.groups import ProducerGroup
from outbox.operations.topics import MessageType, Topic
from outbox.receipt import Receipt


class Outbox(HalfVerbs):
    """Sends on the caller's `psycopg.Connection`, inside the caller's transaction; see `Halves` for its options.

    It never commits and never wraps or swallows an error of the driver. It keeps nothing of a connection, so
    threads may share one outbox as long as each has its own connection.
    """

    def send(
        self,
        conn: psycopg.Connection[Any],
        message: Message,
        *,
        ordered: bool = False,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Write one message, in one round trip (and one more when the topic has not been looked up lately).

        Call it after the write that serialises the order key, as an UPDATE of the business row: then messages of
        one key keep their order.

        Args:
            conn: A connection in, or able to begin, a transaction.
            message: What to send.
            ordered: Take a lock of (topic, order key) until the transaction ends, for callers without such a write.
            idempotency_key: 1 to 255 characters; the same key again, in this producer group, sends nothing and
                answers with the first receipt. One more round trip.

        Raises:
            NoTransactionError: the connection is in autocommit and outside a transaction.
            InvalidMessageError: the topic does not take the message, or a selector cannot place it.
            TooManyOrderedKeysError: the transaction holds locks of 1,000 other order keys by `ordered=True`.
            IdempotencyConflictError: the key stands for other content.
            GroupTypeError: the producer group is registered for half messages only.
            ConfigurationError: an option cannot work here.
        """
        return psycopg_sync.run(conn, self._send(message, ordered=ordered, idempotency_key=idempotency_key))

    def send_many(
        self, conn: psycopg.Connection[Any], messages: Iterable[Message], *, ordered: bool = False
    ) -> list[Receipt]:
        """Write many messages in the order given, up to 1,000 per round trip; all are checked before the first.

        With `ordered=True` it first takes the locks of all order keys: at most 1,000 different ones in a transaction.

        Raises:
            NoTransactionError: as for `send`.
            InvalidMessageError: as for `send`; nothing of the list was written.
            TooManyOrderedKeysError: as for `send`; nothing of the list was written.
        """
        return psycopg_sync.run(conn, self._send_many(messages, ordered=ordered))

    def register_topic(
        self,
        conn: psycopg.Connection[Any],
        name: str,
        partitions: int,
        *,
        message_type: MessageType | str | None = None,
        max_message_bytes: int | None = None,
        selector: str | None = None,
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
            move_keys: Let `partitions` and `selector` change all the same. Drain the topic first: a key's later
                messages can be read before its earlier ones.

        Raises:
            InvalidTopicError: an argument is wrong, or the topic is pinned to another partition count or selector.
        """
        return psycopg_sync.run(
            conn,
            self._register_topic(
                name, partitions, message_type, max_message_bytes, selector, move_keys=move_keys
            ),
        )

    def register_group(
        self,
        conn: psycopg.Connection[Any],
        name: str,
        *,
        message_type: MessageType | str | None = None,
        check_after: Span | None = None,
        check_interval: Span | None = None,
        max_check_interval: Span | None = None,
        check_timeout: Span | None = None,
        max_age: Span | None = None,
        max_checks: int | None = None,
        policy: str | None = None,
        workers: int | None = None,
    ) -> ProducerGroup:
        """Register a producer group, or change what is given of a registered one, inside the caller's transaction.

        A group that is not registered is MIXED and has the defaults. A producer's rights are enough for name and
        type; how a group is asked about is the operator's to say. Times are seconds or timedeltas.

        Args:
            conn: A connection in, or able to begin, a transaction.
            name: 1 to 255 characters.
            message_type: NORMAL (no half messages), TRANSACTION (nothing else) or MIXED; fixed once registered.
            check_after: Until a half message is first asked about (6 s).
            check_interval: Until it is asked again (30 s), doubled each time.
            max_check_interval: What the interval grows to (10 min).
            check_timeout: How long an answer is waited for (3 s).
            max_age: After which a half message is not asked about any more (72 h).
            max_checks: How often it is asked about (15).
            policy: What happens then: ROLLBACK (the default), or EXHAUSTED, which leaves it to an operator.
            workers: How many are asked about at the same time (4; 1 to 64).

        Raises:
            GroupTypeError: the group is registered with another type.
            InvalidGroupError: an argument is wrong.
            NoTransactionError: as for `send`.
        """
        plan = self._register_group(
            name,
            message_type,
            check_after=check_after,
            check_interval=check_interval,
            max_check_interval=max_check_interval,
            check_timeout=check_timeout,
            max_age=max_age,
            max_checks=max_checks,
            policy=policy,
            workers=workers,
        )
        return psycopg_sync.run(conn, plan)


class AsyncOutbox(AsyncHalfVerbs):
    """`Outbox` for a `psycopg.AsyncConnection`: the same calls, awaited."""

    async def send(
        self,
        conn: psycopg.AsyncConnection[Any],
        message: Message,
        *,
        ordered: bool = False,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """See `Outbox.send`."""
        return await psycopg_async.run(
            conn, self._send(message, ordered=ordered, idempotency_key=idempotency_key)
        )

    async def send_many(
        self, conn: psycopg.AsyncConnection[Any], messages: Iterable[Message], *, ordered: bool = False
    ) -> list[Receipt]:
        """See `Outbox.send_many`."""
        return await psycopg_async.run(conn, self._send_many(messages, ordered=ordered))

    async def register_topic(
        self,
        conn: psycopg.AsyncConnection[Any],
        name: str,
        partitions: int,
        *,
        message_type: MessageType | str | None = None,
        max_message_bytes: int | None = None,
        selector: str | None = None,
        move_keys: bool = False,
    ) -> Topic:
        """See `Outbox.register_topic`."""
        return await psycopg_async.run(
            conn,
            self._register_topic(
                name, partitions, message_type, max_message_bytes, selector, move_keys=move_keys
            ),
        )

    async def register_group(
        self,
        conn: psycopg.AsyncConnection[Any],
        name: str,
        *,
        message_type: MessageType | str | None = None,
        check_after: Span | None = None,
        check_interval: Span | None = None,
        max_check_interval: Span | None = None,
        check_timeout: Span | None = None,
        max_age: Span | None = None,
        max_checks: int | None = None,
        policy: str | None = None,
        workers: int | None = None,
    ) -> ProducerGroup:
        """See `Outbox.register_group`."""
        plan = self._register_group(
            name,
            message_type,
            check_after=check_after,
            check_interval=check_interval,
            max_check_interval=max_check_interval,
            check_timeout=check_timeout,
            max_age=max_age,
            max_checks=max_checks,
            policy=policy,
            workers=workers,
        )
        return await psycopg_async.run(conn, plan)
