"""RocketMQ's two programming models of transactional messages, for threads and for asyncio.

4.x: `TransactionMQProducer` runs the local transaction of each message in a `TransactionListener`, and asks the same
listener when it has to be asked about later. 5.x: `Producer` hands out transactions, which the application commits
around its own local transaction; a `TransactionChecker` decides later.

Under both lie `Outbox.prepare`, `join`, `commit` and `rollback`, which mix freely with them.
"""

from outbox.checking.answers import LocalTransactionState, TransactionResolution
from outbox.rocketmq.default_producer import DefaultMQProducer
from outbox.rocketmq.errors import AmbiguousHalfMessageError, NoConnectionError, ProducerStateError
from outbox.rocketmq.listener import LocalMessage, TransactionChecker, TransactionListener
from outbox.rocketmq.mq_producer import AsyncTransactionMQProducer, TransactionMQProducer
from outbox.rocketmq.producer import (
    AsyncBusinessTransaction,
    AsyncProducer,
    AsyncTransaction,
    BusinessTransaction,
    Producer,
    Transaction,
)
from outbox.rocketmq.results import MessageQueue, SendResult, SendStatus, TransactionSendResult

__all__ = [
    "AmbiguousHalfMessageError",
    "AsyncBusinessTransaction",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransactionMQProducer",
    "BusinessTransaction",
    "DefaultMQProducer",
    "LocalMessage",
    "LocalTransactionState",
    "MessageQueue",
    "NoConnectionError",
    "Producer",
    "ProducerStateError",
    "SendResult",
    "SendStatus",
    "Transaction",
    "TransactionChecker",
    "TransactionListener",
    "TransactionMQProducer",
    "TransactionResolution",
    "TransactionSendResult",
]
