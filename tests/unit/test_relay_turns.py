"""Which groups of lanes a turn of the relay reads, and when a lane's patience is over."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from outbox_relay.finder.snapshot import Progress, Snapshot
from outbox_relay.publishing.publisher import Publisher
from outbox_relay.service.groups import Group
from outbox_relay.service.overdue import Overdue
from outbox_relay.service.session import Session


def test_a_lane_set_aside_in_a_careful_turn_is_not_read_on_in_that_turn() -> None:
    known = Progress(Snapshot(10, 10))
    careful, late, well = (Group({lane}, known) for lane in (1, 2, 3))
    careful.careful = 5
    session = Session.__new__(Session)
    session._groups = [careful, late, well]
    session._is_burdened = False
    session._publisher = cast("Any", SimpleNamespace(unacknowledged=0, aside={}))
    session._let_go_on = lambda: None  # type: ignore[method-assign]
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


def test_an_acknowledgement_at_the_last_moment_is_no_reason_to_give_up() -> None:
    class Slot(SimpleNamespace):
        pass

    slot = Slot(topic="t", partition=0, offsets=[])
    head = SimpleNamespace(needs=[(slot, 1)], waiting=lambda: [] if slot.offsets else [(slot, 0)])
    publisher = cast("Publisher", SimpleNamespace(aside={2: deque([head])}, in_flight=deque()))
    overdue = Overdue(lambda partitions: dict.fromkeys(partitions, "it has no leader"), patience=3.0)
    assert overdue.hopeless(publisher, 0.0) == {}
    assert overdue._asked is not None
    overdue._asked.result(10)
    assert overdue.hopeless(publisher, 1.0) == {}
    assert overdue.hopeless(publisher, 2.0) == {}, "its patience began with the first answer"
    slot.offsets.append(7)
    assert overdue.hopeless(publisher, 60.0) == {}
    overdue.close()
