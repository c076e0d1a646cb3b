"""How many rows and bytes the core holds, in all and by group of topics, so that no backlog fills the process."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import groupby
from operator import attrgetter

from outbox_relay.publisher.core.values import GroupOf, Limits, Row

_topic, _size = attrgetter("topic"), attrgetter("size")


class Memory:
    """Counts rows from the page that brings them to the write that settles them."""

    def __init__(self, limits: Limits, group_of: GroupOf) -> None:
        """Begin empty."""
        self.limits = limits
        self.rows = 0
        self.size = 0
        self.groups: dict[Hashable, list[int]] = {}
        self._group_of = group_of

    def take(self, rows: Iterable[Row]) -> None:
        """Count the rows of a page."""
        self._count(rows, 1)

    def free(self, rows: Iterable[Row]) -> None:
        """Count rows no longer: they are settled or forgotten."""
        self._count(rows, -1)

    def _count(self, rows: Iterable[Row], sign: int) -> None:
        for topic, of_topic in groupby(rows, _topic):
            sizes = [*map(_size, of_topic)]
            group, rows_of, size_of = self._group_of(topic), sign * len(sizes), sign * sum(sizes)
            of_group = self.groups.setdefault(group, [0, 0])
            of_group[0] += rows_of
            of_group[1] += size_of
            self.rows += rows_of
            self.size += size_of
            if not of_group[0]:
                del self.groups[group]

    def has_room(self) -> bool:
        """Return whether there is room for one row, the largest one."""
        return self.rows < self.limits.rows and self.size <= self.limits.size - self.limits.largest

    def room(self, group: Hashable = None) -> tuple[int, int]:
        """Return the rows and bytes that the next page may have, if there is room: half of what is left at most.

        It may consist of one row that is larger than that.

        Args:
            group: of the page; None for a page of many.
        """
        limits = self.limits
        rows, size = limits.rows - self.rows, limits.size - self.size
        used_rows, used_size = self.groups.get(group, (0, 0))
        return (
            min(limits.page, max(1, (rows - used_rows) // 2)),
            min(limits.page_size, max(1, (size - used_size) // 2)),
        )

    def is_full(self, group: Hashable) -> bool:
        """Return whether a group has as much as is free (isolation).

        One group may fill a half of the memory, two may fill a third each, and so on: there is always room for another.
        """
        rows, size = self.groups.get(group, (0, 0))
        free_rows, free_size = self.limits.rows - self.rows, self.limits.size - self.size
        return rows >= free_rows - 1 or size >= free_size - 2 * self.limits.largest

    def full(self) -> list[Hashable]:
        """Return the groups that have as much as is free."""
        return [group for group in self.groups if self.is_full(group)]
