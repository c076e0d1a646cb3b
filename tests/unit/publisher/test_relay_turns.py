"""Which groups of lanes a turn of the relay reads, and when a lane's patience is over."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from outbox_relay.publisher.batch import Batch, Stop
from outbox_relay.publisher.counts import Counts
from outbox_relay.publisher.doubts import Doubts
from outbox_relay.publisher.errors import BrokenError, Refused, Unpublishable
from outbox_relay.publisher.finder import FIELDS
from outbox_relay.publisher.lane_groups import Care, Group, of_lane
from outbox_relay.publisher.overdue import Overdue
from outbox_relay.publisher.probe import PartitionState
from outbox_relay.publisher.producing import Publisher
from outbox_relay.publisher.reader import Page, Reader
from outbox_relay.publisher.recovery import regroup
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.snapshot import BEGINNING, START, Progress, Snapshot
from outbox_relay.publisher.stops import Stops
from outbox_relay.publisher.topic_lookup import _refused

BEHIND = Progress(Snapshot(10, 10))
SEEN, NOW = Snapshot(20, 20), Snapshot(30, 30)
LEADERLESS = PartitionState("it has no leader", "LEADER_NOT_AVAILABLE")


def _session(groups: list[Group]) -> Session:
    """Make a session of these groups with nothing on the wire; its turns are the test's."""
    session = Session.__new__(Session)
    session._groups, session._pages, session._burdened = groups, [], frozenset()
    session._ended, session._behind = {}, set()
    session._publisher = cast("Any", SimpleNamespace(unacknowledged=0, aside={}))
    session._let_go_on = lambda: None  # type: ignore[method-assign]
    session._drain_next = lambda: False  # type: ignore[method-assign]
    session._move_topics = lambda: True  # type: ignore[method-assign]
    return session


def test_a_lane_set_aside_in_a_careful_turn_is_not_read_on_in_that_turn() -> None:
    known = Progress(Snapshot(10, 10))
    careful, late, well = (Group({lane}, known) for lane in (1, 2, 3))
    careful.careful = Care(5)
    session = _session([careful, late, well])
    read: list[list[Group]] = []

    def turn_of(groups: list[Group], *, alone: bool) -> bool:
        read.append(groups)
        if alone:
            # Settling takes long: its own lane and another one are set aside, and the mark is taken away.
            careful.paused = late.paused = True
            careful.careful = None
        return True

    session._turn_of = turn_of  # type: ignore[method-assign]
    assert session._turn()
    assert read == [[careful], [well]]


def test_a_careful_page_that_waits_for_its_barrier_goes_out_with_no_other() -> None:
    known = Progress(Snapshot(10, 10))
    careful, plain = Group({1}, known, careful=Care(5)), Group({2}, known)
    session = _session([careful, plain])
    read: list[list[Group]] = []

    def turn_of(groups: list[Group], *, alone: bool) -> bool:
        read.append(groups)
        if alone:
            session._pages = [Page(careful, [], known, known)]
        return False

    session._turn_of = turn_of  # type: ignore[method-assign]
    assert not session._turn()
    assert read == [[careful]]


def test_an_acknowledgement_at_the_last_moment_is_no_reason_to_give_up() -> None:
    class Slot(SimpleNamespace):
        pass

    slot = Slot(topic="t", partition=0, offsets=[])
    head = SimpleNamespace(needs=[(slot, 1)], waiting=lambda: [] if slot.offsets else [(slot, 0)])
    publisher = cast("Publisher", SimpleNamespace(aside={2: deque([head])}, in_flight=deque()))
    overdue = Overdue(lambda partitions: dict.fromkeys(partitions, LEADERLESS), patience=3.0)
    assert overdue.hopeless(publisher, 0.0) == {}
    assert overdue._asked is not None
    overdue._asked.result(10)
    assert overdue.hopeless(publisher, 1.0) == {}
    assert overdue.hopeless(publisher, 2.0) == {}, "its patience began with the first answer"
    slot.offsets.append(7)
    assert overdue.hopeless(publisher, 60.0) == {}
    overdue.close()


