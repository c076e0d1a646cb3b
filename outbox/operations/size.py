"""How large a message's Kafka record will be, so that one too large is refused before it is written."""

from __future__ import annotations

from outbox import wire
from outbox.cloudevents import attributes as cloudevents
from outbox.errors import MessageTooLargeError
from outbox.message import Message

# Values of the record's own headers that are not known before the row is written: only their lengths count. A UUID,
# and milliseconds since 1970 (13 digits from 2001 to 2286).
_ANY_ID = "x" * 36
_ANY_TIME = "x" * 13
_ANY_BIRTH = "0" * 13
# A batch of one record without key, body and headers of the message's own is smaller than this, and a header
# takes no more than this next to its name and value.
_SMALL_FRAME = 300
_PER_HEADER = 10
_LONGEST_ORDER = 600
"""Bytes that the header with a message's order takes at most."""
_OWN = "own"
"""Stands for a selector of the application: its name is in no record."""


def record_size(message: Message, producer_group: str | None, chosen: int | None = None) -> int:
    """Return the bytes of the record, our own headers included: what the broker compares with the topic's limit.

    Args:
        message: as it will be written.
        producer_group: of its producer.
        chosen: the partition that a selector of the application chose.
    """
    headers: list[wire.Header] = [(wire.ID, _ANY_ID), (wire.BORN_AT, _ANY_TIME)]
    if message.deliver_at is not None:
        headers.append((wire.DELIVER_AT, str(round(message.deliver_at.timestamp() * 1000))))
    queue, selector = (message.queue, message.selector) if chosen is None else (chosen, _OWN)
    if stated := wire.order_header(message.key_bytes, message.order_key_bytes, queue, selector):
        headers.append(stated)
    if message.tags:
        headers.append((wire.TAGS, wire.TAGS_JOINED_BY.join(message.tags)))
    if message.index_keys:
        headers.append((wire.KEYS, wire.KEYS_JOINED_BY.join(message.index_keys)))
    if producer_group is not None:
        headers.append((wire.PRODUCER_GROUP, producer_group))
    for column, name in wire.TEXT_HEADERS:
        text = getattr(message, column)
        if text is not None:
            headers.append((name, text))
    if message.headers:
        headers += message.headers.items()
        added = cloudevents.added(cloudevents.missing(message.headers.items()), _ANY_ID, _ANY_BIRTH)
        headers += added
    return wire.record_bytes(message.key_bytes, message.body_bytes, headers)


def require_fitting(
    message: Message, producer_group: str | None, limit: int, chosen: int | None = None
) -> None:
    """Refuse a message whose record the topic would not take; see `record_size` for the arguments.

    Raises:
        MessageTooLargeError: with size and limit in bytes.
    """
    if _bound(message, producer_group) <= limit:
        return
    if (size := record_size(message, producer_group, chosen)) > limit:
        raise MessageTooLargeError(
            "message",
            f"its record takes {size:,} bytes with headers and framing, too many for topic {message.topic!r}",
            f"up to {limit:,} bytes (max_message_bytes of the topic in outbox.topic)",
        )


def _bound(message: Message, producer_group: str | None) -> int:
    """Return a size that the record does not exceed, at less cost: no character takes more than 4 bytes."""
    size = _SMALL_FRAME + _LONGEST_ORDER + len(message.body_bytes or b"") + len(message.key_bytes or b"")
    texts = 0 if message.deliver_at is None else 60
    if message.tags:
        texts += 20 + sum(len(tag) + 2 for tag in message.tags)
    if message.index_keys:
        texts += 20 + sum(len(key) + 1 for key in message.index_keys)
    if producer_group is not None:
        texts += 40 + len(producer_group)
    for column, _ in wire.TEXT_HEADERS:
        text = getattr(message, column)
        if text is not None:
            texts += 40 + len(text)
    for name, value in (message.headers or {}).items():
        texts += _PER_HEADER + len(name) + len(value or "")
    return size + 4 * texts
