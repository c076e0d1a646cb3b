"""Drains: publishing what is held behind a message that failed, in order. See parked.py for what can happen between."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf

from outbox_relay.publisher import parked
from outbox_relay.publisher.batch import Batch, Stop
from outbox_relay.publisher.counts import Counts
from outbox_relay.publisher.errors import BrokenError
from outbox_relay.publisher.failures import FailedMessages
from outbox_relay.publisher.finder import EXPIRED, ID, POSITION, TOPIC, WAITING, Finder, RawRow
from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.parked import DRAIN_PAGE, TOPIC_PAGE, KeyDrain
from outbox_relay.publisher.reader import Page
from outbox_relay.publisher.recovery import naming_defects
from outbox_relay.publisher.snapshot import EVERYTHING, Progress
from outbox_relay.publisher.stops import Stops
from outbox_relay.text.logs import Log

ASK_EVERY_S = 1.0
"""How often requests for drains are read."""
TOPICS_KEPT = 1_000

log = Log("relay")


class DrainedKeys(FailedMessages):
    """The part of a session that parks keys and drains them."""

    _finder: Finder
    _stops: Stops
    _pages: list[Page]
    _leaving: frozenset[int]
    _behind: set[int]
    _burdened: frozenset[int]
    _drain_at = 0.0
    _count_at = 0.0
    counts: Counts
    _topics_read: dict[str, float]
    """When topics were read again for a drain; many keys of one topic are often requested together."""
    _hashes: dict[str, int]
    """Of topics that are parked, while others are read apart."""

    def _drain_next(self) -> bool:
        """Publish the next messages of a key whose drain was requested; return whether there were any.

        The first message of a drain is alone on the wire, because it has failed before.
        """
        now = time.monotonic()
        if now >= self._count_at:
            self._count_at = now + ASK_EVERY_S
            self._count_again()
            if self._parked.announced:
                self._parked.doubt_announced(self._parked.announced)
        if self._drain is None and self._parked.held.is_empty:
            return False
        lanes = self._drainable()
        if self._drain is None:
            if now < self._drain_at or not lanes:
                return False
            self._drain_at = now + ASK_EVERY_S
            self._drain = self._next_drain(lanes)
        drain = self._drain
        if drain is None:
            return False
        if drain.lane not in lanes or drain.is_put_off or not self._may_drain(drain):
            self._put_off(drain)
            return False
        if not self._settle():
            return False
        # Waiting may have set the lane aside.
        if drain.lane not in self._drainable():
            return False
        # Nothing behind a message that is known to fail is worth reading.
        is_suspect = not drain.pages or drain.reached < self._suspects.get(drain.number, 0)
        most = 1 if is_suspect else TOPIC_PAGE if drain.is_topic else DRAIN_PAGE
        ids = self._parked.announce(drain, most)
        if ids is None:
            self._drain = None
            if drain.is_topic:
                # Chosen from memory: it would be chosen again, and nothing else, until that session ends.
                self._waking.pass_over(drain.number, ASK_EVERY_S)
                self._drain_at = now
            else:
                self._drain_at = now + ASK_EVERY_S
            return False
        if not self._recorder.barrier_counts():
            self._parked.withdraw([drain.lane])
            self._drain, self._drain_at = None, now + ASK_EVERY_S
            return False
        self._publish_held(drain, ids, most)
        return True

    def _next_drain(self, lanes: Collection[int]) -> KeyDrain | None:
        """Return the drain to begin: of a topic, or of a key; first of a key where a topic has too many of them."""
        is_limited = bool(self._parked.held.limited)
        topic = None if is_limited else self._open_topic(lanes)
        drain = topic or self._parked.requested(lanes, self._unread(lanes), self._waking.open)
        return drain or (self._open_topic(lanes) if is_limited else None)

    def _count_again(self) -> None:
        """Count what is held in lanes that may hold no more of a topic: operators may have given some of it up."""
        counted = self._parked.held.messages_of
        full = {lane for (lane, _), messages in counted.items() if messages >= parked.MOST_HELD}
        if full:
            unrecorded = list(self._publisher.unrecorded())
            full.difference_update(batch.drain.lane for batch in unrecorded if batch.drain is not None)
            claims = [claim for batch in unrecorded for claim in batch.claims]
            full.difference_update(claim.lane for claim in claims if (claim.number or 0) > 0)
        if full:
            self._parked.count(full)

    def _open_topic(self, lanes: Collection[int]) -> KeyDrain | None:
        """Return the drain of a topic that is parked in one of these lanes, and can be published to again."""
        open_ = self._waking.open
        read = set(lanes).difference(*(group.lanes for group in self._groups if not group.is_read))
        rows = {
            number: (lane, topic)
            for (lane, topic), number in self._parked.held.topics.items()
            if topic in open_
            and self._parked.held.messages_of[lane, topic] < parked.MOST_HELD
            and (lane in read or (lane in lanes and self._is_read(lane, topic)))
        }
        number = self._waking.first(rows)
        return (
            None
            if number is None
            else KeyDrain(rows[number][0], number, (*rows[number], None, None), time.monotonic())
        )

    def _unread(self, lanes: Collection[int]) -> list[int]:
        """Return the rows of the topics that are not drained yet, although that was requested: see `_is_read`."""
        topics = self._parked.held.topics
        if not topics or all(group.is_read for group in self._groups):
            return []
        return [
            number
            for (lane, topic), number in topics.items()
            if lane in lanes and not self._is_read(lane, topic)
        ]

    @property
    def _ends_drain(self) -> bool:
        """Whether the last page of a drain is on the wire: it was not waited for, because the relay is to stop."""
        return bool(self._ended) and any(batch.drain is not None for batch in self._publisher.in_flight)

    def _catch_up(self, groups: Iterable[Group]) -> None:
        """Let the keys of lanes be drained that were read, and published, up to what was committed."""
        for group in groups:
            if group.is_level and not group.paused:
                self._behind -= group.lanes

    def _stop_early(self, stop: Stop) -> None:
        """Mark the progress of a lane that stops before it has caught up: more than that may be published of it.

        What earlier claims without a message passed over lies behind the stop then, and may be drained meanwhile.
        Without the mark who goes on from the stop publishes that again.
        """
        if stop.lane in self._behind:
            stop.progress = replace(stop.progress, is_partial=True)

    def _free_key(self, number: int) -> None:
        """Read and publish the messages of a key again: the row of the key was deleted with the record of its drain."""
        key = self._ended.pop(number, None)
        if key is not None:
            self._suspects.pop(number, None)
            self._parked.held.free(key, number)
            self._stops.hurry([key[0]])
            self._count_at = 0.0  # its topic may have held too much
            what = "topic" if number < 0 else "key"
            log.info(f"{what} is parked no more", topic=key[1], lane=key[0])

    def _forget_drained(self, read: Iterable[Group]) -> None:
        """Forget what was drained of lanes all of whose messages were read since; `read` are the groups of a turn."""
        drained = self._parked.held.drained
        if drained:
            behind = [group for group in self._groups if not group.is_read]
            level = set[int]().union(*(group.lanes for group in read)).difference(*(g.lanes for g in behind))
            gone = set(drained.values()) - self._parked.lease.lanes
            for position in [one for one, lane in drained.items() if lane in level or lane in gone]:
                del drained[position]

    def _put_off(self, drain: KeyDrain) -> None:
        """End the announcement of a drain whose lane is not read, once nothing of the drain is on the wire.

        What else of its lane is on the wire was not announced: with a flood there may always be some. It dies before
        that statement: the announcement stays, and its successor takes what was listed for doubtful. It is paused past
        its lease before it: the statement finds another epoch, and the successor has read the announcement.
        """
        if drain.is_announced:
            lanes = {batch.drain.lane for batch in self._publisher.unrecorded() if batch.drain is not None}
            if drain.lane in lanes:
                return
            self._parked.withdraw([drain.lane])
        self._drain = None

    def _drainable(self) -> set[int]:
        """Return the lanes that are being read, and not one message at a time, and those that are stopped.

        A lane is left out after it was taken, or after a stop, until it is polled: what earlier claims without a
        message passed over is not recorded as read in the database, and would be published again. All its topics may
        be read much later, next to one with a backlog that has no end; what the drain records is then their floor.
        """
        if self._pages or self._burdened or self._publisher.aside:
            return set()
        going = set[int]().union(*(group.lanes for group in self._groups if not group.paused))
        going -= set[int]().union(*(group.lanes for group in self._groups if group.one_by_one))
        unrecorded = [batch for batch in self._publisher.unrecorded() if batch.drain is None]
        stopped = {
            lane
            for lane, stop in self._stops.now().items()
            if not stop.in_flight and self._recorder.has(stop, unrecorded)
        }
        return (
            (going - self._behind | stopped)
            - self._leaving
            - self._parked.announced
            - self._recorder.unwritten
        )

    def _publish_held(self, drain: KeyDrain, ids: array[int], most: int) -> None:
        """Produce the messages of a key that were announced, and note what becomes of it."""
        found: list[RawRow] = []
        rows: list[RawRow] = []
        settled = 0
        if ids:
            found, settled = self._finder.page(ids, EVERYTHING)
            rows = [(*row[:WAITING], None, *row[WAITING + 1 :]) for row in found if row[EXPIRED] is None]
        expired = {row[ID] for row in found if row[EXPIRED] is not None}
        part = replace(drain, expired=expired)
        # Claims alone record no progress. This does, for a successor: how far the lane is read, all of which is
        # published and recorded; next to a topic that is read apart that is the floor, because what is drained may
        # lie beyond it. If the lane is stopped, its row has its progress.
        group = next((one for one in self._groups if one.topic is None and drain.lane in one.lanes), None)
        recorded = self._recorder.recorded[drain.lane]
        progress = recorded if group is None else self._as_recorded(group, group.progress)
        speaks_for = () if drain.lane in self._stops.now() else (drain.lane,)
        if not drain.pages:
            self._read_topic_again(drain)
        self._publisher.topics.prepare({row[TOPIC] for row in rows if row[TOPIC] is not None})
        with naming_defects():
            batch = self._publisher.publish(rows, progress, progress, [drain.lane], part)
            is_cut = batch.ended_at is not None  # the local queue was full
            settled_rows = batch.messages + sum(not claim.is_of_topic for claim in batch.claims)
            if part.failed is None and not (is_cut or part.is_put_off) and settled_rows != len(rows):
                raise BrokenError(f"a drain of lane {drain.lane} left out messages of its key", {})
        batch.lanes, batch.progress = speaks_for, progress
        if most == 1 and rows:
            batch.alone = rows[0]
        gone_out = set(batch.positions)
        produced = [row for row in rows if row[POSITION] in gone_out]
        self._note_claims(batch.claims)
        # What was listed and is not COMMITTED any more is not to be published.
        gone = set(ids[:settled]).difference(expired, (row[ID] for row in rows))
        part.done = [*(row[ID] for row in produced), *gone]
        is_done = settled == len(ids) and settled_rows == len(rows)
        part.is_all = is_done and len(ids) < most
        if is_done:
            drain.since = drain.listed_to + 1
        if not drain.is_topic:
            self._parked.held.messages_of[drain.lane, drain.key[1]] -= len(part.done) + len(expired)
        if not drain.is_topic:
            self._parked.held.drained.update(dict.fromkeys((row[POSITION] for row in produced), drain.lane))
        if settled_rows:
            drain.reached = rows[settled_rows - 1][POSITION]
        self._note_drained(drain, part, batch)
        if most == 1 or part.is_put_off or self._drain is None:
            # Recorded before anything else of the lane is read, unless its partition is slow: then the lane is set
            # aside, and not read before that. The next request is read when this one is recorded, too.
            is_settled = self._settle()
            if is_settled and part.is_put_off:
                self._put_off(drain)

    def _may_drain(self, drain: KeyDrain) -> bool:
        """Return whether the next page of a drain may be published, as far as its lane is read."""
        return not drain.is_topic or self._is_read(drain.lane, drain.key[1])

    def _is_read(self, lane: int, topic: str) -> bool:
        """Return whether no list, nor a poll, can bring what waits for a topic in a lane.

        A whole topic is drained only then: it may have millions of messages, too many to remember their positions.
        What waits for it was read up to the snapshot of the group that reads it. A later list begins there, and holds
        none of it. A group at a floor may list all that was read since. A stopped lane has no group: its next list is
        made when what was drained is recorded (`Recorder.has`), without what has a publication.
        """
        groups = [group for group in self._groups if lane in group.lanes]
        if all(group.is_read for group in groups):
            return True
        hash_ = self._hash_of(topic)
        apart = [group for group in groups if group.topic == hash_]
        return all(group.is_read for group in apart or groups if group.topic in {None, hash_})

    def _hash_of(self, topic: str) -> int:
        if topic not in self._hashes:
            if len(self._hashes) >= TOPICS_KEPT:
                self._hashes.clear()
            self._hashes[topic] = self._finder.hash_of_topic(topic)
        return self._hashes[topic]

    def _read_topic_again(self, drain: KeyDrain) -> None:
        """Forget what is known of a drain's topic, if that was read before the drain was requested."""
        name = drain.key[1]
        if self._topics_read.get(name, -inf) <= drain.requested_at:
            if len(self._topics_read) >= TOPICS_KEPT:
                self._topics_read.clear()
            self._topics_read[name] = time.monotonic()
            self._publisher.topics.doubt(name)

    def _note_drained(self, drain: KeyDrain, part: KeyDrain, batch: Batch) -> None:
        """Note what was produced of a drain; the record of the batch writes the same."""
        drain.pages += 1
        drain.is_put_off = part.is_put_off
        self.counts.published += batch.messages
        if part.failed is not None or part.is_all:
            self._drain, self._drain_at = None, 0.0
        if part.failed is not None:
            self._note_failed(drain, part.failed)
        elif part.is_all:
            self._ended[drain.number] = drain.key

    def _reload_keys(self, lanes: frozenset[int]) -> None:
        """Go back to the parked keys that are recorded; so do the lanes, to what is recorded of them."""
        if self._drain is not None and self._drain.lane in lanes:
            self._drain = None
        self._ended = {number: key for number, key in self._ended.items() if key[0] not in lanes}
        self._parked.load(lanes)
        self._recorder.withheld.restore(self._parked.held, lanes)
        self._behind |= lanes

    def _end_drains(self, lanes: frozenset[int]) -> None:
        """End the announcements of drains before their lanes are given back; the next owner goes on with them.

        Also of one that was put off because another session held its row.
        """
        if not self._parked.held.is_empty:
            self._parked.withdraw(lanes)
        if self._drain is not None and self._drain.lane in lanes:
            self._drain = None

    def _as_recorded(self, group: Group, known: Progress) -> Progress:
        raise NotImplementedError

    def _settle(self, deadline: float | None = None) -> bool:
        raise NotImplementedError
