"""What a row must be to become a Kafka record of its topic: headers, partition and size, each refused by name.

The table checks most of it when a row is written, except for rows that state their own lane. The relay trusts no
row: whatever goes wrong while one record is built or handed over concerns that message only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from json.scanner import make_scanner
from typing import Any

from confluent_kafka import KafkaException

from outbox import wire
from outbox.errors import SelectorError
from outbox.partitioning.selectors import partition_of
from outbox_relay.publisher.errors import Unpublishable

LONGEST_TOPIC = 249
"""Characters of the name of a topic that can be parked; Kafka has none that is longer."""
LONGEST_KEY = 1_000
"""Bytes of an order key that is kept as it is; see `kept`."""
FIRST_BYTES = LONGEST_KEY + 1 - hashlib.sha256().digest_size
"""Those that are kept of a longer key, in front of its hash."""
ROW_BYTES = 64 << 20
"""A larger row comes without its fields: one PostgreSQL message holds a gigabyte, and no topic takes as much."""
UNNAMED = "…"
"""The end of the topic under which a message is held that has none which Kafka could have."""

Headers = list[tuple[str, str | bytes | None]]

_decoder: Any = json.JSONDecoder(object_pairs_hook=list)
_scan = make_scanner(_decoder)
"""What json.loads() is made of, without its search for white space: PostgreSQL's text of a jsonb has none around it."""
_LONGEST_TEXT = 200

_allowed: set[str] = set()
"""Header names that are not reserved. Most messages have the same few; is_reserved() costs more than decoding one."""
ALLOWED_KEPT = 1_000


ROOM = 16_384
"""Bytes below a topic's limit within which a message's full size is computed before it is produced."""


@dataclass(slots=True)
class Topic:
    """One topic: what is pinned, and what Kafka listed when it was read."""

    name: str
    partitions: int
    selector: str | None
    max_message_bytes: int
    """The smaller of what is registered and what Kafka takes, so that no batch of several is refused."""
    skip_ahead: bool = False
    """Whether a message that cannot be published parks alone."""
    needs_key: bool = False
    """Whether it is compacted, so that Kafka refuses a record without a key."""
    leaderless: frozenset[int] = frozenset()
    """The partitions that had no leader when it was read."""
    short: frozenset[int] = frozenset()
    """The partitions that had fewer in-sync replicas than min.insync.replicas then, where that may be read."""
    small: int = 0
    """A body up to this many bytes certainly fits."""

    def __post_init__(self) -> None:
        self.small = max(self.max_message_bytes - ROOM, 0)


def kept(order_key: bytes | None) -> bytes | None:
    """Return what stands for an order key in memory: of a long one its first bytes and its SHA-256.

    All that are parked are in memory, and a key may have 64 MiB. What stands for a long key has one byte more than any
    that is kept as it is, so that the two cannot be equal. The statement `holds` returns the same.
    """
    if order_key is None or len(order_key) <= LONGEST_KEY:
        return order_key
    return order_key[:FIRST_BYTES] + hashlib.sha256(order_key).digest()


def decode_headers(text: str) -> Headers:
    """Decode a row's headers; a value that is not a text fails when the record is handed over.

    Raises:
        Unpublishable: a name is reserved for the outbox, or the headers are not an object.
    """
    if text[0] != "{":
        raise Unpublishable("MALFORMED", "the headers are not a JSON object; expected names with text values")
    pairs: Headers = _scan(text, 0)[0]
    for name, _ in pairs:
        if name not in _allowed:
            _allow(name)
    return pairs


def _allow(name: str) -> None:
    if wire.is_reserved(name):
        raise Unpublishable(
            "MALFORMED",
            f"header {name[:_LONGEST_TEXT]!r} is reserved for the outbox: names do not begin with "
            f"{wire.RESERVED_PREFIX!r}, and {wire.TRACEPARENT!r} has a column of its own",
        )
    # A producer that makes names up, or long ones, must not fill the relay's memory.
    if len(name) <= _LONGEST_TEXT:
        if len(_allowed) >= ALLOWED_KEPT:
            _allowed.clear()
        _allowed.add(name)


def select(topic: Topic, queue: int | None, selector: str | None, arg: bytes | None, position: int) -> int:
    """Choose the partition when it is not the cached hash of the order key.

    Raises:
        Unpublishable: the selector does not take this order key, or the queue does not exist.
    """
    if queue is None:
        try:
            return partition_of(selector or topic.selector, arg, topic.partitions, position)
        except SelectorError as error:
            raise Unpublishable("SELECTOR_FAILED", str(error)) from error
    # librdkafka takes -1 for "any partition".
    if not 0 <= queue < topic.partitions:
        raise Unpublishable(
            "QUEUE_OUT_OF_RANGE",
            f"queue {queue} does not exist in topic {topic.name!r}: it has 0 to {topic.partitions - 1}",
        )
    return queue


def check_size(topic: Topic, key: bytes | None, body: bytes | None, headers: Headers) -> None:
    """Refuse a record that the topic does not take, by the formula that the library uses.

    Raises:
        Unpublishable: with size and limit in bytes.
    """
    size = wire.record_bytes(key, body, headers)
    if size > topic.max_message_bytes:
        raise Unpublishable(
            "MESSAGE_TOO_LARGE",
            f"{size} bytes with headers; topic {topic.name!r} takes {topic.max_message_bytes}",
        )


def reason_of(error: Exception) -> Unpublishable:
    """Return why one record could not be built or handed over. The text never holds a body."""
    if isinstance(error, Unpublishable):
        return error
    if isinstance(error, KafkaException):
        return Unpublishable(error.args[0].name(), error.args[0].str())
    text = str(error)[:_LONGEST_TEXT]
    return Unpublishable(
        "MALFORMED", f"the message is not a valid Kafka record: {type(error).__name__}: {text}"
    )


def too_large(size: int) -> Unpublishable:
    """Return why a row is refused that was not brought for its size."""
    return Unpublishable("MESSAGE_TOO_LARGE", f"{size} bytes; no topic takes more than {ROW_BYTES}")


def keyless(topic: Topic) -> Unpublishable:
    """Return why a compacted topic does not take a message without a key."""
    text = f"topic {topic.name!r} is compacted (cleanup.policy) and takes no message without a key; send it with one"
    return Unpublishable("INVALID_RECORD", text)
