"""Messages of a replay from a file of JSON lines, such as one that a query of the warehouse has written.

A line is an object with `position`, `message_id`, `topic`, `partition`, `offset`, `born_ms` and `published_ms`; where
they are not null `deliver_ms`, `key`, `order_key` and `body` in base64, `queue`, `selector`, `headers` (an object of
texts), `tags` and `index_keys` (lists), `producer_group`, `transaction_id` and `traceparent`. A replay that goes on
compares the digest of the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import UUID

from outbox import wire
from outbox.inbox.messages import RawRecord
from outbox_relay.operations.replay_source import Chosen, Contents, Origin, Selection, checked, record_of
from outbox_relay.text.errors import OperatorError


class Exported(NamedTuple):
    """A line."""

    topic: str
    message: Chosen
    contents: Contents


class ExportedMessages:
    """The messages of a file.

    Args:
        path: of the file.

    Raises:
        OperatorError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, tuple[int, int]] = {}
        """Number and begin of the line of a position."""
        try:
            with path.open("rb") as file:
                self._digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise OperatorError(f"{path} cannot be read: {error.strerror}") from error

    def origin(self) -> Origin:
        """Return the file by its content, and the time now."""
        return Origin(f"a file with SHA-256 {self._digest}", datetime.now(UTC))

    def choose(self, selection: Selection, published_before: datetime) -> list[Chosen]:
        """Return the messages that fit.

        Raises:
            OperatorError: A line cannot be read, there are too many, or one that was named is not among them.
        """
        found: dict[int, Chosen] = {}
        with self._path.open("rb") as file:
            for number, begin, line in _lines(file):
                topic, message, _ = self._read(number, line)
                if (
                    topic == selection.topic
                    and selection.fits(message)
                    and message.published_at < published_before
                ):
                    found[message.position], self._places[message.position] = message, (number, begin)
        return checked(list(found.values()), selection)

    def records(self, topic: str, chosen: Sequence[Chosen]) -> list[RawRecord | None]:
        """Return the records of messages that were chosen."""
        records: list[RawRecord | None] = []
        with self._path.open("rb") as file:
            for message in chosen:
                number, begin = self._places[message.position]
                file.seek(begin)
                records.append(record_of(topic, message, self._read(number, file.readline()).contents))
        return records

    def _read(self, number: int, line: bytes) -> Exported:
        try:
            return _exported(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError) as error:
            raise OperatorError(
                f"{self._path}, line {number}: {type(error).__name__}: {error}; expected a published message as JSON, "
                "as docs/how-to/replay.md has it"
            ) from error


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield lines with their numbers and where they begin."""
    begin = 0
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, begin, line
        begin += len(line)


def _exported(row: Mapping[str, Any]) -> Exported:
    offset, order_key, queue = row["offset"], _bytes(row.get("order_key")), row.get("queue")
    message = Chosen(
        int(row["position"]),
        UUID(row["message_id"]),
        int(row["position"]),
        _bytes(row.get("key")),
        [str(tag) for tag in row.get("tags") or ()],
        int(row["born_ms"]),
        None if row.get("deliver_ms") is None else int(row["deliver_ms"]),
        int(row["partition"]),
        -1 if offset is None else int(offset),
        datetime.fromtimestamp(int(row["published_ms"]) / 1000, UTC),
        None if order_key is None else wire.short_key(order_key),
        None if queue is None else int(queue),
        row.get("selector"),
    )
    headers = row.get("headers")
    contents = Contents(
        _bytes(row.get("body")),
        None if headers is None else json.dumps(dict(headers), ensure_ascii=False),
        wire.TAGS_JOINED_BY.join(message.tags) or None,
        wire.KEYS_JOINED_BY.join(row.get("index_keys") or ()) or None,
        row.get("producer_group"),
        row.get("transaction_id"),
        row.get("traceparent"),
    )
    return Exported(str(row["topic"]), message, contents)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
