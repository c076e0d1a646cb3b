"""The Kafka record of a message: the names of its headers, and its size in bytes.

The library checks the size before it writes a row, and the relay checks it again before it publishes one. Both use this
module, so that what the library admits is never refused by the relay.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from uuid import UUID

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of `message.max.bytes`: what an unregistered topic is taken to allow."""

RESERVED_PREFIX = "outbox-"
"""Header names that begin with this (in any case) belong to the outbox."""
ID = "outbox-id"
BORN_AT = "outbox-born-at"
DELIVER_AT = "outbox-deliver-at"
"""When a delayed message was due, as milliseconds since 1970; other messages have no such header."""
ORDER_KEY = "outbox-order-key"
"""What orders a message whose order key is not the record's key; see `order_header`."""
QUEUE = "outbox-queue"
"""The partition of a message that was sent to it by number: the messages of that partition are its order."""
TAGS = "outbox-tags"
KEYS = "outbox-keys"
PRODUCER_GROUP = "outbox-producer-group"
TRANSACTION_ID = "outbox-transaction-id"
TRACEPARENT = "traceparent"

CE_PREFIX = "ce_"
"""Headers of this prefix are the attributes of a CloudEvent; see outbox/cloudevents/attributes.py."""
CE_SPECVERSION, CE_ID, CE_TIME = "ce_specversion", "ce_id", "ce_time"
CE_CONTENT_TYPE = "content-type"

TEXT_HEADERS = (("transaction_id", TRANSACTION_ID), ("traceparent", TRACEPARENT))
"""Columns of a message, of type text, that travel in a header as they are: the name of the column, which is that of
the field of `Message`, and that of the header. The statements that write rows take the columns from here."""

TAGS_JOINED_BY = "||"
KEYS_JOINED_BY = " "

LONGEST_KEY = 255
"""Bytes of a key that is its own order key; a longer one is represented by its hash."""
_HEX = b"hex:"

BATCH_HEADER_BYTES = 61
"""The header of a record batch, format version 2: https://kafka.apache.org/documentation/#recordbatch"""
# Attributes, timestamp delta and offset delta of the first record of a batch: one byte each.
_FIXED = 3

Header = tuple[str, str | bytes | None]


def row_id_of(message_id: UUID) -> int | None:
    """Return the row's id, which ids of the outbox carry (docs/adr/0003); None: an application chose the id."""
    return int.from_bytes(message_id.bytes[:6], "big") if message_id.bytes[6] >> 4 == 8 else None


def is_reserved(name: str) -> bool:
    """Return whether a header of this name may only be written by the outbox itself."""
    lower = name.lower()
    return lower == TRACEPARENT or lower.startswith(RESERVED_PREFIX)


def short_key(key: bytes) -> bytes:
    """Return what stands for an order key in tables and headers: itself, or its hash if it is long."""
    return key if len(key) <= LONGEST_KEY else b"sha256:" + sha256(key).digest()


def order_header(
    key: bytes | None, order_key: bytes | None, queue: int | None, selector: str | None
) -> tuple[str, str] | None:
    """Return the header that states the order of a message; None: it is the order of the record's key.

    Args:
        key: the record's key.
        order_key: that of the message; None: the record's.
        queue: the partition, if the message names it, or its producer's own selector chose it.
        selector: the name of that selector; with one the order is that of its argument, if it had any.
    """
    if queue is not None and (selector is None or (order_key is None and key is None)):
        return QUEUE, str(queue)
    if order_key is None or order_key == key:
        return None
    return ORDER_KEY, _text_of(short_key(order_key))


def order_of(headers: Iterable[tuple[str, bytes | None]], key: bytes | None, partition: int) -> bytes | None:
    """Return what a record is ordered by, as `order_header` states it; None: it has no order."""
    stated = None
    for name, value in headers:
        if value is None:
            continue
        if name == QUEUE:
            return b"queue:%d" % partition
        if name == ORDER_KEY and stated is None:
            stated = _bytes_of(value)
    stated = key if stated is None else stated
    return None if stated is None else short_key(stated)


def _text_of(key: bytes) -> str:
    """Return a key as text, because many clients read every header as UTF-8: itself, or in hexadecimal digits."""
    if not key.startswith(_HEX) and b"\0" not in key:
        try:
            return key.decode()
        except UnicodeDecodeError:
            pass
    return _HEX.decode() + key.hex()


def _bytes_of(text: bytes) -> bytes:
    if text.startswith(_HEX):
        try:
            return bytes.fromhex(text[len(_HEX) :].decode())
        except ValueError:  # of another program
            pass
    return text


def record_bytes(key: bytes | None, body: bytes | None, headers: Iterable[Header]) -> int:
    """Return what the broker compares with a topic's max.message.bytes: a batch of this one record, not compressed.

    Args:
        key: the record's key; None is Kafka's null.
        body: the record's value; None is Kafka's null.
        headers: all headers of the record, those of the outbox included.
    """
    size = _FIXED + _field(-1 if key is None else len(key)) + _field(-1 if body is None else len(body))
    count = 0
    for name, value in headers:
        count += 1
        size += _field(_length(name)) + _field(-1 if value is None else _length(value))
    size += _varint(count)
    return BATCH_HEADER_BYTES + _varint(size) + size


def _length(value: str | bytes) -> int:
    return len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode())


def _field(length: int) -> int:
    """Bytes of a field and of the length in front of it; -1 is null."""
    return _varint(length) + max(length, 0)


def _varint(number: int) -> int:
    """Bytes of a zigzag variable-length integer: seven bits each, the first of them for the sign."""
    number = number * 2 if number >= 0 else -number * 2 - 1
    return (number.bit_length() + 6) // 7 or 1
