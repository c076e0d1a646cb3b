"""A record of Kafka as a message: its id, its day of birth and its tags, whichever program wrote it.

Headers are read tolerantly: the first of a name counts, and what cannot be read is as if it were not there. A record
that does not come from an outbox has an id made from its place in Kafka, so that redelivery is recognised, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from outbox import wire
from outbox.inbox.failures import Failure

HeaderValue = bytes | None
_FOREIGN = UUID("6f7c1f1e-0a53-5c3c-9d0c-2a6f1c4b8e11")
"""The namespace of the ids of records that do not come from an outbox, and of copies."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MILLISECOND = 253402300799999
_NO_DAY = date(1970, 1, 1)
"""Stands for the day of birth of a message that has an id of its own and does not state when it was born.

Kafka's timestamp cannot stand for it: it changes when the message is published again, and the same id could be in two
partitions of the inbox. The rows of this day are in the DEFAULT partition.
"""


@dataclass(frozen=True, slots=True)
class ConsumedMessage:
    """What a listener is given."""

    message_id: UUID
    topic: str
    partition: int
    offset: int
    key: bytes | None
    body: bytes | None = field(repr=False)
    """None: a tombstone."""
    headers: tuple[tuple[str, HeaderValue], ...] = field(repr=False)
    born_at: datetime
    """When the message was sent; when it was published, if its producer did not state that."""
    published_at: datetime
    reconsume_times: int = 0
    """How often it failed before."""
    value: Any = field(default=None, repr=False, compare=False)
    """The body as the topic's schema reads it, if the consumer has one among its codecs; None: a tombstone."""

    def header(self, name: str) -> HeaderValue:
        """Return the value of the first header of this name."""
        return first(self.headers, name)

    @property
    def deliver_at(self) -> datetime | None:
        """When a delayed message was due; None: it was not delayed."""
        return due_of(self.headers)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the message."""
        return tags_of(self.headers)

    @property
    def keys(self) -> tuple[str, ...]:
        """RocketMQ's KEYS: what operators search for."""
        text = _text(first(self.headers, wire.KEYS))
        return tuple(text.split(wire.KEYS_JOINED_BY)) if text else ()


@dataclass(slots=True)
class Attempt:
    """One run of a listener for a message that was delivered."""

    xid: str
    """Of the transaction that the listener was given."""
    returned: bool = False
    """Whether the listener returned SUCCESS inside that transaction: from here on its commit is the consumer's."""
    ended: bool = False
    """Whether the listener was seen to end the transaction; it may have done so unseen."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message with what the inbox needs to know of it."""

    message: ConsumedMessage
    topic_id: int
    born_on: date
    digest: bytes
    order_key: bytes | None
    """None: it has no order."""
    epoch: int = 0
    """The assignment of its partition that it came with."""
    failure: Failure | None = None
    """Why its header filter could not decide, or its listener failed: the message is parked, and no listener runs."""
    attempt: Attempt | None = None
    """The latest run of its listener, if it was given back after that."""
    interruptions: int = 0
    """How often in a row PostgreSQL ended its transaction, if it was given back after that."""
    was_locked: bool = False
    """Whether another session had its row or its key locked: it was given back, and is taken alone."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a record comes from: the topic by its number in `outbox.inbox_topic`, and by Kafka's id."""

    topic_id: int
    kafka_id: str


