"""The rows of outbox.publication that a write makes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter, le
from typing import Any

from outbox.statements import array_text
from outbox_relay.publisher.core.values import Item, Write
from outbox_relay.publisher.errors import BrokenError

_position, _partition, _offset = attrgetter("row.position"), attrgetter("partition"), attrgetter("offset")


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


def _record(items: Sequence[Item], write: Write, of_all: Mapping[str, Any]) -> dict[str, Any]:
    positions = [*map(_position, items)]
    return {
        **of_all,
        "lo": positions[0],
        "hi": positions[-1],
        "base": None,
        "snapshot": str(write.floor),
        "after": None,
        "is_partial": True,
        "positions": array_text(positions),
        "partitions": array_text(map(_partition, items)),
        "offsets": array_text(map(_offset, items)),
    }


def check_offsets(items: Sequence[Item]) -> None:
    """Refuse offsets of one partition that do not ascend: matching them to messages would be wrong.

    Raises:
        BrokenError: naming the partition; nothing of it is recorded.
    """
    offsets = [item.offset for item in items]
    if any(map(le, offsets, [-1, *offsets])):
        topic, partition = items[0].row.topic, items[0].partition
        raise BrokenError(f"offsets {offsets} in {topic}[{partition}]: deliveries out of order")
