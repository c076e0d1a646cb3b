"""The row of a message: its columns, and their values in the order in which the statements number them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from outbox import wire
from outbox.message import Message
from outbox.statements import ByteaArray, Param, TextArray, load

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "topic": "text",
        "key": "bytea",
        "body": "bytea",
        "headers": "jsonb",
        "order_key": "bytea",
        "selector": "text",
        "queue": "integer",
        "tags": "text[]",
        "index_keys": "text[]",
        "producer_group": "text",
        "checker": "text",
        "biz_type": "text",
        "biz_id": "text",
        "deliver_at": "timestamptz",
        "deliver_before": "timestamptz",
        **{column: "text" for column, _ in wire.TEXT_HEADERS},
    }
)
"""What the library writes of a message, with PostgreSQL's types. Every statement lists these columns in this order, and
then what is its own, such as the lane."""
_BYTEA = frozenset(place for place, type_ in enumerate(COLUMNS.values()) if type_ == "bytea")
_text_headers = attrgetter(*(column for column, _ in wire.TEXT_HEADERS))
_NEEDS_QUOTES = frozenset('{}",\\ \t\n\r\v\f')

Row = tuple[str | bytes | None, ...]


def row_of(message: Message, selector: str | None, queue: int | None, producer_group: str | None) -> Row:
    """The values of `COLUMNS`; selector and queue are what `send` decided on, the rest is the message's."""
    return (
        message.topic,
        message.key_bytes,
        message.body_bytes,
        message.headers_json,
        message.order_key_bytes,
        selector,
        None if queue is None else str(queue),
        text_array(tuple(message.tags)),
        text_array(tuple(message.index_keys)),
        producer_group,
        message.checker,
        message.biz_type,
        message.biz_id,
        None if message.deliver_at is None else message.deliver_at.isoformat(),
        None if message.deliver_before is None else message.deliver_before.isoformat(),
        *_text_headers(message),
    )


def load_rows(file: str) -> Mapping[str, str]:
    """Read the statements of one file of `outbox/sql` that write rows; send.sql explains what the braces stand for.

    Raises:
        KeyError: a name in braces, or behind $, is not known.
    """
    return {name: _filled(text) for name, text in load(file).items()}


def _filled(text: str) -> str:
    numbers = {column: number for number, column in enumerate(COLUMNS, 1)}
    lists = {
        "columns": COLUMNS,
        "values": [f"${number}" for number in numbers.values()],
        "typed": [f"${numbers[column]}::{type_}" for column, type_ in COLUMNS.items()],
        "arrays": [
            f"${numbers[column]}::{'bytea' if type_ == 'bytea' else 'text'}[]"
            for column, type_ in COLUMNS.items()
        ],
        "unnested": [_unnested(column, type_) for column, type_ in COLUMNS.items()],
    }
    text = re.sub(r"\{([a-z]+)\}", lambda found: ", ".join(lists[found[1]]), text)
    text = re.sub(r"\$\+(\d+)", lambda found: f"${len(COLUMNS) + int(found[1])}", text)
    return re.sub(r"\$([a-z_]+)", lambda found: f"${numbers[found[1]]}", text)


def _unnested(column: str, type_: str) -> str:
    if type_ == "text[]":
        return f"coalesce({column}::text[], '{{}}')"
    return column if type_ in {"text", "bytea"} else f"{column}::{type_}"


def columns_of(rows: Sequence[Row]) -> list[Param]:
    """Turn rows into arrays, one per column; a column that holds nothing becomes an empty array."""
    arrays: list[Param] = []
    for place, items in enumerate(zip(*rows, strict=True)):
        kept = () if items.count(None) == len(items) else items
        arrays.append(ByteaArray(kept) if place in _BYTEA else TextArray(kept))
    return arrays


def text_array(items: Sequence[str]) -> str:
    """PostgreSQL's text form of a text[]."""
    if not items:
        return "{}"
    return "{" + ",".join(_quoted(item) for item in items) + "}"


def _quoted(item: str) -> str:
    if item.upper() == "NULL" or not _NEEDS_QUOTES.isdisjoint(item):
        return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return item
