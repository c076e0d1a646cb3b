"""One session of the relay with the core: one database connection and one lease, and a loop for the lanes that it has.

A loop has a fixed set of lanes. When the relay takes lanes or gives some back, the loop stops reading, settles what is
under way, and another one begins for the lanes that there are then. Whatever is in doubt (a lost connection, a lost
lease) ends the session; what is not recorded is read again from the database.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from outbox_relay.publisher.errors import BROKEN_PAUSE_LAST_S, BrokenError, PauseAfterFailure
from outbox_relay.publisher.kafka import KafkaSettingError
from outbox_relay.publisher.leading import LEAVE_S, LOOK_EVERY_S, Leadership, LockedRows
from outbox_relay.publisher.lease import LOCK_WAIT_S, LanesLockedError, LeaseLostError, newest_position
from outbox_relay.publisher.loop import Loop
from outbox_relay.publisher.opening import Hands
from outbox_relay.publisher.renewal import Renewal
from outbox_relay.publisher.shard import Guarantee
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot
from outbox_relay.publisher.upkeep import Delayed, Recorded, Upkeep, repair
from outbox_relay.text.logs import Log

log = Log("lanes")

REST_AFTER_S = 60.0
"""Without a message for so long a relay rests: it polls less often, and only when something was written."""
RETIRE_EVERY_S = 1.0
FEW = 100
"""With fewer messages than this in a turn the relay rests before the next one."""
REST_S = 0.0015
"""How long it rests after a turn that found something. The next message has probably not been committed yet, and a turn
that finds nothing costs half of one that does."""
HASHES_KEPT = 10_000
MOST_BEHIND = 1_000
"""While more topics than this follow no change of theirs yet, none is stated."""


_DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@contextmanager
def naming_defects() -> Iterator[None]:
    """Turn an error that no outside event explains into BrokenError, with the place where it was raised.

    Only while messages are published and recorded: ended there, the relay would be started again and would publish
    the same messages again, as fast as a supervisor can.
    """
    try:
        yield
    except (BrokenError, LeaseLostError, KafkaSettingError):
        raise
    except _DEFECTS as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:500]}"
        raise BrokenError(
            f"internal error in {frame.name} ({frame.filename}:{frame.lineno}): {text}"
        ) from error


@dataclass(slots=True)
class SessionTimes:
    """When a session does what it does not do in each turn (monotonic seconds)."""

    look_at: float = 0.0
    retire_at: float = 0.0
    leave_by: float = 0.0
    locks_until: float = 0.0
    """Until when a loop that stops waits for rows that other sessions hold."""
    kept_until: float = 0.0
    """Until when lanes are published that could not be given back."""
    broken: PauseAfterFailure = field(default_factory=lambda: PauseAfterFailure(BROKEN_PAUSE_LAST_S))
    """The loop ended with an error of its own: the next one begins when the pause is over."""


class Session:
    """Publishes the lanes of a lease; `run_once()` is one turn of the relay's loop."""

    def __init__(self, hands: Hands, upkeep: Upkeep, renewal: Renewal) -> None:
        """Begin without lanes."""
        self._conn = hands.conn
        self._lease = hands.lease
        self._hands = hands
        self._upkeep = upkeep
        self._renewal = renewal
        self._leadership = Leadership(hands.conn, hands.lease)
        self._locked = LockedRows(hands.conn)
        self._delayed = Delayed(hands.conn)
        self._floors: dict[int, Snapshot] = {}
        self._doubted: dict[int, int] = {}
        self._batch = 0
        self._at = SessionTimes()
        self._loop: Loop | None = None
        self.counts = hands.counts
        self.counts.last_found = time.monotonic()

    # What others see ----------------------------------------------------------------------------------------------

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
        return self._leadership.is_draining

    @property
    def unsettled(self) -> int:
        """Messages given to Kafka that are not recorded."""
        return 0 if self._loop is None else self._loop.unsettled

    # A turn -------------------------------------------------------------------------------------------------------

    def run_once(self, wait: float) -> bool:
        """Turn the loop once; return whether anything was found.

        Args:
            wait: seconds to wait when nothing is to be done.

        Raises:
            LeaseLostError: another relay has taken over.
            psycopg.OperationalError: the connection is gone.
            KafkaUnavailableError: no broker replies about a topic.
        """
        published = self.counts.published
        if self._is_quiet():
            self._renewal.beat()
            time.sleep(wait)
            return False
        try:
            self._look_after()
            loop = self._loop
            if loop is None:
                time.sleep(wait)
                return False
            with naming_defects():
                found = loop.turn()
        except BrokenError as error:
            self._start_over(error)
            return True
        if self.counts.published - published < FEW:
            self._rest(loop, wait if not found else min(wait, REST_S))
        return found

    def _is_quiet(self) -> bool:
        now, loop = time.monotonic(), self._loop
        if loop is None or now - self.counts.last_found < REST_AFTER_S or not loop.is_idle:
            return False
        return self._hands.asks and self._hands.quiet.lasts(now, self._delayed.due_at)

    def _rest(self, loop: Loop, seconds: float) -> None:
        if loop.core.streams.by_name and self._hands.silence.away_since is None:
            loop.wires.serve(seconds)  # an acknowledgement may let the next message go
        else:
            time.sleep(seconds)

    def _look_after(self) -> None:
        now = time.monotonic()
        self._renewal.beat()
        self.hand_over()
        loop = self._loop
        self.counts.unacknowledged = 0 if loop is None else loop.wires.unacknowledged
        if loop is None:
            self._upkeep.take_lost(())
            return
        with naming_defects():
            loop.signals(now)
        if loop.due is not None:
            self._delayed.expect(loop.due)
            loop.due = None
        self._delayed.release(self._lease.lanes)
        lost = self._upkeep.take_lost(self._lease.lanes)
        if lost:
            loop.reads.partitions.revive()
            repair(self._conn, lost, self._lease)
            self._doubt_everything()  # they have new positions, and may have been published under their old ones
        if now >= self._at.retire_at:
            self._at.retire_at = now + RETIRE_EVERY_S
            self._retire(loop)
            if (
                self._hands.topics.is_idle and loop.wires.rest()
            ):  # threads and connections that nothing needs now
                self._hands.topics.rest()
                self._hands.silence.close()

    def _retire(self, loop: Loop) -> None:
        """Leave partitions out that hold nothing to publish, and tell the sweep how far all is recorded."""
        partitions, newest = loop.reads.partitions, loop.reads.newest
        if partitions.live and partitions.live[0].upper <= newest and not loop.has_unread:
            floor = loop.core.sources.floor(set()).snapshot
            left = partitions.retire(newest, loop.reads.finder.beyond_all_running(), [floor])
            if left:
                log.info("partitions done", tables=left, live=list(partitions.tables))
        if len(loop.reads.hashes) > HASHES_KEPT and not loop.core.memory.rows:
            loop.reads.hashes.clear()  # no row of a group is counted
        if partitions.live and loop.writes.floor != BEGINNING:
            self._upkeep.mark(Recorded(loop.writes.floor, loop.reads.lanes, partitions.live[0].lower))

    def _doubt_everything(self) -> None:
        self._doubted.update(dict.fromkeys(self.lanes, newest_position(self._conn)))

    def _doubt_what_is_sent(self) -> None:
        """Note that Kafka may have anything, but where batches are proven before anything else is sent."""
        if self._lease.delivery is Guarantee.AT_LEAST_ONCE:
            self._doubt_everything()

    def _start_over(self, error: BrokenError) -> None:
        """Begin again from what is recorded, after an error of the relay's own."""
        pause = self._at.broken.begin(time.monotonic())
        log.error("delivery failed", text=str(error), next_try_in_s=pause)
        self._end_loop(is_clean=False)
        self._doubt_what_is_sent()

    # Lanes --------------------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Take what this relay wants and is free, and give back what it does not want.

        Raises:
            RelayRefusedError: the connection does not keep its session.
            LeaseLostError: the lease has ended, or another relay took lanes of ours.
        """
        now = time.monotonic()
        if now >= self._at.look_at:
            self._at.look_at = now + LOOK_EVERY_S
            wanted, free = self._leadership.read()
            self._leave_without_kafka(now)
            self._follow_topics()
            taken = self._take((wanted - self.lanes) & free)
            if self._loop is None:
                if now >= self._at.broken.over_at:
                    self._begin()
            elif not self._loop.core.is_stopping and (
                taken or (self.lanes - wanted and now >= self._at.kept_until)
            ):
                self._stop(self._loop, now)
                self._at.leave_by = now + LEAVE_S
        if self._loop is not None and self._loop.core.is_stopping:
            self._change_lanes(now)

    def _stop(self, loop: Loop, now: float) -> None:
        loop.stop()
        self._hands.silence.hurry()
        self._at.locks_until = now + LOCK_WAIT_S

    def _has_settled(self, loop: Loop, now: float) -> bool:
        """Return whether a loop that stops is done, but for what waits too long for rows that other sessions hold.

        The next owner finds the failures again that have no hold yet, so no topic stands still for them.
        """
        return loop.core.is_done() or (loop.is_held_up and now >= self._at.locks_until)

    def _change_lanes(self, now: float) -> None:
        """End a loop that has settled, give back what is not wanted, and begin the next one."""
        loop = self._loop
        assert loop is not None  # noqa: S101  (asked by the caller)
        if not self._has_settled(loop, now):
            if now >= self._at.leave_by:
                raise LeaseLostError(
                    f"lanes {sorted(self.lanes)} are to change hands, and Kafka acknowledged nothing of them for "
                    f"{LEAVE_S:g} s: they are left as they are"
                )
            return
        self._end_loop(is_clean=loop.core.is_done())
        wanted, _ = self._leadership.read()
        if leaving := self.lanes - wanted:
            given = self._lease.give_back(self._conn, {lane: self._doubted.get(lane, 0) for lane in leaving})
            if given:
                log.info("lanes given back", owner=self._lease.owner, epoch=self.epoch, lanes=sorted(given))
            if leaving - given:
                self._locked.report(leaving - given, "giving the lane back")
                self._at.kept_until = now + LOCK_WAIT_S
        self._begin()

    def _take(self, lanes: frozenset[int]) -> bool:
        """Take free lanes; return whether any is ours now."""
        if not lanes:
            self._locked.miss(lanes)
            return False
        self._keep_floors()
        try:
            taken = self._lease.take(self._conn, lanes, self._batch + 1)
        except LanesLockedError as locked:
            locked.report()
            return False
        self._locked.miss(lanes - taken.floors.keys())
        self._floors |= taken.floors
        self._doubted |= taken.doubted
        if taken.floors:
            self._leadership.read()  # what their last owner knew of topics is counted now
            self._hands.topics.read_anew(self._leadership.generation)
            lease = self._lease
            log.info("lanes taken", owner=lease.owner, epoch=lease.epoch, lanes=sorted(lease.lanes))
        return bool(taken.floors)

    def _begin(self) -> None:
        """Begin a loop for the lanes that there are."""
        if not self.lanes:
            return
        floors = [self._floors[lane] for lane in self.lanes]
        floor = min(floors, key=lambda one: one.age)
        self._delayed.start_again()
        self._loop = self._hands.open(floor, self._doubted, self._batch)

    def _keep_floors(self) -> None:
        loop = self._loop
        if loop is not None:
            self._batch = loop.writes.batch
            self._floors.update(dict.fromkeys(loop.reads.lanes, loop.writes.floor))

    def _end_loop(self, *, is_clean: bool) -> None:
        self._keep_floors()
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if not is_clean:
            loop.doubt_what_is_sent()
        loop.close()

    def _leave_without_kafka(self, now: float) -> None:
        loop = self._loop
        if not self.lanes:
            is_away = self._leadership.leader_lacks_kafka
            self._lease.lacks_kafka = self._hands.silence.stand_by(now, is_leader_away=is_away)
            return
        silences = (self._hands.silence.away_since, None if loop is None else loop.unanswered_since)
        since = min((one for one in silences if one is not None), default=None)
        self._lease.lacks_kafka = since is not None
        if since is not None and now - since >= LEAVE_S and self._leadership.others_have_kafka:
            raise LeaseLostError(
                f"no broker replied to this relay for {LEAVE_S:g} s, and another relay has Kafka: lanes "
                f"{sorted(self.lanes)} are left to them as they are"
            )

    def _follow_topics(self) -> None:
        topics = self._hands.topics
        topics.expect(self._leadership.generation)
        if not self.lanes:  # it publishes nothing, and reads topics anew when it takes lanes
            self._lease.follows = self._leadership.generation, []
            return
        behind = [] if self._loop is None else self._loop.gates.behind
        if topics.generation is not None and len(behind) <= MOST_BEHIND:
            self._lease.follows = topics.generation, behind

    # The end ------------------------------------------------------------------------------------------------------

    def finish(self, seconds: float) -> int:
        """Settle what is under way, record it and give the lanes back; return the messages left unsettled."""
        loop, now, left = self._loop, time.monotonic(), 0
        deadline = now + seconds
        if loop is not None:
            self._stop(loop, now)
            try:
                with naming_defects():
                    while not self._has_settled(loop, now) and now < deadline:
                        self._renewal.beat()
                        loop.turn()
                        loop.wires.serve(0.005)
                        now = time.monotonic()
            except BrokenError as error:
                log.error("delivery failed", text=str(error))
                self._doubt_what_is_sent()
            left = loop.unsettled
            self._end_loop(is_clean=loop.core.is_done())
        self._renewal.stop()
        self._lease.release(self._conn, {lane: self._doubted.get(lane, 0) for lane in self.lanes})
        return left

    def abandon(self) -> None:
        """Let go of the producers after the connection was lost; nothing is recorded any more."""
        if self._loop is not None:
            self._loop.spans.close()
            self._loop.wires.close()
