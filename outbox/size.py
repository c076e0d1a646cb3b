"""How large a message's Kafka record will be, so that one too large is refused before it is written."""

from __future__ import annotations

from outbox.errors import MessageTooLargeError
from outbox.message import Message

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of `message.max.bytes`: what an unregistered topic is taken to allow."""

# Record batch header (61 bytes), and the longest a record's own fields can be (Kafka's message format, version 2).
_FRAME = 61 + 36
# Two lengths beside each header's name and value.
_PER_HEADER = 10
# outbox-id (uuid) and outbox-born-at (microseconds and zone), names included.
_OURS = len("outbox-id") + 36 + len("outbox-born-at") + 32 + 2 * _PER_HEADER


def record_size(message: Message, producer_group: str | None) -> int:
    """Bytes of the record, our own headers included; never less than the broker will count."""
    size = _FRAME + _OURS + len(message.body_bytes or b"") + len(message.key_bytes or b"")
    for name, value in (message.headers or {}).items():
        size += _header(name, value)
    if message.tags:
        size += _header("outbox-tags", "||".join(message.tags))
    if message.index_keys:
        size += _header("outbox-keys", " ".join(message.index_keys))
    if producer_group:
        size += _header("outbox-producer-group", producer_group)
    if message.transaction_id:
        size += _header("outbox-transaction-id", message.transaction_id)
    if message.traceparent:
        size += _header("traceparent", message.traceparent)
    return size


def require_fitting(message: Message, producer_group: str | None, limit: int) -> None:
    """Refuse a message whose record the topic would not take.

    Raises:
        MessageTooLargeError: with size and limit in bytes.
    """
    if (size := record_size(message, producer_group)) > limit:
        raise MessageTooLargeError(
            "message",
            f"its record takes {size:,} bytes with headers and framing, too many for topic {message.topic!r}",
            f"up to {limit:,} bytes (max_message_bytes of the topic in outbox.topic)",
        )


def _header(name: str, value: str | bytes | None) -> int:
    if isinstance(value, str):
        value = value if value.isascii() else value.encode()
    return _PER_HEADER + (len(name) if name.isascii() else len(name.encode())) + len(value or "")
