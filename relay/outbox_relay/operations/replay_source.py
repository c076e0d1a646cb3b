"""Where a replay has its messages from: the history in PostgreSQL, as the relay has published it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from outbox import wire
from outbox.cloudevents import attributes as cloudevents
from outbox.inbox.messages import HeaderValue, RawRecord
from outbox.statements import Statements
from outbox_relay.operations import filters
from outbox_relay.publisher.records import decode_headers
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/replay_source.sql")
MOST_MESSAGES = 1_000_000
"""Of one replay: their ids and keys are kept in memory, to bring them into the order of their keys."""


@dataclass(frozen=True)
class Selection:
    """Which messages of a topic are meant; None: any."""

    topic: str
    key: bytes | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {
            "topic": self.topic,
            "key": None if self.key is None else base64.b64encode(self.key).decode(),
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "ids": list(self.ids),
        }

    def fits(self, message: Chosen) -> bool:
        """Return whether a message of the topic is meant; the statement `chosen` does the same."""
        born_at = datetime.fromtimestamp(message.born / 1000, UTC)
        return (
            (not self.ids or str(message.id) in self.ids or str(message.message_id) in self.ids)
            and (self.key is None or message.key == self.key)
            and (self.since is None or born_at >= self.since)
            and (self.until is None or born_at < self.until)
        )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Selection:
        """Read what was stored."""
        key, since, until = document["key"], document["since"], document["until"]
        return cls(
            document["topic"],
            None if key is None else base64.b64decode(key),
            None if since is None else datetime.fromisoformat(since),
            None if until is None else datetime.fromisoformat(until),
            tuple(document["ids"]),
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """A published message without its body."""

    id: int
    message_id: UUID
    position: int
    key: bytes | None
    tags: list[str]
    born: int
    """In milliseconds since 1970, as in its header."""
    due: int | None
    """Its `deliver_at`, likewise; None: it was not delayed."""
    partition: int
    offset: int
    published_at: datetime
    row_order_key: bytes | None = None
    """Its order key, or what stands for a long one; None: its key."""
    queue: int | None = None
    selector: str | None = None

    @property
    def order_header(self) -> tuple[str, str] | None:
        """The header that states its order, if that is not the order of its key."""
        return wire.order_header(self.key, self.row_order_key, self.queue, self.selector)

    @property
    def born_on(self) -> date:
        """The day under which the inbox has its row."""
        later = self.born if self.due is None else max(self.born, self.due)
        return datetime.fromtimestamp(later / 1000, UTC).date()

    @property
    def order_key(self) -> bytes | None:
        """What an orderly group orders it by."""
        headers = () if self.order_header is None else (_bytes(self.order_header),)
        return wire.order_of(headers, self.key, self.partition)


class Origin(NamedTuple):
    """Where messages come from, and what time it is there."""

    name: str
    now: datetime


class ReplaySource(Protocol):
    """Messages that were published."""

    def origin(self) -> Origin:
        """Return where they come from."""
        ...

    def choose(self, selection: Selection, published_before: datetime) -> list[Chosen]:
        """Return the messages that fit."""
        ...

    def records(self, topic: str, chosen: Sequence[Chosen]) -> list[RawRecord | None]:
        """Return the records as the relay has published them; None: the message is gone."""
        ...


class History:
    """The messages of a database that a relay publishes from."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn

    def origin(self) -> Origin:
        """Return the name of the database, and its time."""
        [(name, now)] = self._conn.execute(STATEMENTS["origin"]).fetchall()
        return Origin(name, now)

    def choose(self, selection: Selection, published_before: datetime) -> list[Chosen]:
        """Return the messages that fit, in no order.

        Raises:
            OperatorError: There are too many, or one that was named by its id is not among them.
        """
        ids = [self._id_of(text) for text in selection.ids]
        values = {
            "topic": selection.topic,
            "key": selection.key,
            "since": selection.since,
            "until": selection.until,
            "ids": ids or None,
            "published_before": published_before,
            "limit": MOST_MESSAGES + 1,
        }
        with self._conn.cursor(row_factory=class_row(Chosen)) as cursor:
            found = cursor.execute(STATEMENTS["chosen"], values).fetchall()
        if len(found) > MOST_MESSAGES:
            raise OperatorError(
                f"more than {MOST_MESSAGES:,} messages fit; choose fewer: --from, --to, --key"
            )
        return checked(found, selection)

    def records(self, topic: str, chosen: Sequence[Chosen]) -> list[RawRecord | None]:
        """Return the records of messages; None: it was dropped from the history meanwhile."""
        rows = self._conn.execute(STATEMENTS["contents"], {"ids": [each.id for each in chosen]}).fetchall()
        found = {row[0]: Contents(*row[1:]) for row in rows}
        return [record_of(topic, each, found[each.id]) if each.id in found else None for each in chosen]

    def _id_of(self, text: str) -> int:
        id_, message_id = filters.identity(text)
        if id_ is None and message_id is not None:
            id_ = wire.row_id_of(message_id)
        if id_ is not None:
            return id_
        row = self._conn.execute(STATEMENTS["id_of"], {"message_id": message_id}).fetchone()
        if row is None:
            raise OperatorError(
                f"no message has the message id {text}; it may be of another database: --source"
            )
        return int(row[0])


def checked(found: list[Chosen], selection: Selection) -> list[Chosen]:
    """Return what was found.

    Raises:
        OperatorError: There are too many, or one that was named is not among them.
    """
    if len(found) > MOST_MESSAGES:
        raise OperatorError(f"more than {MOST_MESSAGES:,} messages fit; choose fewer: --from, --to, --key")
    known = {name for each in found for name in (str(each.id), str(each.message_id))}
    missing = sorted(set(selection.ids) - known)
    if missing:
        raise OperatorError(
            f"message {missing[0]} is not published in topic {selection.topic!r}, is excluded by the other options, or "
            f"its history was dropped; see: outbox message show {missing[0]}"
        )
    return found


class Contents(NamedTuple):
    """The rest of what the record of a message is made of."""

    body: bytes | None
    headers: str | None
    tags: str | None
    index_keys: str | None
    producer_group: str | None
    transaction_id: str | None
    traceparent: str | None


def record_of(topic: str, message: Chosen, contents: Contents) -> RawRecord:
    """Return the record of a message; `Producing.publish` makes the same."""
    own = (
        (wire.ID, str(message.message_id)),
        (wire.BORN_AT, str(message.born)),
        (wire.DELIVER_AT, None if message.due is None else str(message.due)),
        *(() if message.order_header is None else (message.order_header,)),
        (wire.TAGS, contents.tags),
        (wire.KEYS, contents.index_keys),
        (wire.PRODUCER_GROUP, contents.producer_group),
        (wire.TRANSACTION_ID, contents.transaction_id),
        (wire.TRACEPARENT, contents.traceparent),
    )
    users = decode_headers(contents.headers) if contents.headers is not None else []
    pairs: Iterable[tuple[str, str | bytes | None]] = (
        *(pair for pair in own if pair[1] is not None),
        *users,
        *cloudevents.added(cloudevents.missing(users), str(message.message_id), str(message.born)),
    )
    values = tuple(map(_bytes, pairs))
    published = int(message.published_at.timestamp() * 1000)
    return RawRecord(topic, message.partition, message.offset, message.key, contents.body, values, published)


def _bytes(header: tuple[str, str | bytes | None]) -> tuple[str, HeaderValue]:
    name, value = header
    return name, value.encode() if isinstance(value, str) else value
