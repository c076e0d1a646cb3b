"""One session of the relay: one database connection, one lease, one producer, until something is in doubt.

Whatever is in doubt (a lost connection, a failed delivery, a lost lease) ends the session or its producer; what
is not recorded is read again from the database. So there is one way to recover, and it is taken at every start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg

from outbox.backoff import Backoff
from outbox_relay.database.partitions_ahead import Room
from outbox_relay.publisher.apart import ApartTopics
from outbox_relay.publisher.aside import AsideLanes
from outbox_relay.publisher.barriers import RECORD_S, Barriers
from outbox_relay.publisher.batch import Stop, just_before
from outbox_relay.publisher.counts import Counts
from outbox_relay.publisher.delayed import Delayed
from outbox_relay.publisher.draining import DrainedKeys
from outbox_relay.publisher.errors import DeliveryError, KafkaUnavailableError
from outbox_relay.publisher.finder import POSITION, Finder, born
from outbox_relay.publisher.lane_groups import Group, care_of, caught_up, end_care, merge, of_lane
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.local_wal import can_ask_what_is_flushed
from outbox_relay.publisher.locked import LockedRows
from outbox_relay.publisher.moved_topics import MovedTopics
from outbox_relay.publisher.overdue import Overdue
from outbox_relay.publisher.parked import ParkedKeys
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.partitions_done import PartitionsDone
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.read_ahead import ReadAhead
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.recovery import PAUSE_FIRST_S, PAUSE_LAST_S, Recovery, naming_defects
from outbox_relay.publisher.renewal import Renewal
from outbox_relay.publisher.retries import LOCKED_PAUSE_S, Retries
from outbox_relay.publisher.shared_lanes import SharedLanes, Shares
from outbox_relay.publisher.stops import NOT_AGAIN, Stopped, Stops
from outbox_relay.publisher.upkeep import Upkeep, repair
from outbox_relay.publisher.waking import Waking
from outbox_relay.text.logs import Log

log = Log("relay")

MAX_UNACKNOWLEDGED = 12_000
"""Messages on the wire; above it the relay waits for Kafka before it reads on."""
RETIRE_EVERY_S = 1.0
FEW = 100
"""With fewer messages than this in a turn the relay rests before the next one, in steady state."""
REST_S = 0.0015
"""How long it rests after a turn that found something. The next message has probably not been committed yet, and a turn
that finds nothing costs half of one that does."""
FULL_S = 1.0
"""How long a page waits for room in the local queue before the rest of it is put off to a later turn."""


class Session(
    Barriers, MovedTopics, ApartTopics, DrainedKeys, AsideLanes, SharedLanes, PartitionsDone, Recovery
):
    """Publishes the lanes of a lease; `run_once()` is one turn of the relay's loop."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        lease: Lease,
        new_publisher: Callable[[psycopg.Connection[Any]], Publisher],
        ahead: ReadAhead,
        upkeep: Upkeep,
        *,
        renewal: Renewal,
        overdue: Overdue,
        recorder: Recorder,
        page: int,
    ) -> None:
        self._conn = conn
        self._lease = lease
        self._new_publisher = new_publisher
        self._parked = ParkedKeys(conn, lease)
        self._waking = Waking()
        self._suspects, self._topics_read, self._hashes, self._ended, self._behind = {}, {}, {}, {}, set()
        self._publisher = self._open_publisher()
        self._recorder = recorder
        self._recorder.freed = self._free_key
        self._partitions = LivePartitions(conn)
        asks = recorder.may_send_along and can_ask_what_is_flushed(conn)
        self._finder = Finder(conn, page=page, statements=recorder.statements, lease=lease if asks else None)
        self._reader = Reader(self._finder, self._partitions, ahead)
        self._delayed = Delayed(conn)
        self._upkeep = upkeep
        self._renewal = renewal
        self._room = Room(conn)
        self._overdue = overdue
        self._groups = []
        self._stops = Stops()
        self._retries = Retries(conn, lease)
        self._shares = Shares(conn, lease)
        self._locked = LockedRows(conn)
        self._pages, self._page = [], page
        self._retire_at = 0.0
        self._backoff = Backoff(PAUSE_FIRST_S, PAUSE_LAST_S)
        self.counts = Counts()
        self.stopping: Callable[[], bool] = lambda: False

    def _open_publisher(self) -> Publisher:
        publisher = self._new_publisher(self._conn)
        publisher.while_full = self._while_full
        publisher.held = self._parked.held
        publisher.topics.waking = self._waking
        return publisher

    def run_once(self, wait: float) -> bool:
        """Read, secure, publish and record once; return whether anything was found.

        Args:
            wait: seconds to wait when nothing is to be done: for deliveries, or, in steady state, for the next message.

        Raises:
            LeaseLostError: another relay has taken over.
            psycopg.OperationalError: the connection is gone.
            KafkaUnavailableError: no broker replies about a topic.
        """
        try:
            self._look_after()
            published = self.counts.published
            found = self._has_found = self._turn_or_serve()
            if self._is_steady and not self._pages and self.counts.published - published < FEW:
                # An acknowledgement does not end it: there is nothing to do about one yet. A record that is due goes
                # with the turn behind one that found something, which is the least likely to find more.
                if not found:
                    time.sleep(wait)
                elif self._since_record < RECORD_S:
                    time.sleep(min(wait, REST_S))
                self._publisher.serve(0)
            else:
                self._publisher.serve(0 if found else wait)
            if not found and not self._sends_along:
                self._record()
        except DeliveryError as error:
            self._start_over(error)
            return True
        return found

    def _turn_or_serve(self) -> bool:
        try:
            found = self._turn()
        except KafkaUnavailableError:
            if self._unanswered_since is None:
                self._unanswered_since = time.monotonic()
            # A topic that Kafka does not tell about must not keep deliveries of others from being recorded.
            self._publisher.serve(0)
            self._record()
            raise
        self._unanswered_since = None
        return found

    def _turn(self) -> bool:
        self._sends_along = False
        self._let_go_on()
        if self._burdened and not self._publisher.aside and not self._unburden():
            return False
        if not self._move_topics():
            return False
        if self._publisher.unacknowledged >= MAX_UNACKNOWLEDGED:
            self._publisher.serve(0.005)
            self._record()
            return self._publisher.unacknowledged < MAX_UNACKNOWLEDGED
        found = self._drain_next()
        if self._ends_drain:
            return found  # what is read now would be held under a key that goes with the record
        for group in [group for group in self._groups if group.careful is not None]:
            # The turn of another one may have set it aside, or put groups together.
            if not group.paused and group.careful is not None and group.lanes:
                found |= self._turn_of([group], alone=True)
        # Now: a lane that was set aside meanwhile must not be read beyond what it waits for.
        if any(page.group.careful is not None for page in self._pages):
            return found  # it waits for its barrier, and goes out alone
        plain = [group for group in self._groups if group.careful is None and not group.paused]
        return self._turn_of(plain, alone=False) or found

    def _turn_of(self, groups: list[Group], *, alone: bool) -> bool:
        """Take one page of each group. `alone`: with nothing else on the wire, and waiting for its delivery.

        Pages that were read stay until they are published: if Kafka does not answer about a topic, the next
        turn goes on with them.
        """
        if alone and not self._settle():
            return False
        if self._pages:
            groups = [page.group for page in self._pages]
            for page in self._pages:
                page.has_barrier = False  # it was made in an earlier turn
        else:
            self._pages = self._read(groups, self._lists_to_read())
            self._groups += self._reader.take_apart()
            self.counts.polls += 1
        pages = self._pages
        if pages and not self._has_room(pages):
            return False
        found = bool(pages)
        if pages:
            for page in pages:
                if self._publisher.prepare(page.rows, page.group.lanes):
                    page.has_barrier = False  # what was read of a topic may be younger than what is flushed
            if self._publisher.topics.changes.awaited:
                return True  # the next turn lets the topic move first
            if not self._secure(pages):
                return False
            while pages:
                left = self._publish(pages.pop(0))
                if left is not None:
                    # The local queue is full. What is left is published in a later turn.
                    pages.insert(0, left)
                    break
        if alone:
            self._settle()
        self._level(groups)
        return found

    def _has_room(self, pages: list[Page]) -> bool:
        """Return whether all of the pages can be recorded: their positions have partitions."""
        highest = max(page.rows[-1][0] for page in pages)
        return highest < self._partitions.top or self._room.make(highest, self._last_bound)

    def _last_bound(self) -> int:
        self._partitions.refresh()
        return self._partitions.top

    def _level(self, groups: list[Group]) -> None:
        """Let groups that have caught up become one, and forget that their lanes were stopped."""
        if self._pages:
            return  # the page of one group would speak for lanes whose rows are in the page of another
        end_care(groups)
        self._catch_up(groups)
        self._forget_drained(groups)
        self._groups = merge(self._groups)
        self._reader.close_lists(self._groups)
        level = caught_up(self._groups)
        back = self._stops.known(level)
        if back or not self._recorder.resuming.isdisjoint(level):
            self._recorder.resumed(level)
        if back:
            self._stops.forget(back)
            log.info("lanes go on", lanes=sorted(back))

    def _publish(self, page: Page) -> Page | None:
        """Publish a page; return what is left of it when the local queue had no room for all."""
        group = page.group
        before, progress = self._as_recorded(group, page.before), self._as_recorded(group, page.progress)
        with naming_defects():
            batch = self._publisher.publish(
                page.rows, progress, before, group.lanes, seen=page.progress.snapshot
            )
        self.counts.published += batch.messages
        batch.born = born(page.rows[0])
        self.counts.last_found = time.monotonic()
        self._note_published(group, batch)
        self._note_claims(batch.claims)
        if group.careful is not None:
            batch.alone = page.rows[-1]  # what is in front of it was not produced
        careful = care_of(self._groups) if batch.stops else {}
        for stop in batch.stops:
            self._stop_early(stop)
            # It leaves all parts of a split, and another one than this may go carefully.
            group.lanes.discard(stop.lane)
            self._stops.add(stop, careful=careful.get(stop.lane, {}))
        if group.trial and any(claim.number is not None for claim in batch.claims):
            # The lane got past what it had stopped at. One that has expired was none of that.
            group.trial = False
        elif group.trial and batch.messages:
            # In flight by itself: it holds up no other lane, however long its acknowledgement takes.
            self._publisher.set_aside(group.lanes)
            group.trial, group.paused = False, True
        if batch.ended_at is None:
            return None
        rows = [row for row in page.rows if row[POSITION] >= batch.ended_at]
        return Page(group, rows, just_before(batch.ended_at, page.progress, page.before), page.progress)

    def _settle(self, deadline: float | None = None) -> bool:
        """Wait until nothing is on the wire, and record it; return whether that was so by the deadline.

        Without a deadline this takes a second or two at most: lanes that wait longer are set aside, and not waited for.
        """
        while self._publisher.in_flight or (deadline is not None and self._publisher.aside):
            if deadline is None and self.stopping():
                return False
            self._record()
            if not self._publisher.in_flight and (deadline is None or not self._publisher.aside):
                break
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._publisher.serve(0.01)
            self._renewal.beat()
            self._watch()
        return True

    def _look_after(self) -> None:
        now = time.monotonic()
        self._renewal.beat()
        self.balance()
        self._watch()
        self._waking.follow(self._parked.held.topics, self._parked.held.topics_changed)
        self._publisher.topics.tend()
        if not self._lease.lanes:
            self._upkeep.take_lost(())
            return
        self.counts.released += self._delayed.release(self._lease.lanes)
        self._recorder.write_changes()
        if self._stops.now():
            self._stops.hurry(self._retries.requested(now))
        for stopped in self._stops.due(now):
            # Not before its stop is recorded: the record of the stop would undo that of going on.
            if stopped.stop.lane not in self._leaving and self._recorder.has(
                stopped.stop, self._publisher.unrecorded()
            ):
                self._retry(stopped)
        lost = self._upkeep.take_lost(self._lease.lanes)
        if lost:
            self._partitions.revive()
            repair(self._conn, lost, self._lease)
            # They have new positions, and may have been published under their old ones.
            self._recorder.doubt_everything()
        if now >= self._retire_at:
            self._retire_at = now + RETIRE_EVERY_S
            self._retire()
            self._mark()

    def _retry(self, stopped: Stopped) -> None:
        """Let a stopped lane join again, as a group of its own; it stops again if nothing has changed.

        It begins with one message, whose acknowledgement nobody else waits for.
        """
        lane = stopped.stop.lane
        if not self._retries.announce(lane):
            stopped.retry_at = time.monotonic() + LOCKED_PAUSE_S
            return
        stopped.retry_at = NOT_AGAIN
        self._behind.add(lane)
        self._parked.count([lane])
        self._recorder.resume(lane)
        self._groups += of_lane(lane, stopped.stop.progress, stopped.careful, trial=not stopped.careful)

    def _while_full(self, seconds: float) -> bool:
        self._renewal.beat()
        return seconds < FULL_S and not self.stopping()

    def finish(self, seconds: float) -> int:
        """Settle what is on the wire, record it and give the lanes back; return the messages left unsettled.

        A partition that acknowledges nothing is waited for no longer than it takes to ask Kafka about it.
        """
        self._given_up = 0
        self._overdue.hurry()
        failure = None
        try:
            self._settle(time.monotonic() + seconds)
        except DeliveryError as error:
            log.error("delivery failed", text=str(error))
            failure = error
        self._discard(failure)
        left = self.unsettled + self._given_up
        self._renewal.stop()
        if not left:
            unwritten = self._recorder.write_changes(now=True)
            self._retries.withdraw(self._stops.certain(self._recorder.doubts).difference(unwritten))
            self._end_drains(self._lease.lanes)
        self._lease.release(self._conn, self._recorder.doubts.until)
        return left

    @property
    def unacknowledged(self) -> int:
        """Messages given to Kafka whose acknowledgement is not recorded yet, without those of lanes set aside."""
        return self._publisher.unacknowledged

    @property
    def unsettled(self) -> int:
        """Messages given to Kafka that are not recorded."""
        return self._publisher.unsettled

    def abandon(self) -> None:
        """Let go of the producer after the connection was lost; nothing is recorded any more."""
        self._publisher.close()

    @property
    def stopped(self) -> dict[int, Stop]:
        """The lanes that are stopped now, with where and why."""
        return self._stops.now()
