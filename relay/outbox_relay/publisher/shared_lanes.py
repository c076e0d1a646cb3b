"""Which lanes a relay has: its share of them, taken while they are free and given back when they are another's.

Every relay reads the same table four times a second, and computes the same shares: living relays that do not drain, in
the order of their epochs, have equal runs of neighbouring lanes. No relay takes from a living one, and none asks
another: one with more than its share gives back, one that finds free lanes of its share takes them. A relay beyond
the eighth has no lane, and takes over when another ends.

Giving back is a drain of these lanes only: they are not read any more, and given back in one statement when
everything of them on the wire is acknowledged and recorded. So the next owner publishes nothing twice. Schedules,
between any two lines:

- The relay dies, or pauses past its lease, before the lanes are given back: they are its own until the lease runs out
  (or at once when its session is gone); then they are taken, with what is recorded. After it: they are free, and a
  relay that wakes up has none of them in any group.
- A poll, barrier or record of the old owner arrives when a lane is taken: it names the lanes that it speaks for, and
  finds another epoch there. The session ends, and joins again. Without traffic there is no barrier: the next read of
  the shares finds that lanes are not its own. Else a lane whose new owner ended, too, would stay without one.
- Two relays compute shares from different moments: both may find a lane to be their share. The lanes are locked when
  they are taken, and only a lane without a living owner is taken, so one of them has it; if it is not that relay's
  share a moment later, it gives it back.
- The connection is lost while lanes are taken: as if the relay had died after it. While they are given back: the same.
- The shares change while lanes drain: they are given back first, and taken again if they are free.
- A partition acknowledges nothing: its lanes drain when they are stopped, or acknowledged; the others drain meanwhile.
  If Kafka acknowledges nothing at all to this relay, it leaves the lanes after `LEAVE_S` as if it had died, and joins
  again when Kafka replies.
- No broker replies to this relay, which keeps its lease: after `LEAVE_S` it leaves all its lanes in the same way, if
  there is another relay that has not stated the same with its renewals, three in a lease. So nothing moves where Kafka
  is away from all. One that had nothing to publish has stated nothing: it takes the lanes, and keeps them if Kafka is
  away from it, too. What was on the wire may reach Kafka late, as that of a paused relay does.
- Another session holds the row of a lane that drained: the lane is read again, and drains again a second later.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from outbox.partitioning.lanes import LANES
from outbox_relay.publisher.delayed import Delayed
from outbox_relay.publisher.lane_groups import Group, start_groups
from outbox_relay.publisher.lease import (
    DIVIDED_SESSION,
    LOCK_WAIT_S,
    STATEMENTS,
    CannotShareError,
    LanesLockedError,
    Lease,
    LeaseLostError,
    Taken,
)
from outbox_relay.publisher.locked import LockedRows, report_locked
from outbox_relay.publisher.overdue import Overdue
from outbox_relay.publisher.parked import ParkedKeys
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.retries import Retries
from outbox_relay.publisher.stops import Stops
from outbox_relay.text.logs import Log

LEAVE_S = 30.0
"""After so long without Kafka, or without an acknowledgement of lanes to give back, a relay leaves them to others."""
BALANCE_EVERY_S = 0.25
"""How often the shares are read. A lane that is handed over stands still for half of that on average, and its drain."""

log = Log("lanes")


def share_of(epochs: Sequence[int], epoch: int, lanes: int = LANES) -> frozenset[int]:
    """Return the lanes that are the share of one relay.

    Args:
        epochs: those of the living relays that do not drain, in the order in which their processes joined.
        epoch: one of them.
        lanes: how many there are to share.

    Returns:
        Neighbours; the shares of all relays are disjoint, cover all lanes, and differ by one lane at most.
    """
    rank = epochs.index(epoch)
    least, more = divmod(lanes, len(epochs))
    first = rank * least + min(rank, more)
    return frozenset(range(first, first + least + (rank < more)))


class Shares:
    """Reads which lanes are this relay's share, and which are free."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease) -> None:
        self._conn = conn
        self._lease = lease
        self.is_draining = False
        """Whether an operator has asked this relay to give its lanes to others."""
        self.others_have_kafka = False
        """Whether another relay, which does not lack Kafka, may take lanes of this one."""
        self.generation = 0
        """How often topics were changed; see topic_changes.py."""

    def read(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the lanes of this relay's share, and those that no living relay owns.

        While our own lease has run out the share is what we have: the next poll or barrier decides.

        Raises:
            CannotShareError: the connection does not keep its session.
            LeaseLostError: another relay took lanes that were ours.
        """
        mine = self._lease
        values = {"epoch": mine.epoch, "owner": mine.owner}
        row = self._conn.execute(STATEMENTS["shares"], values, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (a SELECT without FROM has a row)
        epochs, free, is_draining, own, mark, self.generation, self.others_have_kafka = row
        if mark != str(mine.epoch):
            raise CannotShareError(DIVIDED_SESSION)
        if lost := mine.lanes.difference(own):
            raise LeaseLostError(
                f"lanes {sorted(lost)} of {mine.owner} (epoch {mine.epoch}) were taken by another relay"
            )
        self.is_draining = bool(is_draining)
        if self.is_draining:
            return frozenset(), frozenset(free)
        return share_of(epochs, mine.epoch) if mine.epoch in epochs else mine.lanes, frozenset(free)

    def read_generation(self) -> int:
        """Return how often topics were changed by now."""
        row = self._conn.execute(STATEMENTS["topic_generation"], prepare=True).fetchone()
        assert row is not None  # noqa: S101  (the table has one row)
        self.generation = row[0]
        return self.generation


class SharedLanes:
    """The part of a session that takes lanes and gives them back."""

    _conn: psycopg.Connection[Any]
    _lease: Lease
    _publisher: Publisher
    _recorder: Recorder
    _partitions: LivePartitions
    _reader: Reader
    _retries: Retries
    _parked: ParkedKeys
    _stops: Stops
    _groups: list[Group]
    _overdue: Overdue
    _shares: Shares
    _locked: LockedRows
    _burdened: frozenset[int]
    _pages: list[Page]
    _delayed: Delayed
    _balance_at = 0.0
    _leaving: frozenset[int] = frozenset()
    """Lanes that are not read any more, because they are to be given back."""
    _leave_by = 0.0
    """Until when they have to be drained."""
    _kept: frozenset[int] = frozenset()
    """Lanes that could not be given back, and are read again until `_kept_until`."""
    _kept_until = 0.0
    _behind: set[int]
    """Lanes that were taken, and not read yet up to what was committed then."""
    _unanswered_since: float | None = None
    """Since when no broker replies about a topic that a page needs; None: one did."""

    @property
    def epoch(self) -> int:
        """The epoch under which this session has its lanes."""
        return self._lease.epoch

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that it has, those that it is giving back included."""
        return self._lease.lanes

    @property
    def is_draining(self) -> bool:
        """Whether an operator has asked this relay to give its lanes to others."""
        return self._shares.is_draining

    def balance(self) -> None:
        """Take what is this relay's share and free, and give back what is not its share.

        Raises:
            CannotShareError: the connection does not keep its session.
            LeaseLostError: the lease has ended, or another relay took lanes of ours.
        """
        now = time.monotonic()
        if now >= self._balance_at:
            self._balance_at = now + BALANCE_EVERY_S
            share, free = self._shares.read()
            self._leave_without_kafka(now)
            self._follow_topics()
            kept = self._kept if now < self._kept_until else frozenset[int]()
            self._leave(self._lease.lanes - share - self._leaving - kept)
            wanting = share - self._lease.lanes
            if wanting & free:
                self._take(wanting & free)
            else:
                self._locked.miss(frozenset())
        if self._leaving:
            self._give_back()

    def _leave_without_kafka(self, now: float) -> None:
        silences = (self._overdue.away_since, self._unanswered_since)
        since = min((one for one in silences if one is not None), default=None)
        self._lease.lacks_kafka = since is not None
        if since is not None and now - since >= LEAVE_S and self._shares.others_have_kafka:
            raise LeaseLostError(
                f"no broker replied to this relay for {LEAVE_S:g} s, and another relay has Kafka: lanes "
                f"{sorted(self._lease.lanes)} are left to them as they are"
            )

    def _take(self, lanes: frozenset[int]) -> None:
        try:
            taken = self._lease.take(self._conn, lanes, self._recorder.next_batch)
        except LanesLockedError as locked:
            report_locked(locked)
            return
        if taken.progress:
            self._begin(taken)
        self._locked.miss(lanes - taken.progress.keys())

    def _begin(self, taken: Taken) -> None:
        # Their rows may lie in partitions that held nothing for the lanes that we had.
        self._partitions.revive()
        self._delayed.start_again()
        self._recorder.begin(taken)
        self._parked.load(taken.progress.keys())
        self._behind |= taken.progress.keys()
        self._read_topics_anew()
        # What stopped a lane may be there still: a trial first, so that little is published again if it is.
        self._groups += start_groups(taken.progress, taken.stopped)
        lease = self._lease
        log.info("lanes taken", owner=lease.owner, epoch=lease.epoch, lanes=sorted(lease.lanes))

    def _leave(self, lanes: frozenset[int]) -> None:
        if lanes:
            if not self._leaving:
                self._leave_by = time.monotonic() + LEAVE_S
            self._leaving |= lanes
            self._stop_reading()

    def _stop_reading(self) -> None:
        """Take the lanes that are to be given back out of the groups; a page that was read leaves them out."""
        for group in [*self._groups, *(page.group for page in self._pages)]:
            group.lanes -= self._leaving
        self._groups = [group for group in self._groups if group.lanes]
        self._reader.close_lists(self._groups)

    def _give_back(self) -> None:
        """Give back the leaving lanes of which nothing is on the wire, or unwritten."""
        busy = frozenset[int]().union(*(batch.speaks_for for batch in self._publisher.unrecorded()))
        settled = self._leaving - busy - self._burdened
        if not settled:
            if time.monotonic() >= self._leave_by:
                raise LeaseLostError(
                    f"lanes {sorted(self._leaving)} are another relay's share, and Kafka acknowledged nothing of them "
                    f"for {LEAVE_S:g} s: they are left to it as they are"
                )
            return
        doubts = self._recorder.doubts
        self._end_drains(settled)
        self._retries.withdraw(self._stops.certain(doubts) & settled)
        written = settled.difference(self._recorder.unwritten)
        given = self._lease.give_back(self._conn, {lane: doubts.until.get(lane, 0) for lane in written})
        self._drop(given)
        if settled - given:
            self._locked.report(settled - given, "giving the lane back")
            self._keep(settled - given)

    def _keep(self, lanes: frozenset[int]) -> None:
        """Go on with lanes whose rows another session holds; they are given back when those are free."""
        self._leaving -= lanes
        self._kept, self._kept_until = lanes, time.monotonic() + LOCK_WAIT_S
        going = lanes - self._stops.now().keys()
        recorded = self._recorder.recorded
        self._groups += start_groups({lane: recorded[lane] for lane in going}, self._stops.known(going))

    def _drop(self, given: Collection[int]) -> None:
        if not given:
            return
        self._leaving -= frozenset(given)
        self._recorder.end(given)
        self._parked.held.drop(given)
        self._behind -= frozenset(given)
        self._stops.forget(self._stops.known(given))
        lease = self._lease
        log.info("lanes given back", owner=lease.owner, epoch=lease.epoch, lanes=sorted(given))

    def _end_drains(self, lanes: frozenset[int]) -> None:
        raise NotImplementedError

    def _follow_topics(self) -> None:
        raise NotImplementedError

    def _read_topics_anew(self) -> None:
        raise NotImplementedError
