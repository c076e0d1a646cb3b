"""When the drain of a parked topic begins, and when it is put off: none of it may be in a list, or come with a poll."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.lane_groups import Group, Split
from outbox_relay.publisher.parked import Claim, Held, KeyDrain, ParkedKeys
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.snapshot import Progress, Snapshot
from outbox_relay.publisher.waking import Waking

LANE, TOPIC, HASH, NUMBER = 3, "t", 7, -11
OF_TOPIC = (LANE, TOPIC, None, None)
LEVEL = Progress(Snapshot(20, 20))
FLOOR = Progress(Snapshot(10, 10), is_partial=True)
LISTED = Progress(Snapshot(20, 20), Snapshot(10, 10), 0)


def session_of(*groups: Group) -> Session:
    """Return a session with a parked topic that can be published to again."""
    session = Session.__new__(Session)
    session._groups, session._pages, session._burdened = list(groups), [], frozenset()
    session._behind, session._leaving, session._ended, session._hashes = set(), frozenset(), {}, {}
    held = Held()
    held.park((LANE, TOPIC, None, None), NUMBER)
    withdrawn: list[list[int]] = []
    session._parked = cast(
        "Any",
        SimpleNamespace(
            held=held, withdraw=withdrawn.append, withdrawn=withdrawn, announced=frozenset[int]()
        ),
    )
    session._recorder = cast("Any", SimpleNamespace(unwritten=set[int]()))
    session._waking = Waking(open={TOPIC})
    session._stops = cast("Any", SimpleNamespace(now=dict))
    session._finder = cast("Any", SimpleNamespace(hash_of_topic=lambda topic: HASH))
    session._publisher = cast("Any", SimpleNamespace(aside={}, unrecorded=list))
    return session


def apart(progress: Progress, topic: int, *, rest: Progress = LEVEL) -> list[Group]:
    """Return the groups of the lane, of which this topic is read apart."""
    split = Split({topic})
    return [Group({LANE}, rest, split=split), Group({LANE}, progress, split=split, topic=topic)]


READ = {
    "its lane is read": [Group({LANE}, LEVEL)],
    "its lane is stopped": [Group({LANE + 1}, FLOOR)],
    "the list of another topic is open": apart(LISTED, HASH + 1),
    "its own list is taken": apart(LEVEL, HASH, rest=FLOOR),
}
NOT_READ = {
    "its own list is open": apart(LISTED, HASH),
    "the list of a lane is open": [Group({LANE}, LISTED, array("q", [1]))],
    "it goes on from a floor": [Group({LANE}, FLOOR)],
    "its part goes on from a floor": apart(FLOOR, HASH),
    "another topic is read, and the rest is not": apart(LEVEL, HASH + 1, rest=FLOOR),
}


@pytest.mark.parametrize("name", READ)
def test_a_topic_is_drained_when_all_that_waits_for_it_is_read(name: str) -> None:
    drain = session_of(*READ[name])._open_topic({LANE})
    assert drain is not None
    assert (drain.lane, drain.number, drain.key) == (LANE, NUMBER, (LANE, TOPIC, None, None))


@pytest.mark.parametrize("name", NOT_READ)
def test_a_topic_is_not_drained_while_a_list_may_hold_it(name: str) -> None:
    """Its positions would have to be remembered: there may be millions."""
    assert session_of(*NOT_READ[name])._open_topic({LANE}) is None


def test_a_flood_puts_the_drain_of_its_topic_off() -> None:
    session = session_of(*apart(LISTED, HASH))
    session._drain = KeyDrain(LANE, NUMBER, OF_TOPIC, time.monotonic(), pages=3, is_announced=True)
    wire = [Batch((LANE,), LEVEL, LEVEL), Batch((), LEVEL, LEVEL, drain=session._drain)]
    session._publisher = cast("Any", SimpleNamespace(aside={}, unrecorded=lambda: wire))
    assert not session._drain_next()
    assert vars(session)["_drain"] is not None, "its page is on the wire"
    assert cast("Any", session._parked).withdrawn == []
    wire.pop()
    assert not session._drain_next()
    assert vars(session)["_drain"] is None
    assert cast("Any", session._parked).withdrawn == [[LANE]], "nothing of the drain is on the wire"


def test_a_drain_that_was_not_announced_waits_for_nothing_on_the_wire() -> None:
    session = session_of(*apart(LISTED, HASH))
    session._drain = KeyDrain(LANE, NUMBER, OF_TOPIC, time.monotonic())
    wire = [Batch((), LEVEL, LEVEL, drain=session._drain)]
    session._publisher = cast("Any", SimpleNamespace(aside={}, unrecorded=lambda: wire))
    assert not session._drain_next()
    assert vars(session)["_drain"] is None
    assert cast("Any", session._parked).withdrawn == []


@pytest.mark.parametrize("name", [*READ, *NOT_READ])
def test_a_request_for_a_topic_that_is_not_drained_yet_keeps_no_other_waiting(name: str) -> None:
    session = session_of(*(READ | NOT_READ)[name])
    session._waking.open.clear()
    asked: list[list[int]] = []

    def requested(lanes: Iterable[int], without: Iterable[int], open_: Iterable[str]) -> None:
        asked.append([*without])

    cast("Any", session._parked).requested = requested
    session._drain_at = 0.0
    session._drain_next()
    without = [NUMBER] if name in NOT_READ else []
    assert asked == ([without] if session._drainable() else [])


class Waiting:
    """What waits for the topic, by its places, as a connection that announces pages of it."""

    def __init__(self, places: Iterable[int]) -> None:
        self.places = set(places)
        self.begun: list[int] = []

    def execute(self, statement: str, values: Mapping[str, Any], *, prepare: bool) -> Any:
        self.begun.append(values["since"])
        listed = [place for place in sorted(self.places) if place >= values["since"]][: values["most"]]
        return SimpleNamespace(fetchone=lambda: (values["number"], listed, max(listed, default=None)))


class Drain:
    """The drain of a topic in pages of two messages."""

    def __init__(self, *places: int) -> None:
        self.waiting = Waiting(places)
        lease = cast("Any", SimpleNamespace(epoch=1, owner="relay-1"))
        self.parked = ParkedKeys(cast("Any", self.waiting), lease)
        self.of_topic = KeyDrain(LANE, NUMBER, (LANE, TOPIC, None, None), time.monotonic())

    def page(self) -> list[int]:
        """Publish the next page, as `_publish_held` does when nothing keeps it from its end."""
        ids = list(self.parked.announce(self.of_topic, 2) or ())
        self.waiting.places -= set(ids)
        self.of_topic.since = self.of_topic.listed_to + 1
        return ids

    def join(self, place: int, number: int = NUMBER) -> None:
        """Let a message join that was committed late."""
        self.waiting.places.add(place)
        self.parked.held.join(Claim(LANE, place, place, f"m{place}", number, None))


def test_a_page_of_a_drain_begins_behind_what_was_published() -> None:
    """What was deleted in front of it stays in the index while somebody holds a snapshot: all of it, at every page."""
    drain = Drain(10, 20, 30, 40)
    assert [drain.page() for _ in range(3)] == [[10, 20], [30, 40], []]
    assert drain.waiting.begun == [0, 21, 41, 0], "the last one begins at the first place, too"


def test_a_message_that_joins_a_drain_with_a_lower_place_comes_first() -> None:
    drain = Drain(10, 20, 30, 40, 50, 60)
    assert drain.page() == [10, 20]
    drain.join(12)
    drain.join(70)
    drain.join(5, number=NUMBER - 1)
    assert drain.page() == [12, 30]
    assert drain.page() == [40, 50]
    assert drain.waiting.begun == [0, 12, 31]


def test_a_key_is_not_freed_by_what_a_session_remembers() -> None:
    drain = Drain(10, 20, 30)
    assert drain.page() == [10, 20]
    drain.waiting.places.add(12)
    assert drain.page() == [12, 30]
    assert drain.page() == []


def test_another_drain_begins_at_the_first_place() -> None:
    drain = Drain(10, 20, 30)
    assert drain.page() == [10, 20]
    drain.waiting.places |= {10, 20}
    drain.parked.held.following = NUMBER - 1
    assert drain.page() == [10, 20]
