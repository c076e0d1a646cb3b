"""Short scripts of the world: what a successor of a leader, or of a server, finds in the tables."""

from __future__ import annotations

import random
from typing import Any

from outbox_relay.publisher.core.values import Scope
from tests.support.core_search.actions import Action, do, possible
from tests.support.core_search.checks import turn
from tests.support.core_search.schedules import BUDGET, SMALL
from tests.support.core_search.tables import Draft, Kind
from tests.support.core_search.world import Setting, World

KEY = Scope("key", "b", "b1")
RNG = random.Random(0)
Flags = frozenset[str]


def _world(made: Any, flags: Flags, kind: Kind = "") -> World:
    """Make a world with one message."""
    w = World(Setting(budget={**BUDGET, "lag": 1}, limits=SMALL), made, flags)
    w.postgres.begin_insert([Draft("b", "b1", kind)])
    _act(w, ("commit", 1, True))
    return w


def _act(w: World, *actions: Action) -> None:
    for action in actions:
        do(w, action, RNG)


def _turns(w: World, count: int = 12) -> None:
    for _ in range(count):
        turn(w, RNG)


def _refuses_dead(w: World) -> bool:
    """Return whether operators may not set a message aside that Kafka has."""
    return bool(w.log) and all(action[0] != "dead" for action in possible(w))


def what_is_announced_is_in_doubt_for_a_successor(made: Any, flags: Flags) -> bool:
    """A message of a hold is in Kafka when its leader dies."""
    w = _world(made, flags, "poison")
    _act(w, ("take",))
    _turns(w)
    _act(w, ("repair",), ("retry", KEY), ("signals", 0), ("write", 0), ("read", 0), ("read", 0), ("send", 0))
    leader = w.leaders[0]
    producer = next(iter(leader.core.streams.by_name.values())).producer
    leader.deliver(producer, ("b", 0), is_answered=True)
    _act(w, ("kill", 0), ("take",), ("signals", 1), ("write", 1), ("read", 1), ("read", 1))
    _act(w, ("pause", "b"), ("signals", 1), ("write", 1))
    return _refuses_dead(w)


def operators_wait_for_a_leader_of_a_new_server(made: Any, flags: Flags) -> bool:
    """A standby lags: for its tables a message waits that is in Kafka."""
    w = _world(made, flags, "poison")
    _act(w, ("take",))
    _turns(w)
    _act(w, ("replicate",), ("repair",), ("retry", KEY))
    _turns(w)
    _act(w, ("promote",))
    return _refuses_dead(w)


def a_new_server_is_not_clean(made: Any, flags: Flags) -> bool:
    """A standby lags: for its tables no leader began, but a message is in Kafka. It is read again, and then held."""
    w = _world(made, flags)
    _act(w, ("replicate",), ("take",))
    _turns(w)
    _act(w, ("promote",), ("pause", "b"), ("take",))
    _turns(w)
    return bool(w.postgres.db.waiting) and _refuses_dead(w)


def what_was_sent_again_hides_what_is_in_front_of_it(made: Any, flags: Flags) -> bool:
    """A leader sends 1 and 2 and dies. Its successor reads nothing back, sends 1 again, records that, and dies, too.

    The third one finds 2 at its old place, in front of the recorded 1: it is sent again, or 1 would be the newest.
    """
    w = _world(made, flags)
    w.postgres.begin_insert([Draft("b", "b1")])
    _act(w, ("commit", 2, True))
    for number, count in enumerate((2, 1, 1)):
        w.setting.reads_back = "all" if number == 2 else ""
        _act(w, ("take",), ("read", number), ("write", number), ("send", number))
        leader = w.leaders[number]
        for producer, wires in list(leader.wire.items()):
            for _ in range(min(count, len(wires["b", 0]))):
                leader.deliver(producer, ("b", 0), is_answered=True)
        if number:
            _act(w, ("write", number))
        _act(w, ("kill", number))
    return [record.uid for record in w.log] == [1, 2, 1, 2]
