"""All schedules of small worlds: after every state that is reached, a recovery and the checks."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from outbox_relay.publisher.core import Core
from tests.support.core_search.actions import Action, do, possible
from tests.support.core_search.checks import check, check_step, recover
from tests.support.core_search.schedules import SMALL
from tests.support.core_search.tables import Draft, Kind
from tests.support.core_search.world import Setting, World

LEFT_OUT = {"replicate", "signals", "stop", "insert", "commit"}
RNG = random.Random(0)


@dataclass(frozen=True)
class Small:
    """A small world: one key, a few rows, a few faults."""

    rows: int = 2
    faults: int = 1
    takes: int = 1
    crashes: int = 0
    bad: int = 0
    """The row that Kafka refuses, from 1; 0 for none."""
    kind: Kind = "poison"


@dataclass
class Reached:
    """What was reached: the states, whether these are all, and the first schedule to each violation."""

    states: int = 0
    is_complete: bool = False
    faults: dict[str, tuple[Action, ...]] = field(default_factory=dict)


def start(small: Small, core: Any = Core, flags: frozenset[str] = frozenset()) -> World:
    """Make the world; the last row is not flushed."""
    budget = {
        "insert": 0,
        "fault": small.faults,
        "take": small.takes,
        "operator": 0,
        "server": small.crashes,
        "lag": 0,
        "group": 0,
    }
    limits = replace(SMALL, page=2, rows=4)
    w = World(Setting(is_asynchronous=True, budget=budget, limits=limits), core, flags)
    for number in range(1, small.rows + 1):
        w.postgres.begin_insert([Draft("b", "b1", small.kind if number == small.bad else "")])
        w.postgres.commit(number, is_synchronous=number < small.rows)
    return w


def _name(w: World) -> bytes:
    now, w.now = w.now, 0.0
    for leader in w.leaders:
        leader.ages = {}
    name = hashlib.blake2b(pickle.dumps(w), digest_size=16).digest()
    w.now = now
    return name


def _is_useful(state: bytes, action: Action) -> bool:
    """Reads that find nothing and writes that cover nothing only count up: with them there would be no end."""
    if action[0] not in ("read", "write", "begin_write"):
        return True
    core = pickle.loads(state).leaders[action[1]].core
    if action[0] != "read":
        return core.next_write() is not None
    w = pickle.loads(state)
    before = _progress(w.leaders[action[1]].core)
    do(w, action, RNG)
    return before != _progress(w.leaders[action[1]].core)


def _progress(core: Any) -> tuple[Any, ...]:
    lists = [(name, one.is_done, one.until is None) for name, one in core.sources.catch_ups.items()]
    return (
        core.memory.rows,
        len(core.holds.claims),
        [hold.may_read for hold in core.holds.by_scope.values()],
        lists,
    )


def explore(
    small: Small, *, core: Any = Core, flags: frozenset[str] = frozenset(), most: int = 1 << 40
) -> Reached:
    """Visit states, nearest first, until all or `most` were visited."""
    w = start(small, core, flags)
    seen = {_name(w)}
    queue: deque[tuple[bytes, tuple[Action, ...]]] = deque([(pickle.dumps(w), ())])
    found = Reached()
    while queue and len(seen) < most:
        state, path = queue.popleft()
        for action in possible(pickle.loads(state)):
            if action[0] in LEFT_OUT or not _is_useful(state, action):
                continue
            after: World = pickle.loads(state)
            do(after, action, RNG)
            check_step(after)
            name = _name(after)
            if name in seen:
                continue
            seen.add(name)
            kept = pickle.dumps(after)
            recover(after, RNG)
            faults = check(after)
            for fault in faults:
                found.faults.setdefault(fault, (*path, action))
            if not faults:
                queue.append((kept, (*path, action)))
    found.states, found.is_complete = len(seen), not queue
    return found