def test_a_partition_that_has_its_replicas_again_is_waited_for_anew() -> None:
    """A flap: the silence up to now is explained, and a stop of the lane would hold up all its keys."""
    slot = SimpleNamespace(topic="t", partition=0, offsets=[])
    head = SimpleNamespace(needs=[(slot, 1)], waiting=lambda: [(slot, 0)])
    publisher = cast("Publisher", SimpleNamespace(aside={2: deque([head])}, in_flight=deque()))
    state = PartitionState("too few replicas", "NOT_ENOUGH_REPLICAS")
    overdue = Overdue(lambda partitions: dict.fromkeys(partitions, state), patience=3.0)

    def hopeless(now: float) -> list[str]:
        if overdue._asked is not None:
            overdue._asked.result(10)
        return [reason.code for reason in overdue.hopeless(publisher, now).values()]

    for now in (0.0, 1.0, 2.1, 3.2):
        assert hopeless(now) == []
    state = PartitionState("its leader does not acknowledge")
    assert hopeless(3.9) == [], "asked before it healed"
    hopeless(4.3)
    for now in (5.4, 6.5, 7.6):
        assert hopeless(now) == [], "its patience began again"
    assert hopeless(8.7) == ["PARTITION_UNAVAILABLE"]
    overdue.close()


def test_no_later_batch_of_a_lane_can_be_taken_for_the_one_that_it_waited_for() -> None:
    class Head(SimpleNamespace):
        """A batch; unlike its base it can be referred to weakly."""

    def batch() -> Any:
        slot = SimpleNamespace(topic="t", partition=0, offsets=[])
        return Head(needs=[(slot, 1)], waiting=lambda: [(slot, 0)])

    aside = {2: deque([batch()])}
    publisher = cast("Publisher", SimpleNamespace(aside=aside, in_flight=deque()))
    overdue = Overdue(lambda partitions: dict.fromkeys(partitions, LEADERLESS), patience=3.0)
    overdue.hopeless(publisher, 0.0)
    assert overdue._asked is not None
    overdue._asked.result(10)
    overdue.hopeless(publisher, 1.0)
    first = weakref.ref(aside[2].popleft())
    assert first() is not None, "it is kept, so the next one cannot lie in its place and have its identity"
    aside[2].append(batch())
    assert overdue.hopeless(publisher, 60.0) == {}, "the patience with the next one begins"
    overdue.close()


def test_a_defect_while_a_lane_is_given_up_is_named_and_starts_over() -> None:
    session = Session.__new__(Session)
    session._overdue = cast("Any", SimpleNamespace(
        is_due=lambda now: True, late=lambda *_: set(), hopeless=lambda *_: {2: Unpublishable("X", "x")}
    ))  # fmt: skip

    def give_up(lane: int, reason: Unpublishable) -> None:
        raise KeyError(lane)

    session._publisher = cast(
        "Any", SimpleNamespace(give_up=give_up, aside={2: [SimpleNamespace(drain=None)]})
    )
    with pytest.raises(BrokenError, match=r"internal error in give_up .*KeyError: 2"):
        session._watch()


def test_a_lane_that_stops_in_one_part_keeps_the_care_of_another() -> None:
    floor = Progress(Snapshot(10, 10), is_partial=True)
    rest, careful = of_lane(3, floor, {77: Care(1_000)})
    session = _session([rest, careful])
    stop = Stop(3, floor, 500, "m", Unpublishable("X", "x"))
    batch = Batch((3,), floor, floor, stops=[stop])
    session._publisher = cast("Any", SimpleNamespace(publish=lambda *_, **__: batch))
    session._stops, session.counts = Stops(), Counts()
    session._publish(Page(rest, [(500, *[None] * (len(FIELDS) - 1))], floor, floor))
    assert not rest.lanes
    (stopped,) = session._stops.due(float("inf"))
    assert stopped.careful == {77: Care(1_000)}


