"""What a relay would publish now, as Kafka's records: partition, offset, key, value and headers."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from outbox import wire
from outbox.errors import SelectorError
from outbox.partitioning.selectors import partition_of
from outbox.statements import Plan, Statement
from outbox.testing.messages import SQL

if TYPE_CHECKING:
    from outbox.inbox.messages import ConsumedMessage


@dataclass(frozen=True, slots=True)
class PublishedRecord:
    """A record as a consumer of Kafka gets it; offsets count from 0 in each partition."""

    message_id: UUID
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    timestamp: int
    """Milliseconds since 1970: when it was drained."""

    def header(self, name: str) -> bytes | None:
        """Return the value of the first header of this name; None without one."""
        return next((value for header, value in self.headers if header == name), None)

    def consumed(self) -> ConsumedMessage:
        """Return what a listener of `outbox.inbox` is given; needs the extra `consumer`."""
        # Here, because confluent-kafka comes with it.
        from outbox.inbox.messages import RawRecord, Source, identify  # noqa: PLC0415

        raw = RawRecord(
            self.topic, self.partition, self.offset, self.key, self.value, self.headers, self.timestamp
        )
        return identify(Source(0, self.topic), raw, orderly=False).message


class Log:
    """The records of a test: each message is in it once, and is handed over until that has succeeded."""

    def __init__(self) -> None:
        self._records: dict[int, PublishedRecord] = {}
        self._done: set[int] = set()
        self._ends: Counter[tuple[str, int]] = Counter()

    def read(self, after: int, *, delayed: bool) -> Plan[list[tuple[int, PublishedRecord]]]:
        """Read the messages that were not handed over yet, by their ids.

        Raises:
            SelectorError: a message has no partition; a relay would hold it back with all of its key.
        """
        rows = yield Statement(SQL["publishable"], (str(after), "true" if delayed else "false"))
        for row in rows:
            if row[0] not in self._records:
                self._records[row[0]] = self._append(row)
        return [(row[0], self._records[row[0]]) for row in rows if row[0] not in self._done]

    def done(self, id_: int) -> None:
        """Note that a message was handed over."""
        self._done.add(id_)

    def _append(self, row: tuple[Any, ...]) -> PublishedRecord:
        (_, position, message_id, topic, key, body, headers,
         order_key, queue, own, of_topic, partitions, *columns) = row  # fmt: skip
        if queue is not None and partitions is not None and not 0 <= queue < partitions:
            raise SelectorError(
                "queue", f"{queue} does not exist in topic {topic!r}", f"0 to {partitions - 1}"
            )
        arg = key if order_key is None else order_key
        partition = partition_of(own or of_topic, arg, partitions or 1, position) if queue is None else queue
        offset = self._ends[topic, partition]
        self._ends[topic, partition] += 1
        now = int(time.time() * 1000)
        stated = wire.order_header(key, order_key, queue, own)
        pairs = _headers(message_id, headers, columns, [] if stated is None else [stated])
        return PublishedRecord(message_id, topic, partition, offset, key, body, pairs, now)


def _headers(
    message_id: UUID, own: str | None, columns: list[Any], order: list[tuple[str, str]]
) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers in the order in which a relay writes them."""
    born_at, deliver_at, tags, index_keys, group, *texts = columns
    found: list[tuple[str, str | None]] = [
        (wire.ID, str(message_id)),
        (wire.BORN_AT, born_at),
        (wire.DELIVER_AT, deliver_at),
        *order,
        (wire.TAGS, wire.TAGS_JOINED_BY.join(tags) or None),
        (wire.KEYS, wire.KEYS_JOINED_BY.join(index_keys) or None),
        (wire.PRODUCER_GROUP, group),
        *((header, text) for (_, header), text in zip(wire.TEXT_HEADERS, texts, strict=True)),
    ]
    given = [(name, value) for name, value in found if value is not None]
    pairs = [] if own is None else json.loads(own, object_pairs_hook=list)
    return tuple((name, None if value is None else value.encode()) for name, value in [*given, *pairs])
