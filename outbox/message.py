"""The message that an application sends: a value, checked when it is made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from outbox import validation
from outbox.errors import InvalidMessageError
from outbox.partitioning.selectors import HASHES, Arg, require_arg

LARGEST_QUEUE = 2**31 - 1
EARLIEST, LATEST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""The first and the last time that `deliver_at` and `deliver_before` may have, as the table's trigger has them."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
# Sorted, so that equal headers are equal text; jsonb does not keep their order.
_encode_headers = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Message:
    """One Kafka record to be, with RocketMQ's attributes.

    Text given for key, body or order key is sent as UTF-8. What can be checked without the topic is checked here,
    so that the traceback points at the line that made the message; the rest is checked by `send`.

    Raises:
        InvalidMessageError: naming the argument, what is wrong with it and what is allowed.
    """

    topic: str
    """Kafka topic; RocketMQ's destinations `"topic:tag"` and `"topic:tagA||tagB"` set the tags as well."""
    key: bytes | str | None = None
    """The record's key, and the order key unless one is given."""
    body: bytes | str | None = field(default=b"", repr=False)
    """The record's value; None is a tombstone."""
    _: KW_ONLY
    headers: Mapping[str, str | bytes | None] | None = field(default=None, repr=False, hash=False)
    """Record headers: text or UTF-8 bytes, one value per name; `outbox-…` and `traceparent` are reserved."""
    order_key: Arg = None
    """The selector's arg: messages of one topic and order key keep their order. An int suits `modulo`."""
    selector: str | None = None
    """Message queue selector by name: murmur2 (default), modulo, random, round_robin, java_hash, crc32, or one of the
    Outbox's."""
    queue: int | None = None
    """Explicit partition instead of a selector."""
    tags: Iterable[str] = ()
    """RocketMQ's TAGS, which consumers filter by: a sequence, or text like "a||b"."""
    index_keys: Iterable[str] = ()
    """RocketMQ's KEYS, by which operators find messages: without white space."""
    deliver_at: datetime | None = None
    """Not published before this time, which must carry its time zone."""
    deliver_before: datetime | None = None
    """Not published at or after this time, which must carry its time zone: then it is listed as DEAD (expired)."""
    transaction_id: str | None = None
    checker: str | None = None
    biz_type: str | None = None
    biz_id: str | None = None
    message_id: UUID | None = None
    """The application's own id (any version but 8, which the outbox makes); None: the outbox makes one."""
    traceparent: str | None = None
    """W3C trace context of the producer; becomes the record header of that name."""

    key_bytes: bytes | None = field(init=False, repr=False, compare=False)
    body_bytes: bytes | None = field(init=False, repr=False, compare=False)
    order_key_bytes: bytes | None = field(init=False, repr=False, compare=False)
    headers_json: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.__class__ is not Message:  # a subclass's fields would silently not be sent
            raise TypeError("Message cannot be subclassed: pack what is yours into body or headers")
        put = object.__setattr__
        topic, tags = _destination(self.topic, self.tags)
        put(self, "topic", validation.topic_name(topic))
        put(self, "tags", tags)
        put(self, "key_bytes", validation.content("key", self.key))
        put(self, "body_bytes", validation.content("body", self.body))
        put(self, "order_key_bytes", _order_key(self.order_key))
        given = None if self.headers is None else validation.record_headers(self.headers)
        put(self, "headers", given)
        put(self, "headers_json", None if given is None else _encode_headers(given))
        if type(self.key) is not str and isinstance(self.key, str):
            put(self, "key", validation.exact(self.key))
        if type(self.body) is not str and isinstance(self.body, str):
            put(self, "body", validation.exact(self.body))
        if type(self.order_key) is not str and isinstance(self.order_key, str):
            put(self, "order_key", validation.exact(self.order_key))
        if self.index_keys != ():
            put(self, "index_keys", _index_keys(self.index_keys))
        if self.selector is not None:
            put(self, "selector", validation.text("selector", self.selector))
            _check_arg(self.selector, self.arg_bytes)
        if self.queue is not None:
            _check_queue(self.queue, self.selector)
        if self.deliver_at is not None:
            put(self, "deliver_at", _check_time("deliver_at", self.deliver_at))
        if self.deliver_before is not None:
            put(self, "deliver_before", _check_time("deliver_before", self.deliver_before))
            _check_order(self.deliver_at, self.deliver_before)
        if self.message_id is not None:
            _check_message_id(self.message_id)
        if self.traceparent is not None:
            put(self, "traceparent", _traceparent(self.traceparent))
        if self.transaction_id is not None:
            put(self, "transaction_id", validation.text("transaction_id", self.transaction_id))
        if self.checker is not None:
            put(self, "checker", validation.text("checker", self.checker))
        if self.biz_type is not None:
            put(self, "biz_type", validation.text("biz_type", self.biz_type))
        if self.biz_id is not None:
            put(self, "biz_id", validation.text("biz_id", self.biz_id))

    def with_check_headers(self) -> Message:
        """Return this message with its `checker`, `biz_type` and `biz_id` as record headers, too.

        They are columns, for check-backs and searches; consumers see a record only. Each that is given becomes the
        header `checker`, `biz-type` or `biz-id`.

        Raises:
            InvalidMessageError: The headers have another value of such a name.
        """
        headers = dict(self.headers or {})
        for name, value in (("checker", self.checker), ("biz-type", self.biz_type), ("biz-id", self.biz_id)):
            if value is not None and headers.setdefault(name, value) != value:
                raise InvalidMessageError(
                    "headers",
                    f"have another {name!r} than the message",
                    f"no header {name!r}, or the same value",
                )
        return replace(self, headers=headers or None)

    @property
    def arg(self) -> Arg:
        """The selector's arg as it was given: the order key, else the key."""
        return self.order_key if self.order_key is not None else self.key

    @property
    def arg_bytes(self) -> bytes | None:
        """The selector's arg as the row holds it."""
        return self.order_key_bytes if self.order_key_bytes is not None else self.key_bytes


