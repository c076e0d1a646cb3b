"""The rows of outbox.publication that a write makes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outbox.statements import array_text
from outbox_relay.publisher.core.values import Item, Write
from outbox_relay.publisher.errors import BrokenError


def records_of(write: Write, of_all: Mapping[str, Any], bounds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the values of each publication: positions ascending, none across the bounds of partitions.

    Args:
        write: what Kafka acknowledged, and the floor.
        of_all: the values that all rows have: whose they are, of which lanes and batch.
        bounds: upper bounds of the live partitions, ascending.
    """
    items = sorted(write.published, key=_position)
    records: list[dict[str, Any]] = []
    start = 0
    while start < len(items):
        following = bisect_right(bounds, items[start].row.position)
        end = len(items)
        if following < len(bounds):
            end = bisect_left(items, bounds[following], start, key=_position)
        records.append(_record(items[start:end], write, of_all))
        start = end
    return records


def _position(item: Item) -> int:
    return item.row.position


def _record(items: Sequence[Item], write: Write, of_all: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **of_all,
        "lo": items[0].row.position,
        "hi": items[-1].row.position,
        "base": None,
        "snapshot": str(write.floor),
        "after": None,
        "is_partial": True,
        "positions": array_text(item.row.position for item in items),
        "partitions": array_text(item.partition for item in items),
        "offsets": array_text(item.offset for item in items),
    }


def check_offsets(items: Collection[Item]) -> None:
    """Refuse offsets of a partition that do not ascend: matching them to messages would be wrong.

    Raises:
        BrokenError: naming the partition; nothing of it is recorded.
    """
    last: dict[tuple[str, int], int] = {}
    for item in items:
        name = item.row.topic, item.partition
        if item.offset <= last.get(name, -1):
            text = f"offset {item.offset} after {last[name]} in {name[0]}[{name[1]}]: deliveries out of order"
            raise BrokenError(text, {})
        last[name] = item.offset
