"""What a send of RocketMQ's programming models returns, in RocketMQ's words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from outbox.checking.answers import LocalTransactionState


class SendStatus(StrEnum):
    """How the half message was stored; RocketMQ's four values with their meaning for PostgreSQL.

    For everything but SEND_OK the local transaction is not run, and the half message is rolled back.
    """

    SEND_OK = "SEND_OK"
    """It is committed, as durable as `synchronous_commit` makes it."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """The connection was lost during COMMIT: it may be stored or not."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """The wait for the synchronous standby was cancelled: it is stored here, perhaps not there."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Never answered: PostgreSQL waits for a standby that is away."""


class MessageQueue(NamedTuple):
    """Where the message is to go: the topic, and the partition if it is known before publishing."""

    topic: str
    queue_id: int | None
    """The planned partition: explicit, chosen by a custom selector, or computed from the order key over the
    registered topic's pinned count. None: the relay chooses."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """What `DefaultMQProducer.send` returns; it holds once the transaction has committed."""

    send_status: SendStatus
    """SEND_OK: an insert that failed raised."""
    message_queue: MessageQueue
    msg_id: UUID
    """The message's one id for life; consumers find it in the header `outbox-id`."""
    duplicate: bool = False
    """Whether an earlier send with the same idempotency key stands, and nothing was sent."""
    row_id: int | None = None
    """The row's id in `outbox.message`, by which `outbox message show` finds it."""
    queue_offset: int | None = None
    """Always None: Kafka gives the offset when the relay publishes, see `outbox.message_status`."""


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What `send_message_in_transaction` returns: how the half message was stored, and what became of it."""

    send_status: SendStatus
    message_queue: MessageQueue
    msg_id: UUID
    """The message's one id for life; consumers find it in the header `outbox-id`."""
    transaction_id: str
    """The message's, or one made for it; the listener and the check see the same."""
    local_transaction_state: LocalTransactionState
    """COMMIT: the message is committed, and with it the business rows written on `msg.connection`. ROLLBACK: it is
    withdrawn, or was never stored. UNKNOWN: it will be asked about."""
    remark: str | None = None
    """Why it is not COMMIT, or what went wrong on the way; also in the row."""
    duplicate: bool = False
    """Whether an earlier send with the same idempotency key stands; the local transaction was not run again."""
    row_id: int | None = None
    """The row's id in `outbox.message`, by which `outbox tx show` and `outbox tx explain` find it."""
    queue_offset: int | None = None
    """Always None: Kafka gives the offset when the relay publishes, see `outbox.message_status`."""