def _destination(topic: Any, tags: Any) -> tuple[Any, tuple[str, ...]]:
    """Split RocketMQ's destination, and text of several tags."""
    topic = validation.exact(topic) if isinstance(topic, str) else topic
    if isinstance(topic, str) and ":" in topic:
        topic, _, expression = topic.partition(":")
        if tags != ():
            raise InvalidMessageError(
                "tags", "are given in the topic as well", 'either "topic:tags" or tags='
            )
        tags = expression
    if tags == ():
        return topic, ()
    if isinstance(tags, str):
        tags = tuple(tag.strip() for tag in validation.exact(tags).split("||"))
    return topic, validation.labels("tags", tags, separator="|")


def _order_key(value: Any) -> bytes | None:
    if type(value) is int:
        return str(value).encode()
    if value is None or isinstance(value, bytes | str):
        content = validation.content("order_key", value)
        if content is not None and len(content) > validation.LONGEST_ORDER_KEY:
            raise InvalidMessageError(
                "order_key", f"takes {len(content):,} bytes", f"up to {validation.LONGEST_ORDER_KEY:,} bytes"
            )
        return content
    raise InvalidMessageError("order_key", f"is {type(value).__name__}", "bytes, str (UTF-8), int or None")


def _index_keys(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # one key or several? the letters of it for sure not
        raise InvalidMessageError("index_keys", "is str", "a sequence of str")
    return validation.labels("index_keys", value, separator=" ")


def _check_queue(queue: Any, selector: str | None) -> None:
    if type(queue) is not int:
        raise InvalidMessageError("queue", f"is {type(queue).__name__}", "int or None")
    if not 0 <= queue <= LARGEST_QUEUE:
        raise InvalidMessageError(
            "queue", f"{queue} is out of range", "0 up to the topic's partitions minus 1"
        )
    if selector is not None:
        raise InvalidMessageError("queue", f"comes with selector {selector!r}", "either queue or selector")


def _check_arg(selector: str, arg: bytes | None) -> None:
    require_arg(selector, arg)
    if selector in HASHES and arg is None:
        raise InvalidMessageError("selector", f"{selector!r} has nothing to hash", "an order_key or a key")


def _check_time(name: str, value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidMessageError(name, f"is {type(value).__name__}", "datetime with a time zone, or None")
    if value.utcoffset() is None:
        raise InvalidMessageError(
            name,
            f"{value} has no time zone",
            "an aware datetime, as datetime.now(UTC) + timedelta(…)",
        )
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not EARLIEST <= moment <= LATEST:
        raise InvalidMessageError(
            name, f"{value} is out of range", f"{EARLIEST.date()} to {LATEST.date()} 00:00 UTC, or None"
        )
    return moment


def _check_order(at: datetime | None, before: datetime) -> None:
    if at is not None and before <= at:
        raise InvalidMessageError(
            "deliver_before",
            f"{before} is not after deliver_at {at}",
            "a later time than deliver_at, or None",
        )


def _check_message_id(value: Any) -> None:
    if not isinstance(value, UUID):
        raise InvalidMessageError("message_id", f"is {type(value).__name__}", "uuid.UUID or None")
    # The nibble, not .version: the database looks at it whatever the variant says.
    if value.bytes[6] >> 4 == 8:
        raise InvalidMessageError(
            "message_id", f"{value} is of version 8, which only the outbox makes", "a UUID of version 4 or 7"
        )


def _traceparent(value: Any) -> str:
    checked = validation.text("traceparent", value)
    if not _TRACEPARENT.fullmatch(checked):
        raise InvalidMessageError(
            "traceparent", f"{checked[:80]!r} is not a W3C traceparent", "version-traceid-parentid-flags"
        )
    return checked
