"""A Kafka-compatible transactional outbox on PostgreSQL.

    outbox = Outbox(producer_group="orders")
    with conn.transaction():
        conn.execute("UPDATE orders SET state = 'paid' WHERE id = %s", [7])
        outbox.send(conn, Message("orders", key="o-7", body=b"paid", tags=["paid"]))

The message is published to Kafka if and only if that transaction commits. `AsyncOutbox` is the same for asyncio.
"""

from outbox.errors import (
    ConfigurationError,
    IdempotencyConflictError,
    InvalidConnectionError,
    InvalidMessageError,
    InvalidTopicError,
    MessageTooLargeError,
    NoTransactionError,
    OutboxError,
    SelectorError,
    WrongMessageTypeError,
)
from outbox.message import Message
from outbox.outbox import AsyncOutbox, Outbox
from outbox.receipt import Receipt
from outbox.selectors import MessageQueueSelector, partition_of
from outbox.topics import MessageType, Topic

__all__ = [
    "AsyncOutbox",
    "ConfigurationError",
    "IdempotencyConflictError",
    "InvalidConnectionError",
    "InvalidMessageError",
    "InvalidTopicError",
    "Message",
    "MessageQueueSelector",
    "MessageTooLargeError",
    "MessageType",
    "NoTransactionError",
    "Outbox",
    "OutboxError",
    "Receipt",
    "SelectorError",
    "Topic",
    "WrongMessageTypeError",
    "partition_of",
]
