"""What `send` answers: where the message stands in the outbox."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID


class Receipt(NamedTuple):
    """Identity of a sent message, valid once the caller's transaction commits.

    It is no acknowledgement from Kafka: partition and offset are known when the relay has published the message,
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
