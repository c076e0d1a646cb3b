"""What was read up to where: the tail, the catch-ups, and the floor below which every row is settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from outbox_relay.publisher.core.values import THE_REST, Page, Read, Row
from outbox_relay.publisher.snapshot import Snapshot

_id = attrgetter("id")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A snapshot and when this session took it, because snapshots by themselves have no order.

    Order 0 is the floor of another session.
    """

    order: int
    snapshot: Snapshot = field(compare=False)


@dataclass(slots=True, eq=False)
class OpenRows:
    """How many rows of one statement are not settled, and the base that the floor may not pass before they are."""

    base: Mark
    count: int = 0


@dataclass(slots=True, eq=False)
class CatchUp:
    """A group with more than a page: it is read from a list, next to the tail. Its new rows wait behind the list.

    `until`: the list is of what this mark saw. It is the tail's when the list is begun, and older than the tail when
    its last page comes: what the tail left out of the group meanwhile is read from there.
    """

    group: Hashable
    base: Mark
    rows: OpenRows
    until: Mark | None = None
    is_done: bool = False


class Sources:
    """The tail and the catch-ups."""

    def __init__(self, floor: Snapshot) -> None:
        """Begin at the floor that the leader's row has."""
        self.clock = 0
        self.tail = Mark(0, floor)
        self.catch_ups: dict[Hashable, CatchUp] = {}
        self.open: list[OpenRows] = []
        """Statements with rows that are not settled."""
        self._of: dict[int, OpenRows] = {}

    def tick(self) -> int:
        """Let the clock go on, and return its time: what was read before has an earlier one."""
        self.clock += 1
        return self.clock

    def is_level(self) -> bool:
        """Return whether the floor has left what another session read."""
        return self.floor(set()).order > 0

    def put_apart(self, group: Hashable) -> None:
        """Begin a catch-up of a group where the tail is. Until it joins again, the tail leaves it out.

        While there is one of THE_REST no other one begins, because its list may hold the same rows.
        """
        if group not in self.catch_ups and THE_REST not in self.catch_ups:
            self.catch_ups[group] = CatchUp(group, self.tail, OpenRows(self.tail))

    def tail_read(self, rows: int, size: int, full: list[Hashable]) -> Read:
        """Return a read of all groups without a catch-up, and of those whose catch-up is done.

        Args:
            rows: the most rows.
            size: the most bytes.
            full: groups that have their share of the memory. They do not join.
        """
        done = [one for one in self.catch_ups.values() if one.is_done and one.group not in full]
        if THE_REST in self.catch_ups:  # the tail reads nothing: what else is done goes on with another list
            for one in done:
                if one.group != THE_REST:
                    one.until, one.is_done = None, False
            done = [one for one in done if one.group == THE_REST]
        joins = tuple((one.group, one.base.snapshot) for one in done)
        compare = self.tail.order == 0
        apart = frozenset(self.catch_ups)
        return Read("tail", rows, size, self.tail.snapshot, compare=compare, apart=apart, joins=joins)

    def list_read(self, group: Hashable, rows: int, size: int) -> Read:
        """Return a read of the next page of a catch-up."""
        one = self.catch_ups[group]
        if one.until is None:
            one.until = self.tail
        compare, apart = one.base.order == 0, frozenset(self.catch_ups)
        return Read(
            "list",
            rows,
            size,
            one.base.snapshot,
            one.until.snapshot,
            compare=compare,
            group=group,
            apart=apart,
        )

    def next_list(self, full: list[Hashable]) -> Hashable:
        """Return the group whose catch-up is read next, in turn, or None; one with its share of the memory waits."""
        for group, one in self.catch_ups.items():
            if not one.is_done and group not in full:
                self.catch_ups[group] = self.catch_ups.pop(group)
                return group
        return None

    def add_tail(self, page: Page) -> int:
        """Note a page of the tail. What did not fit has a catch-up from now on, from where it was read up to.

        Returns:
            When what it has was seen, by the clock.
        """
        bases = [self.tail]
        for group, _ in page.read.joins:
            if group in page.heavy:  # not level yet: another list, from where the last one ended
                self.catch_ups[group].until, self.catch_ups[group].is_done = None, False
            else:
                bases.append(self.catch_ups.pop(group).base)
        for group in page.heavy:
            self.put_apart(group)
        self._track(page.rows, OpenRows(min(bases)))
        self.tail = Mark(self.tick(), page.snapshot)
        return self.tail.order

    def add_list(self, page: Page) -> int:
        """Note a page of a catch-up. The list's rows stay open together: a floor within a list has no snapshot.

        Returns:
            When what the list has was seen, by the clock.
        """
        one = self.catch_ups[page.read.group]
        assert one.until is not None  # noqa: S101  (the page was asked for)
        self._track(page.rows, one.rows)
        seen_at = one.until.order
        if not page.has_more:
            one.base, one.until, one.is_done = one.until, None, True
            one.rows = OpenRows(one.base)
        return seen_at

    def _track(self, rows: Iterable[Row], one: OpenRows) -> None:
        new = set(map(_id, rows)).difference(self._of)
        self._of.update(dict.fromkeys(new, one))
        if new and not one.count:
            self.open.append(one)
        one.count += len(new)

    def floor(self, settled: set[int]) -> Mark:
        """Return the snapshot of which all rows are settled (R3), if those of `settled` are, too.

        Nothing is ahead of the tail: what a catch-up has read is at a mark that the tail had.
        """
        settling = Counter(map(self._of.get, settled))
        bases = [one.base for one in self.open if one.count > settling[one]]
        return min([*bases, *(one.base for one in self.catch_ups.values())], default=self.tail)

    def settle(self, settled: set[int]) -> None:
        """Forget rows that a write has settled (R3)."""
        for one, count in Counter(self._of.pop(row_id, None) for row_id in settled).items():
            if one is not None:
                one.count -= count
        self.open = [one for one in self.open if one.count]