class RawRecord(NamedTuple):
    """A record of Kafka; `timestamp` is Kafka's, in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    body: bytes | None
    headers: tuple[tuple[str, HeaderValue], ...]
    timestamp: int


def first(headers: Iterable[tuple[str, HeaderValue]], name: str) -> HeaderValue:
    """Return the value of the first header of this name; None without one."""
    return next((value for header, value in headers if header == name), None)


def tags_of(headers: Iterable[tuple[str, HeaderValue]]) -> tuple[str, ...]:
    """Return the tags of a record."""
    text = _text(first(headers, wire.TAGS))
    return tuple(text.split(wire.TAGS_JOINED_BY)) if text else ()


def pairs_of(headers: object) -> tuple[tuple[str, HeaderValue], ...]:
    """Return headers as pairs, whatever the client makes of them: None, a list, or a dict."""
    if not headers:
        return ()
    items: Iterable[tuple[str, object]] = headers.items() if isinstance(headers, dict) else headers  # type: ignore[assignment]
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in items)  # type: ignore[misc]


def identify(
    source: Source, record: RawRecord, *, orderly: bool, epoch: int = 0, failure: Failure | None = None
) -> Delivery:
    """Make a delivery of a record.

    Args:
        source: its topic.
        record: as it was fetched.
        orderly: Whether its key has an order; see `wire.order_of` for what that is.
        epoch: the assignment of its partition.
        failure: why its header filter could not decide.
    """
    published_at = _time(record.timestamp) or _EPOCH
    message_id = _uuid(_text(first(record.headers, wire.ID)))
    stated = born_of(record.headers) if message_id is not None else None
    born_at = stated or published_at
    if message_id is None:
        day = published_at.date()
        message_id = uuid5(_FOREIGN, f"{source.kafka_id}/{record.partition}/{record.offset}")
    elif stated is None:
        day = _NO_DAY
    else:
        day = _day(stated, record.headers)
    message = ConsumedMessage(message_id, *record[:6], born_at, published_at)
    content = digest(record.key, record.body)
    key = wire.order_of(record.headers, record.key, record.partition) if orderly else None
    return Delivery(message, source.topic_id, day, content, key, epoch, failure)


def as_copy(delivery: Delivery) -> Delivery:
    """Return a message under an id of its own, because its headers state the id of another record.

    Kafka Streams, Kafka Connect and others copy headers, so several records have the headers of one message. The new id
    is made from the old one, the name of the topic and the content: a redelivery gets the same one. See docs/adr/0016.
    """
    message = delivery.message
    name = f"{message.message_id}/{message.topic}/{delivery.digest.hex()}"
    return replace(delivery, message=replace(message, message_id=uuid5(_FOREIGN, name)))


def born_on(message: ConsumedMessage) -> date:
    """Return the day under which the inbox has the row of a message, as `identify` finds it."""
    if _uuid(_text(first(message.headers, wire.ID))) is None:
        return message.born_at.date()
    stated = born_of(message.headers)
    return _NO_DAY if stated is None else _day(stated, message.headers)


def _day(born_at: datetime, headers: Iterable[tuple[str, HeaderValue]]) -> date:
    """Return the day of a message with an id of its own: of its birth, or the one on which it was due."""
    due = due_of(headers)
    return (born_at if due is None else max(born_at, due)).date()


def born_of(headers: Iterable[tuple[str, HeaderValue]]) -> datetime | None:
    """Return when the message was sent, if its header states that."""
    return _time(_number(_text(first(headers, wire.BORN_AT))))


def due_of(headers: Iterable[tuple[str, HeaderValue]]) -> datetime | None:
    """Return when a delayed message was due, if its header states that."""
    return _time(_number(_text(first(headers, wire.DELIVER_AT))))


def digest(key: bytes | None, body: bytes | None) -> bytes:
    """Return 16 bytes that are different for different contents."""
    found = hashlib.blake2b(digest_size=16)
    for part in (key, body):
        found.update(b"-" if part is None else b"%d:" % len(part) + part)
    return found.digest()


def header_columns(headers: Sequence[tuple[str, HeaderValue]]) -> tuple[list[str], list[HeaderValue]]:
    """Return the names and the values, as two columns; PostgreSQL's texts have no NUL."""
    return [name.replace("\0", "\N{REPLACEMENT CHARACTER}") for name, _ in headers], [
        value for _, value in headers
    ]


class HeadersOfAll(NamedTuple):
    """Headers of several messages in one column of names and one of values.

    `firsts` and `lasts`: by message, the places of its first and its last header, counted from 1; a message without
    headers has a last one in front of its first.
    """

    names: list[str]
    values: list[HeaderValue]
    firsts: list[int]
    lasts: list[int]


def headers_of_all(messages: Sequence[ConsumedMessage]) -> HeadersOfAll:
    """Return the headers of several messages as columns for one statement."""
    names: list[str] = []
    values: list[HeaderValue] = []
    firsts, lasts = list[int](), list[int]()
    for message in messages:
        own_names, own_values = header_columns(message.headers)
        firsts.append(len(names) + 1)
        names += own_names
        values += own_values
        lasts.append(len(names))
    return HeadersOfAll(names, values, firsts, lasts)


def _text(value: HeaderValue) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def _number(text: str | None) -> int:
    return int(text) if text and len(text) < 20 and text.isascii() and text.isdigit() else -1


def _time(milliseconds: int) -> datetime | None:
    if not 0 <= milliseconds <= _LAST_MILLISECOND:
        return None
    return _EPOCH + timedelta(milliseconds=milliseconds)
