"""PostgreSQL's side of reading: the statement of each `Read`, and what it returned."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import IsolationLevel

from outbox.statements import Statements
from outbox_relay.publisher.core.values import THE_REST, Read, Scope
from outbox_relay.publisher.finder import (
    ID,
    POSITION,
    TOPIC,
    WAITING,
    WITHHELD,
    Finder,
    RawRow,
    Slice,
)
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.polls import Poll
from outbox_relay.publisher.prepared import Rider
from outbox_relay.publisher.read_ahead import QUANTUM, ListAhead, ReadAhead
from outbox_relay.publisher.snapshot import EVERYTHING, Difference, Snapshot

STATEMENTS = Statements("outbox_relay/publisher/finder.sql")

SORT_S = 0.25
"""So long a tail finds groups that do not fit its page. Each poll of it reads again what those before it left out."""
AHEAD = 20_000
"""Messages of lists that are read ahead, in all. The memory does not count them."""
LEAST_AHEAD = 80
FRESH_S = 0.25
"""For how long a poll's answer holds that its rows are flushed and the lanes are ours."""
MOST_APART = 250
"""Groups that are read apart: each has a list of its own, and is left out of polls. With more of them, all that are not
read apart are one list, and what is new waits behind it."""
_TOPIC, _WAITING = itemgetter(TOPIC), itemgetter(WAITING)


@dataclass(slots=True)
class Brought:
    """What a statement returned; see `Page` in the core. `waiting`: of a page of a hold, the ids in doubt.

    `asked_at`: when a statement was sent that returns whether its rows are flushed, and the lanes ours; of a page of a
    list, when one has found that the lanes are.
    `has_new_topics`: what was read of its topics may be younger than what is flushed.
    """

    raws: list[RawRow]
    snapshot: Snapshot
    has_more: bool = False
    heavy: tuple[Hashable, ...] = ()
    is_flushed: bool = False
    waiting: Collection[int] | None = None
    asked_at: float = 0.0
    has_new_topics: bool = False


@dataclass(slots=True)
class Announced:
    """What the table has announced of a hold, in order: ids, those in doubt, and whether more of it wait."""

    ids: array[int]
    doubtful: frozenset[int]
    has_more: bool


