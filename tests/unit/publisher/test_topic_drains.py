"""When the drain of a parked topic begins, and when it is put off: none of it may be in a list, or come with a poll."""

from __future__ import annotations

import time
from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox_relay.publisher.lane_groups import Group, Split
from outbox_relay.publisher.parked import Held, KeyDrain
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.snapshot import Progress, Snapshot
from outbox_relay.publisher.waking import Waking

LANE, TOPIC, HASH, NUMBER = 3, "t", 7, -11
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
    session._parked = cast("Any", SimpleNamespace(held=held, withdraw=withdrawn.append, withdrawn=withdrawn))
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
    session._drain = KeyDrain(LANE, NUMBER, (LANE, TOPIC, None, None), time.monotonic(), pages=3)
    assert not session._drain_next()
    assert vars(session)["_drain"] is None
    assert cast("Any", session._parked).withdrawn == [[LANE]], "nothing of it is on the wire"
