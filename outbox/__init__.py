"""A Kafka-compatible transactional outbox on PostgreSQL.

    outbox = Outbox(producer_group="orders")
    with conn.transaction():
        conn.execute("UPDATE orders SET state = 'paid' WHERE id = %s", [7])
        outbox.send(conn, Message("orders", key="o-7", body=b"paid", tags=["paid"]))

The message is published to Kafka if and only if that transaction commits. `AsyncOutbox` is the same for asyncio.

Errors are in `outbox.errors`, check-back in `outbox.checking`, callbacks over HTTP in `outbox.callbacks`, RocketMQ's
programming models in `outbox.rocketmq`, and the partition of a message in `outbox.partitioning`.
"""

from outbox.client import AsyncOutbox, Outbox
from outbox.message import Message
from outbox.operations.custom_selectors import MessageQueueSelector
from outbox.operations.decide import Decision
from outbox.operations.groups import ProducerGroup
from outbox.operations.topics import MessageType, Topic
from outbox.records import HalfMessage, Receipt

__all__ = [
    "AsyncOutbox",
    "Decision",
    "HalfMessage",
    "Message",
    "MessageQueueSelector",
    "MessageType",
    "Outbox",
    "ProducerGroup",
    "Receipt",
    "Topic",
]
