"""What an application implements: RocketMQ's TransactionListener (4.x) and TransactionChecker (5.x)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from outbox.message import Message
from outbox.records import HalfMessage, MessageView


@dataclass(frozen=True, slots=True)
class LocalMessage(MessageView):
    """The half message as `execute_local_transaction` gets it: with the connection that its decision commits.

    `born_at` is this machine's time here; checks get the database's.
    """

    connection: Any = field(default=None, repr=False, compare=False)
    """The open transaction of the local transaction, on the outbox's database: what is written on it is committed
    together with the message, or not at all. Do not commit it, roll it back or close it; `with
    msg.connection.transaction():` makes a savepoint. Of no use when the business rows are in another database: then
    use a connection of your own; this one meanwhile holds the message's row lock, so that no checker asks about it."""


@runtime_checkable
class TransactionListener(Protocol):
    """RocketMQ 4.x: runs the local transaction of a message, and is asked about it later.

    Both return COMMIT, ROLLBACK or UNKNOWN (`LocalTransactionState`); True is COMMIT and False ROLLBACK. None, an
    exception and everything else are UNKNOWN: then the message is asked about later. For the asynchronous producer
    both may be `async def`.
    """

    def execute_local_transaction(self, msg: LocalMessage, arg: Any) -> Any:
        """Run the local transaction; `arg` is what was given to the send, in memory only: a check has none."""
        ...

    def check_local_transaction(self, msg: MessageView) -> Any:
        """Return how the local transaction ended, perhaps in another process and days ago.

        It may still be running, if it writes to another database: return UNKNOWN while nothing is to be found.
        """
        ...


@runtime_checkable
class TransactionChecker(Protocol):
    """RocketMQ 5.x: is asked about half messages; see `TransactionListener.check_local_transaction`."""

    def check(self, message_view: MessageView) -> Any:
        """Return how the message's transaction ended: COMMIT, ROLLBACK or UNKNOWN (`TransactionResolution`)."""
        ...


def local_message(message: Message, half: HalfMessage, producer_group: str, conn: Any) -> LocalMessage:
    """A message that was just stored, made without reading it back."""
    given = message.headers or {}
    return LocalMessage(
        id=half.id,
        message_id=half.message_id,
        topic=message.topic,
        producer_group=producer_group,
        born_at=datetime.now(UTC),
        key=message.key_bytes,
        body=message.body_bytes,
        headers={
            name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()
        },
        order_key=message.order_key_bytes,
        tags=tuple(message.tags),
        index_keys=tuple(message.index_keys),
        transaction_id=half.transaction_id,
        checker=message.checker,
        biz_type=message.biz_type,
        biz_id=message.biz_id,
        deliver_at=message.deliver_at,
        traceparent=message.traceparent,
        connection=conn,
    )
