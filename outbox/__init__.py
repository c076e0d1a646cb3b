"""A Kafka-compatible transactional outbox on PostgreSQL.

    outbox = Outbox(producer_group="orders")
    with conn.transaction():
        conn.execute("UPDATE orders SET state = 'paid' WHERE id = %s", [7])
        outbox.send(conn, Message("orders", key="o-7", body=b"paid", tags=["paid"]))

The message is published to Kafka if and only if that transaction commits. `AsyncOutbox` is the same for asyncio.
"""

from outbox.client import AsyncOutbox, Outbox
from outbox.errors import (
    ConfigurationError,
    DecidedOtherwiseError,
    ExhaustedError,
    GroupTypeError,
    IdempotencyConflictError,
    InvalidConnectionError,
    InvalidGroupError,
    InvalidMessageError,
    InvalidTopicError,
    MessageTooLargeError,
    NotAHalfMessageError,
    NotDelayedError,
    NoTransactionError,
    OutboxError,
    SelectorError,
    TooLateError,
    TooManyOrderedKeysError,
    UnknownMessageError,
    WrongMessageTypeError,
)
from outbox.message import Message
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.decide import Decision
from outbox.operations.groups import ProducerGroup
from outbox.operations.topics import MessageType, Topic
from outbox.partitioning.selectors import partition_of
from outbox.receipt import Receipt
from outbox.records import HalfMessage, MessageView
from outbox.resolution import Answer, LocalTransactionState, TransactionResolution

__all__ = [
    "Answer",
    "AsyncOutbox",
    "ConfigurationError",
    "DecidedOtherwiseError",
    "Decision",
    "ExhaustedError",
    "GroupTypeError",
    "HalfMessage",
    "IdempotencyConflictError",
    "InvalidConnectionError",
    "InvalidGroupError",
    "InvalidMessageError",
    "InvalidTopicError",
    "LocalTransactionState",
    "Message",
    "MessageQueueSelector",
    "MessageTooLargeError",
    "MessageType",
    "MessageView",
    "NoTransactionError",
    "NotAHalfMessageError",
    "NotDelayedError",
    "Outbox",
    "OutboxError",
    "ProducerGroup",
    "Receipt",
    "SelectorError",
    "TooLateError",
    "TooManyOrderedKeysError",
    "Topic",
    "TransactionResolution",
    "UnknownMessageError",
    "WrongMessageTypeError",
    "partition_of",
]
