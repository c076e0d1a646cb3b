"""Messages as the application sees them: what `send` and `prepare` return, and what listeners and checkers receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class Receipt(NamedTuple):
    """Identity of a sent message, valid once the caller's transaction commits.

    It does not acknowledge that Kafka has the message: partition and offset are known when the relay has published it,
    and are then found in `outbox.message_status`.
    """

    id: int
    """The row's id: its place among all inserts."""
    message_id: UUID
    """One id for life; consumers read it from the record header `outbox-id`."""
    topic: str
    queue: int | None
    """The partition, where the message names one or a custom selector chose it; else the relay computes it."""
    duplicate: bool = False
    """Whether an earlier send with the same idempotency key is what this receipt stands for."""


class HalfMessage(NamedTuple):
    """A half message that was written: durable once its transaction commits, published only once decided COMMIT."""

    id: int
    """The row's place in `outbox.message`; issued again after a fail-over, so not an identity."""
    message_id: UUID
    """The message's one id for life, before and after checks; consumers find it in the header `outbox-id`."""
    topic: str
    queue: int | None = None
    """The partition when it is known already (explicit or chosen by a custom selector)."""
    transaction_id: str | None = None
    """The application's name for the transaction (RocketMQ's `transactionId`)."""
    duplicate: bool = False
    """Whether an idempotency key found this half message written before."""


@dataclass(frozen=True, slots=True)
class MessageView:
    """A half message read back from the table, as a listener or a checker gets it (RocketMQ 5.x: MessageView)."""

    id: int
    message_id: UUID
    topic: str
    producer_group: str
    born_at: datetime
    key: bytes | None = None
    body: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str | None] = field(default_factory=dict, repr=False, hash=False)
    order_key: bytes | None = None
    tags: tuple[str, ...] = ()
    index_keys: tuple[str, ...] = ()
    transaction_id: str | None = None
    checker: str | None = None
    biz_type: str | None = None
    biz_id: str | None = None
    deliver_at: datetime | None = None
    traceparent: str | None = None
    checks: int = 0
    """How often it has been asked about before."""