@pytest.mark.parametrize("behind", [True, False])
def test_a_stop_is_marked_where_its_lane_had_not_caught_up(*, behind: bool) -> None:
    """Keys that are drained meanwhile may lie beyond it."""
    known = Progress(Snapshot(20, 20), Snapshot(10, 10), 499)
    marked = replace(known, is_partial=behind)
    lanes = {3} if behind else {2}
    refused = {3: Refused(500, "m", "t", "INVALID_RECORD: x")}
    recorder = cast("Any", SimpleNamespace(recorded={3: known}, stop=lambda stop: None))
    stops = Stops()
    assert not regroup(
        [Group({3}, known, careful=Care(500))], stops, recorder, refused, lambda topic: 77, behind=lanes
    )
    assert stops.now()[3].progress == marked

    session = _session([Group({3}, known)])
    session._behind, session._stops = lanes, Stops()
    done = Batch((), known, known, stops=[Stop(3, known, 500, "m", Unpublishable("X", "x"), in_flight=True)])
    session._publisher = cast(
        "Any",
        SimpleNamespace(give_up=lambda *_: (done, 1, []), aside={3: [SimpleNamespace(drain=None)]}),
    )
    session._recorder = cast("Any", SimpleNamespace(doubts=Doubts(), commit=lambda *_: 0))
    session._partitions = cast("Any", SimpleNamespace(bounds=list))
    session._note = lambda *_: None  # type: ignore[method-assign]
    session._reload_keys = lambda lanes: None  # type: ignore[method-assign]
    session._give_up(3, Unpublishable("X", "x"))
    assert session._stops.now()[3].progress == marked


@pytest.mark.parametrize(
    "known", [BEHIND, replace(BEHIND, is_partial=True), Progress(BEHIND.snapshot, BEHIND.snapshot, 5)]
)
def test_only_the_topic_of_a_refused_message_goes_carefully_in_its_lane(known: Progress) -> None:
    refused = {3: Refused(500, "m", "t", "INVALID_RECORD: x", seen=SEEN)}
    recorder = cast("Any", SimpleNamespace(recorded={3: known}))
    groups = regroup([Group({3}, known)], Stops(), recorder, refused, lambda topic: 77, behind=())
    assert [(group.topic, group.careful) for group in groups] == [(None, None), (77, Care(500, SEEN))]
    assert {group.progress.floor for group in groups} == {BEHIND.snapshot}


@pytest.mark.parametrize("known", [START, Progress(SEEN, BEGINNING, 5)])
def test_a_lane_without_progress_goes_carefully_as_a_whole(known: Progress) -> None:
    """The list of all that has no publication does not tell topics apart: two groups would publish all of it."""
    refused = {3: Refused(500, "m", "t", "INVALID_RECORD: x", seen=SEEN)}
    recorder = cast("Any", SimpleNamespace(recorded={3: known}))
    (group,) = regroup([Group({3}, known)], Stops(), recorder, refused, lambda topic: 77, behind=())
    assert (group.topic, group.careful, group.progress) == (None, Care(500, SEEN), known)


@pytest.mark.parametrize(("seen", "upto"), [(SEEN, SEEN), (None, NOW), (Snapshot(5, 5), NOW)])
def test_a_careful_list_ends_at_what_was_visible_as_its_message_was_read(
    monkeypatch: pytest.MonkeyPatch, seen: Snapshot | None, upto: Snapshot
) -> None:
    """Unless that is not known, or the group has come further."""
    reader = Reader(cast("Any", SimpleNamespace(page_size=10)), cast("Any", None), cast("Any", None))
    monkeypatch.setattr(Reader, "_answers", lambda *_: [SimpleNamespace(snapshot=NOW)])
    listed: list[Progress] = []
    monkeypatch.setattr(Reader, "_list", lambda _, group: listed.append(group.progress))
    reader._list_difference(Group({3}, BEHIND, careful=Care(500, seen)))
    assert listed == [Progress(upto, BEHIND.snapshot, 0)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError.TOPIC_EXCEPTION, False),
    ],
)
def test_only_a_topic_that_is_missing_is_to_be_created(code: int, *, told: bool) -> None:
    refused = _refused("orders", KafkaError(code))
    assert ("outbox topic create orders" in str(refused)) is told
