"""The reader: the next pages of all groups of lanes, each with the progress that it brings."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from psycopg import IsolationLevel

from outbox_relay.publisher.finder import EXPIRED, ID, POSITION, WAITING, Finder, Part, Poll, RawRow, Scope
from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.listing import Listing
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.prepared import Rider
from outbox_relay.publisher.read_ahead import ListAhead, ReadAhead
from outbox_relay.publisher.snapshot import BEGINNING, START, Progress, Snapshot

T = TypeVar("T")

MOST_APART = 7
"""Topics of a group whose lists are open; the rest is one list when it is still more than a page. As many again may
be level, and are polled by themselves until they join the rest."""


@dataclass(slots=True)
class Page:
    """Rows in position order, for the lanes of a group: from the progress `before` to `progress`."""

    group: Group
    rows: list[RawRow]
    before: Progress
    progress: Progress
    has_barrier: bool = False
    """Whether a record was committed behind the poll that found its rows, or the poll found them flushed, and the lanes
    ours. A page of a list has none: its own statement did not ask."""


class Reader:
    """Reads pages. What it has read is remembered in the groups only: a successor starts from the records."""

    def __init__(self, finder: Finder, partitions: LivePartitions, ahead: ReadAhead) -> None:
        self._finder = finder
        self._ahead = ahead
        self._partitions = partitions
        self._lists: list[Listing] = []
        self._lists_ahead: list[ListAhead] = []
        self._apart: list[Group] = []
        self._served = 0
        self.newest = 0
        self.quantum = finder.page_size
        """Messages of a page of a topic that is read apart."""

    @property
    def expects_flushed(self) -> bool:
        """Whether what the next poll finds will probably need no barrier, as what was found last."""
        return self._finder.found_flushed

    def here(self) -> Snapshot:
        """Return a snapshot, taken after `newest` was read, whose xmax is above the xids of all that run."""
        return self._finder.beyond_all_running()

    @staticmethod
    def polls_once(groups: Iterable[Group]) -> bool:
        """Return whether one group of these is polled, and so by one statement in no transaction."""
        return sum(group.is_level and not group.one_by_one for group in groups) == 1

    def read(
        self, groups: Iterable[Group], *, of_lists: int = 1, rider: Rider | None = None
    ) -> Iterator[Page]:
        """Yield one page of each group that has one; of topics that are read apart last, of `of_lists` at most.

        Args:
            groups: what to read.
            of_lists: how many topics that are read apart at most.
            rider: a statement that travels with the first poll, if that is of one group.
        """
        level, listed = [], []
        for group in groups:
            if group.is_level and group.one_by_one:
                self._list_difference(group)
            if group.is_level:
                level.append(group)
            elif group.is_listed:
                listed.append(group)
            else:
                yield from self._next_of_backlog(group)
        if level:
            yield from self._poll(level, level, rider)
        if listed:
            yield from self._next_apart(listed, of_lists)

    def _poll(self, groups: list[Group], turn: list[Group], rider: Rider | None = None) -> Iterator[Page]:
        """Yield the pages of these groups; `turn` are all that were level as the turn began."""
        polls = self._answers(groups, rider)
        for group, poll in zip(groups, polls, strict=True):
            before = group.progress
            if poll.more and not poll.rows and self._split(group, poll, turn):
                yield from self._poll([group], turn)
                continue
            partial = before.is_partial
            if poll.more:
                # A difference of more than a page is listed once and taken by id, in the turns that follow: polling it
                # page by page would read all that is left for every page.
                after = poll.rows[-1][POSITION] if poll.rows else 0
                group.progress = Progress(poll.snapshot, before.snapshot, after, partial)
                if not group.is_listed:
                    self._list(group)
            else:
                group.progress = Progress(poll.snapshot)
            if partial and poll.rows:
                published = self._finder.published(poll.rows)
                poll.rows = [row for row in poll.rows if row[POSITION] not in published]
            if poll.rows:
                yield Page(group, poll.rows, before, group.progress, poll.needs_no_barrier)
            elif poll.more and not group.is_level and not group.is_listed:
                yield from self._next_of_backlog(group)

    def _split(self, group: Group, poll: Poll, turn: Iterable[Group]) -> bool:
        """Read the largest topics of a large difference apart, if it is of several; return whether it was done.

        Args:
            group: the group that was polled.
            poll: what was found.
            turn: all that were level as the turn began; some may be parts of the same split.
        """
        parts = 0 if group.split is None else len(group.split.topics)
        # One that is level joins the rest as soon as that is, and so never where the rest is a list each time.
        level = sum(one.split is group.split and one.topic is not None and one.is_level for one in turn)
        places = min(MOST_APART - (parts - level), 2 * MOST_APART - parts)
        if group.topic is not None or group.one_by_one or places <= 0:
            return False
        known, found = group.progress, poll.found
        if known.is_partial:
            # From a floor on, most of what topics have without a backlog is published: it must not count.
            found = self._over_what_is_there(
                lambda: self._finder.unpublished_by_topic(known.snapshot, poll.snapshot, scope_of(group))
            )
            if sum(found.values()) <= self._finder.page_size:
                return False
        # The largest of what was found, and all that are more than an eighth of it.
        counts = sorted(found.items(), key=lambda item: -item[1])
        heavy = [topic for topic, count in counts if count * 8 > sum(found.values())] or [counts[0][0]]
        # At this snapshot, which the group has not reached: it is polled again, without them.
        self._apart += group.read_apart(heavy[:places], poll.snapshot)
        return True

    def take_apart(self) -> list[Group]:
        """Return, once, the groups that came of splits."""
        apart, self._apart = self._apart, []
        return apart

    def _next_apart(self, groups: list[Group], most: int) -> Iterator[Page]:
        """Yield the next page of the topics whose lists are ready, those first that waited for longest."""
        for group in groups:
            self._begin_list(group).begin(self._partitions.tables, self.quantum)
        ready = [group for group in groups if group.ahead is not None and group.ahead.is_ready]
        for group in sorted(ready, key=lambda group: group.served)[:most]:
            self._served += 1
            group.served = self._served
            yield from self._take_apart(group, self._begin_list(group))

    def _begin_list(self, group: Group) -> ListAhead:
        if group.ahead is None:
            group.ahead = self._ahead.list(group.progress, scope_of(group))
            self._lists_ahead.append(group.ahead)
        return group.ahead

    def _take_apart(self, group: Group, ahead: ListAhead) -> Iterator[Page]:
        try:
            rows, is_last = ahead.take()
        except psycopg.errors.UndefinedTable:
            # The session may have noticed before that a partition was dropped; the list does not know it.
            if not self._partitions.forget_dropped() and self._partitions.tables == ahead.tables:
                raise
            return
        before = group.progress
        if is_last:
            group.ahead = None
            group.progress = Progress(before.snapshot)
        else:
            ahead.begin(self._partitions.tables, self.quantum)
            group.progress = Progress(before.snapshot, before.base, rows[-1][POSITION], before.is_partial)
        if rows:
            yield Page(group, rows, before, group.progress)

    def _answers(self, groups: list[Group], rider: Rider | None = None) -> list[Poll]:
        while True:
            polls = self._over_what_is_there(lambda: self._poll_all(groups, rider))
            self.newest = max(poll.newest for poll in polls)
            if not self._partitions.reaches_beyond(self.newest):
                return polls
            # Rows may lie in a partition that the statement did not name: forget this answer.
            known = self._partitions.tables
            self._partitions.refresh(self.newest)
            if self._partitions.tables == known:
                return polls  # there is no such partition yet, so there is no row in it

    def _poll_all(self, groups: list[Group], rider: Rider | None) -> list[Poll]:
        if len(groups) == 1:
            return [self._finder.poll(groups[0].progress.snapshot, scope_of(groups[0]), rider)]
        return self._finder.statements.redo(lambda: self._in_one_snapshot(groups))

    def _over_what_is_there(self, read: Callable[[], T]) -> T:
        """Read over the live partitions; once more when one has been dropped meanwhile."""
        while True:
            self._finder.name_partitions(self._partitions.tables)
            try:
                return read()
            except psycopg.errors.UndefinedTable:
                if not self._partitions.forget_dropped():
                    raise

    def _in_one_snapshot(self, groups: list[Group]) -> list[Poll]:
        conn = self._finder.conn
        conn.isolation_level = IsolationLevel.REPEATABLE_READ
        try:
            with conn.transaction():
                return [self._finder.poll(group.progress.snapshot, scope_of(group)) for group in groups]
        finally:
            conn.isolation_level = None

    def _next_of_backlog(self, group: Group) -> Iterator[Page]:
        if group.backlog is None:
            self._open(group)
        elif not group.backlog and group.listing is not None:
            self._list(group)
        size = min(group.looks, self._finder.page_size) if group.one_by_one else self._finder.page_size
        ids = (group.backlog or array("q"))[:size]
        before = group.progress
        rows, settled = self._read(ids, before.snapshot)
        if group.one_by_one:
            rows, settled = self._up_to_a_message(group, ids, Part(rows, settled))
        if group.backlog:
            del group.backlog[:settled]
        if group.backlog or group.listing is not None:
            if rows:
                group.progress = Progress(before.snapshot, before.base, rows[-1][POSITION], before.is_partial)
        else:
            group.backlog = None
            group.trial = group.trial and bool(rows)
            group.progress = Progress(before.snapshot)
        if group.backlog and not group.one_by_one:
            self._ahead.start(group.backlog[:size], before.snapshot)
        if rows:
            yield Page(group, rows, before, group.progress)

    def _up_to_a_message(self, group: Group, ids: array[int], part: Part) -> Part:
        """Cut a page behind its first message that is to be published; without one, the next has twice as many rows.

        What waits or has expired is not produced, so it may come with the message: each of it would cost a turn.
        """
        for number, row in enumerate(part.rows):
            if row[WAITING] is row[EXPIRED] is None:
                group.looks = 1
                return Part(part.rows[: number + 1], ids.index(row[ID]) + 1)
        group.looks = min(2 * group.looks, self._finder.page_size)
        return part

    def _read(self, ids: array[int], current: Snapshot) -> Part:
        if not ids:
            return Part([], 0)
        part = self._ahead.take(ids)
        return self._finder.page(ids, current) if part is None else part

    def _list_difference(self, group: Group) -> None:
        """Take what a careful group has still to publish as a list: a poll would bring a whole page.

        Up to what was visible as its refused message was read: what has committed since need not go one by one.
        """
        known = group.progress
        seen = None if group.careful is None else group.careful.seen
        if seen is None or seen.age < known.snapshot.age:
            (poll,) = self._answers([group])
            seen = poll.snapshot
        group.progress = Progress(seen, known.snapshot, 0, known.is_partial)
        self._list(group)

    def _open(self, group: Group) -> None:
        """Find out what a group that joins has still to publish."""
        snapshot, self.newest = self._finder.here()
        if group.progress == START:
            group.progress = Progress(snapshot, BEGINNING, 0)
        # Its rows may lie in any partition up to the newest; no poll has checked the names for it yet.
        self._partitions.refresh(self.newest)
        self._list(group)

    def _list(self, group: Group) -> None:
        progress = group.progress
        if group.listing is None:
            group.listing = self._over_what_is_there(lambda: self._finder.backlog(progress, scope_of(group)))
            self._lists.append(group.listing)
        group.backlog = group.listing.take()
        if not group.listing.is_open:
            self._lists.remove(group.listing)
            group.listing = None

    def close_lists(self, groups: Iterable[Group]) -> None:
        """Close the lists of groups that are no more; `groups` are those that there are."""
        groups = list(groups)
        if self._lists_ahead:
            kept = [group.ahead for group in groups if group.ahead is not None]
            for unused in (ahead for ahead in self._lists_ahead if ahead not in kept):
                unused.close()
            self._lists_ahead = kept
        if not self._lists:
            return
        used = [group.listing for group in groups]
        for listing in [listing for listing in self._lists if listing not in used]:
            listing.close()
            self._lists.remove(listing)


def scope_of(group: Group) -> Scope:
    """Return what a group reads."""
    return Scope(frozenset(group.lanes), group.topic, group.apart)
