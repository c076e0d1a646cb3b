"""Lanes that wait for a partition which acknowledges nothing: set aside, and stopped in the end. See overdue.py.

Where the partition has no leader its topic is parked instead: see leaderless.py.

Schedules. The process dies while lanes are set aside: what the others recorded meanwhile holds, because
progress is per lane; of the lanes set aside all that was in flight is published again, at most one window of
them. It dies between the stop's record and the new producer: the successor tries one message of the lane, and
goes on from there. The stop is recorded and the partition comes back before the producer is closed: what was in
flight arrives, and comes again at the retry. Both runs begin at the recorded progress and are in order, so
first appearances are in order too, however the two are mixed. The process is paused past its lease: its next
record finds another epoch, as always. An error of our own while a lane is given up, before or after its stop is
recorded: the session starts over from what is recorded, and finds the partition again.

What waits is a drain: the key stays parked, and the producer is replaced later, when nothing else is in flight; until
then no key is drained, and the lane is not given back. The process dies before the drain's end is recorded: its
announcement stays, and the next owner of the lane takes its messages for doubtful and drains the key again. After it:
they are in doubt as recorded. They arrive after all, until the producer is closed: the key is parked, so none of it
was published behind them. Messages of a topic's drain that fail by themselves park their keys, and what is read
meanwhile is held for these: their claims are written first, with what is acknowledged of the page. The process dies
before that: its successor drains all of the page again. Behind it: its successor loads these keys, the drain of the
topic adds to them what is in front, and what was announced and goes on waiting is in doubt. It is paused past its lease
before it: the claims find another epoch, and the session ends. An acknowledgement that comes later counts no more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from outbox_relay.publisher.batch import Batch, Stop
from outbox_relay.publisher.errors import BrokenError, DeliveryError, OutOfOrderError, Unpublishable
from outbox_relay.publisher.lane_groups import Group, care_of, merge, of_lane
from outbox_relay.publisher.leaderless import claims_of, divide, without
from outbox_relay.publisher.overdue import Overdue
from outbox_relay.publisher.parked import TOPICS_FAULT, Claim, ParkedKeys
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.reader import Page
from outbox_relay.publisher.recorder import Recorder
from outbox_relay.publisher.recovery import naming_defects
from outbox_relay.publisher.snapshot import Progress
from outbox_relay.publisher.stops import Stops
from outbox_relay.text.logs import Log

log = Log("relay")


class AsideLanes:
    """The part of a session that keeps a sick partition from holding up the others."""

    _publisher: Publisher
    _recorder: Recorder
    _partitions: LivePartitions
    _overdue: Overdue
    _stops: Stops
    _parked: ParkedKeys
    _groups: list[Group]
    _pages: list[Page]
    _given_up = 0
    """Messages in flight of lanes that stopped: not recorded, and not waited for."""
    _burdened: frozenset[int] = frozenset()
    """Lanes of which the producer still holds such messages."""

    def _watch(self) -> None:
        """Set aside the lanes that wait for a partition which acknowledges nothing, and stop them in the end."""
        now = time.monotonic()
        if not self._overdue.is_due(now):
            return
        late = self._overdue.late(self._publisher, now)
        if late:
            self._set_aside(late)
        for lane, reason in self._overdue.hopeless(self._publisher, now).items():
            self._give_up(lane, reason)

    def _set_aside(self, lanes: set[int]) -> None:
        self._publisher.set_aside(lanes)
        for group in list(self._groups):
            mine = group.lanes & lanes
            page = next((page for page in self._pages if page.group is group), None)
            if group.split is not None:
                # Its parts share the set of lanes. All topics of a lane go on from the floor together, when what is in
                # flight of it is recorded.
                if group.topic is None and mine:
                    floor = self._as_recorded(group, group.progress if page is None else page.before)
                    careful = care_of(one for one in self._groups if one.split is group.split)
                    group.lanes -= mine
                    for lane in mine:
                        self._groups += of_lane(lane, floor, careful.get(lane, {}), paused=True)
                continue
            if mine == group.lanes and len(mine) == 1 and page is None:
                group.paused = True
                continue
            # A page that is read and not published yet will leave these lanes out: they read it again.
            progress = group.progress if page is None else page.before
            group.lanes -= mine
            self._groups += [Group({lane}, progress, careful=group.careful, paused=True) for lane in mine]
        self._groups = [group for group in self._groups if group.lanes]
        log.warning("lanes wait for Kafka", lanes=sorted(lanes))

    def _let_go_on(self) -> None:
        ready = [
            group
            for group in self._groups
            if group.paused and self._publisher.aside.keys().isdisjoint(group.lanes)
        ]
        for group in ready:
            group.paused = False
            group.end_list()  # one that is left of a trial, for example
        if ready and not self._pages:
            # Before they are read: each would read the same difference, and keep a backlog of its own apart.
            self._groups = merge(self._groups)

    def _give_up(self, lane: int, reason: Unpublishable) -> None:
        if self._publisher.aside[lane][0].drain is not None:
            # Nothing of the lane was on the wire when the drain began, so it is the first.
            self._give_up_drain(lane, reason)
            return
        if reason.code in TOPICS_FAULT:
            self._park_unacknowledged(lane, reason)
            return
        with naming_defects():
            done, messages, handed = self._publisher.give_up(lane, reason)
            # Written with the stop, for the messages behind it: they are in flight, too.
            self._recorder.doubts.add(handed)
            self._stop_early(done.stops[0])
            self._note([done], self._recorder.commit([done], self._partitions.bounds()))
        # Claims behind the stop were given up with what was in front of them.
        self._reload_keys(frozenset((lane,)))
        self._given_up += messages
        self._burdened |= {lane}
        careful = care_of(self._groups).get(lane, {})
        for group in self._groups:
            group.lanes.discard(lane)
        self._groups = [group for group in self._groups if group.lanes]
        self._stops.add(done.stops[0], careful=careful)

    def _park_unacknowledged(self, lane: int, reason: Unpublishable) -> None:
        """Park the topics that a lane waits for, so that it goes on. See leaderless.py.

        It goes on when its group is read next. The producer is replaced as soon as nothing else is in flight.
        """
        with naming_defects():
            parts = [divide(batch, lane) for batch in self._publisher.aside[lane]]
            claims = claims_of(self._parked.held, lane, [one for _, left in parts for one in left], reason)
            self._note_claims(claims)
            self._recorder.doubts.add(self._publisher.let_go(lane))
            batches = [done for done, _ in parts]
            # All claims with the first batch: a later one may have parked the topic that messages of the first wait for
            # now, and the row of a topic is made in front of the others that name it.
            claims += [claim for done in batches for claim in done.claims]
            for done in batches:
                done.claims = []
            batches[0].claims = claims
            self._note(batches, self._recorder.commit(batches, self._partitions.bounds()))
        self._burdened |= {lane}

    def _give_up_drain(self, lane: int, reason: Unpublishable) -> None:
        """End the drain that a lane waits for: its place in the lane is no place to stop at.

        What is behind it on the wire stays there, and the lane goes on when that is recorded. Some of that may be held
        for a key that this page has parked, so what the page holds back is written. It was not given to Kafka, and what
        is in front of it in its key goes on waiting, and joins the key with its lower place: in the topic's next drain.
        What is acknowledged is recorded with it: of each partition all in front of the first message that is not, so
        what goes on waiting of a key is behind it. The page before was recorded before this one was produced.
        """
        with naming_defects():
            batch, handed = self._publisher.give_up_drain(lane)
            done, left = divide(batch, lane)
            done.drain = without(batch.drain, [one.id for one in left])
            self._note([done], self._recorder.commit([done], self._partitions.bounds()))
            self._recorder.doubts.add(handed)
            self._given_up += len(left)
            self._burdened |= {lane}
            self._fail_drain(batch, reason, len(left))

    def _unburden(self) -> bool:
        """Replace a producer that still holds messages of stopped lanes, once nothing else is in flight.

        Nothing is read until then. That takes as long as the last acknowledgements do: a lane that waits for more
        than a second is set aside, and ends the wait. Return whether the wait is over.
        """
        if self._publisher.in_flight:
            self._record()
            self._publisher.serve(0.005)
            return not self._publisher.in_flight and self._unburden()
        self._publisher.close()
        self._publisher = self._open_publisher()
        self._burdened = frozenset()
        return True

    def _discard(self, error: DeliveryError | None) -> None:
        """Close the producer, after recording what is certain; note what else of it Kafka may have.

        The process dies in between: see doubts.py.
        """
        certain = error is None or self._record_what_is_certain(error)
        # First, because it collects the last refusals.
        self._publisher.close()
        if certain:
            self._recorder.doubts.add(self._publisher.in_doubt(), self._publisher.refused())
        else:
            self._recorder.doubt_everything()

    def _record_what_is_certain(self, error: DeliveryError) -> bool:
        """Record what was acknowledged before a failure; return False if the acknowledgements themselves are wrong."""
        if isinstance(error, (OutOfOrderError, BrokenError)):
            return False
        try:
            self._record()
        except (OutOfOrderError, BrokenError):
            return False
        return True

    def _reload_keys(self, lanes: frozenset[int]) -> None:
        raise NotImplementedError

    def _stop_early(self, stop: Stop) -> None:
        raise NotImplementedError

    def _note_claims(self, claims: Iterable[Claim]) -> None:
        raise NotImplementedError

    def _fail_drain(self, batch: Batch, reason: Unpublishable, left: int) -> None:
        raise NotImplementedError

    def _as_recorded(self, group: Group, known: Progress) -> Progress:
        raise NotImplementedError

    def _open_publisher(self) -> Publisher:
        raise NotImplementedError

    def _record(self) -> None:
        raise NotImplementedError

    def _note(self, acknowledged: Sequence[Batch], messages: int) -> None:
        raise NotImplementedError
