"""The row of a message: its values in the order in which every statement of `send.sql` numbers them."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.message import Message
from outbox.statements import ByteaArray, Param, TextArray

_BYTEA = frozenset({1, 2, 4})
_COLUMNS = 16
_NEEDS_QUOTES = frozenset('{}",\\ \t\n\r\v\f')

Row = tuple[str | bytes | None, ...]


def row_of(message: Message, selector: str | None, queue: int | None, producer_group: str | None) -> Row:
    """The values $1 to $16; selector and queue are what `send` decided on, the rest is the message's."""
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
        message.transaction_id,
        message.checker,
        message.biz_type,
        message.biz_id,
        None if message.deliver_at is None else message.deliver_at.isoformat(),
        message.traceparent,
    )


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