@dataclass(slots=True)
class Reads:
    """Executes the core's reads for a set of lanes."""

    finder: Finder
    partitions: LivePartitions
    ahead: ReadAhead
    lanes: frozenset[int]
    announced: dict[Scope, Announced] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Ids that waited for a hold and are not to be published any more."""
    hashes: dict[str, int] = field(default_factory=dict)
    """Of topics, as the finder's index holds them. Those with one hash are one group of the core."""
    newest: int = 0
    ours_at: float = -inf
    """When the last poll was sent that found the lanes ours (monotonic seconds)."""
    has_tail: bool = False
    """Whether the last tail brought messages: then pages of lists are short."""
    _lists: dict[Hashable, ListAhead] = field(default_factory=dict)

    def group_of(self, topic: str) -> Hashable:
        """Return the group of a topic."""
        return self.hashes.get(topic, topic)

    def learn_groups(self, topics: Collection[str]) -> None:
        """Read the hashes of topics that are not known yet, before any row of them is given to the core."""
        names = [name for name in topics if name not in self.hashes]
        if names:
            found = self.finder.conn.execute(STATEMENTS["hashes"], {"topics": names}, prepare=True)
            self.hashes.update(found.fetchall())

    def execute(self, read: Read, rider: Rider | None = None) -> Brought | None:
        """Execute a read; return None if its list is not ready.

        Args:
            read: what to read.
            rider: a statement that travels behind the poll of a tail.
        """
        if read.kind == "list":
            return self._list(read)
        return self._drain(read) if read.kind == "drain" else self._tail(read, rider)

    # The tail -----------------------------------------------------------------------------------------------------

    def _tail(self, read: Read, rider: Rider | None) -> Brought:
        base = read.base
        assert base is not None  # noqa: S101  (of a tail)
        self.finder.page_size, self.finder.page_bytes = _rounded(read.rows), _rounded(read.size)
        heavy: list[Hashable] = []
        joins = dict(read.joins)
        until = time.monotonic() + SORT_S
        if THE_REST in read.apart:
            base = joins.pop(THE_REST, None)
            if base is None:
                snapshot, self.newest = self.finder.here()
                return Brought([], snapshot)
        while True:
            began = time.monotonic()
            # What joins has a base of its own, so it is read by a poll of its own.
            scope = self._without({*read.apart, *heavy})
            polls = self._polls(base, scope, joins, rider)
            poll = polls[None]
            found = self._too_many(read, polls, scope, joins)
            if not found:
                break
            is_late = bool(heavy) and began > until
            if (
                is_late
                or THE_REST in (*read.apart, *found)
                or len({*read.apart, *heavy, *found}) > MOST_APART
            ):
                heavy += (*joins, THE_REST)
                poll.rows = []
                polls = {None: poll}
                break
            heavy += found
            joins = {group: snapshot for group, snapshot in joins.items() if group not in heavy}
        rows = [row for one in polls.values() for row in one.rows]
        if len(polls) > 1:
            rows.sort(key=lambda row: row[POSITION])
        if read.compare and poll.rows:
            known = self.finder.published(poll.rows)
            rows = [row for row in rows if row[POSITION] not in known]
        self.newest, self.has_tail = poll.newest, bool(rows)
        if poll.needs_no_barrier:
            self.ours_at = began
        return Brought(
            rows, poll.snapshot, heavy=tuple(heavy), is_flushed=poll.needs_no_barrier, asked_at=began
        )

    def _without(self, groups: Collection[Hashable]) -> Slice:
        return Slice(self.lanes, without=frozenset(group for group in groups if isinstance(group, int)))

    def _polls(
        self, base: Snapshot, scope: Slice, joins: dict[Hashable, Snapshot], rider: Rider | None
    ) -> dict[Hashable, Poll]:
        """Poll the tail (None) and what joins it, in one snapshot."""
        while True:
            self.finder.name_partitions(self.partitions.tables)
            try:
                if joins:
                    polls = self.finder.statements.redo(lambda: self._together(base, scope, joins))
                else:
                    polls = {None: self.finder.poll(base, scope, rider)}
            except psycopg.errors.UndefinedTable:
                if not self.partitions.forget_dropped():
                    raise
                continue
            newest = polls[None].newest
            if not self.partitions.reaches_beyond(newest):
                return polls
            # Rows may lie in a partition that the statement did not name: forget this answer.
            known = self.partitions.tables
            self.partitions.refresh(newest)
            if self.partitions.tables == known:
                return polls  # there is no such partition yet, so there is no row in it

    def _together(
        self, base: Snapshot, scope: Slice, joins: dict[Hashable, Snapshot]
    ) -> dict[Hashable, Poll]:
        conn = self.finder.conn
        conn.isolation_level = IsolationLevel.REPEATABLE_READ
        try:
            with conn.transaction():
                polls: dict[Hashable, Poll] = {None: self.finder.poll(base, scope)}
                for group, snapshot in joins.items():
                    polls[group] = self.finder.poll(snapshot, self._of_group(group))
                return polls
        finally:
            conn.isolation_level = None

    def _of_group(self, group: Hashable) -> Slice:
        assert isinstance(group, int)  # noqa: S101  (rows come with the hash of their topic)
        return Slice(self.lanes, topic=group)

    def _too_many(
        self, read: Read, polls: dict[Hashable, Poll], scope: Slice, joins: dict[Hashable, Snapshot]
    ) -> list[Hashable]:
        """Return the groups to leave out: what was found is more than a page. None: it fits."""
        full = [group for group in joins if polls[group].more]
        if not full and joins and sum(len(poll.rows) for poll in polls.values()) > read.rows:
            full = list(joins)
        poll = polls[None]
        if not poll.more:
            return full
        found: dict[Any, int] = poll.found
        if poll.rows:  # it was cut at the bytes of a page
            found = self._bytes_of(poll.rows)
        elif read.compare:
            # Most of what the difference to a floor begins with is published: it must not count.
            base = read.base
            assert base is not None  # noqa: S101  (of a tail)
            found = self.finder.unpublished_by_topic(base, poll.snapshot, scope)
        # The largest ones, until half of what was found is left: the next poll finds more of the others.
        total = left = sum(found.values())
        for group, count in sorted(found.items(), key=lambda item: -item[1]):
            if left * 2 <= total:
                break
            full.append(group)
            left -= count
        return full

    def _bytes_of(self, rows: list[RawRow]) -> dict[Hashable, int]:
        """Return the bytes of each group of a page that was cut; of a row without a name they are THE_REST's."""
        topics = topics_of(rows)
        self.learn_groups(topics)
        found: dict[Hashable, int] = {}
        for row in rows:
            group = THE_REST if row[TOPIC] is None else self.hashes[row[TOPIC]]
            fields = sum(len(value) for value in row if isinstance(value, bytes | str))
            size = fields + (row[WITHHELD] or 0)
            found[group] = found.get(group, 0) + size
        return found

    # Catch-ups and holds ------------------------------------------------------------------------------------------

    def _list(self, read: Read) -> Brought | None:
        base, until = read.base, read.until
        assert base is not None and until is not None  # noqa: S101, PT018  (of a list)
        one = self._lists.get(read.group)
        if one is None:
            difference = Difference(base, until, read.compare)
            scope = self._without(read.apart) if read.group == THE_REST else self._of_group(read.group)
            one = self._lists[read.group] = self.ahead.list(difference, scope)
        size = min(read.rows, max(LEAST_AHEAD, AHEAD // (len(read.apart) or 1)))
        if self.has_tail:
            size = min(size, QUANTUM)
        one.begin(self.partitions.tables, size)
        if not one.is_ready:
            return None
        try:
            rows, is_last = one.take()
        except psycopg.errors.UndefinedTable:
            # The session may have noticed before that a partition was dropped; the list does not know it.
            if not self.partitions.forget_dropped() and self.partitions.tables == one.tables:
                raise
            return None
        if is_last:
            del self._lists[read.group]
        else:
            one.begin(self.partitions.tables, size)  # as large as this one: memory has room for two
        return Brought(rows, until, has_more=not is_last, asked_at=self.ours_at)

    def close_lists(self) -> None:
        """Close all lists."""
        for one in self._lists.values():
            one.close()
        self._lists.clear()

    def _drain(self, read: Read) -> Brought:
        announced = self.announced.pop(read.scope)
        ids = announced.ids[: read.rows]
        rows: list[RawRow] = []
        settled = 0
        if ids:
            self.finder.page_size, self.finder.page_bytes = len(ids), read.size
            rows, settled = self.finder.page(ids, EVERYTHING)
        self.gone.update(set(ids[:settled]).difference(row[ID] for row in rows))
        has_more = announced.has_more or settled < len(announced.ids)
        return Brought(rows, EVERYTHING, has_more=has_more, waiting=announced.doubtful)


def _rounded(number: int) -> int:
    """Return the power of two below a number: pages of many sizes would be as many kinds of polls."""
    return 1 << (number.bit_length() - 1)


def due_of(raws: list[RawRow]) -> str | None:
    """Return when the first message of a page is due that waits for its time."""
    return min((due for due in set(map(_WAITING, raws)) if due is not None), default=None)


def topics_of(raws: list[RawRow]) -> set[str]:
    """Return the topics of a page."""
    return {topic for topic in set(map(_TOPIC, raws)) if topic is not None}
