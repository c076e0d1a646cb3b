"""What must be true at the end of every schedule, after a recovery."""

from __future__ import annotations

import random
from collections import Counter

from outbox_relay.publisher.core.values import EXPIRED_SCOPE
from tests.support.core_search.actions import Action, do, of_kafka, possible
from tests.support.core_search.leader import Leader
from tests.support.core_search.tables import DELAYED, Msg
from tests.support.core_search.transacting import ExactLeader, new_leader
from tests.support.core_search.world import ALL, World

QUIET, PAUSE = 20, 6
"""Turns without a change after which none comes, and after which the longest pause is over."""


def turn(w: World, rng: random.Random, *noticed: str) -> None:
    """Let the last leader take one turn of the loop, and let Kafka take what it can.

    Args:
        w: the world.
        rng: for its choices.
        noticed: what the leader notices after it has sent.
    """
    leader = w.last
    assert leader is not None
    number = len(w.leaders) - 1
    if isinstance(leader, ExactLeader):
        _turn_batches(w, leader, number, rng)
        return
    for name in ("end_write", "signals", "read", "write", "send", *noticed):
        if leader.is_alive:
            do(w, (name, number), rng)
    for action in _deliveries(w):
        if leader.wire[action[2]][action[3]]:
            do(w, action, rng)


def _turn_batches(w: World, leader: ExactLeader, number: int, rng: random.Random) -> None:
    """Take a turn of a leader that delivers exactly once."""
    for name in ("end_write", "signals", "read", "write"):
        if leader.is_alive and leader.has_core:
            do(w, (name, number), rng)
    of_leader = ("init", "fetch", "prove", "seal", "begin", "end", "produce")
    for _ in range(3):
        for action in possible(w):
            if action in of_kafka(w) or (
                action[0] in of_leader and action[1] == number and action in possible(w)
            ):
                do(w, action, rng)


def _deliveries(w: World) -> list[Action]:
    number = len(w.leaders) - 1
    return [
        ("deliver", number, producer, name, True)
        for producer, wires in w.leaders[number].wire.items()
        for name, items in wires.items()
        if items and name not in w.stuck
    ]


def recover(w: World, rng: random.Random) -> None:
    """End the faults, but not what fails; let a leader publish all other keys. Then repair the cause."""
    postgres, db = w.postgres, w.postgres.db
    w.stuck.clear()
    db.paused = frozenset()
    db.asked.setdefault("n", 1)
    for xid in list(postgres.active):
        do(w, ("commit", xid, True), rng)
    for id_ in [id_ for id_, wait in db.waiting.items() if wait.scope == DELAYED]:
        do(w, ("release", id_), rng)
    postgres.flush()
    w.setting.budget.update(dict.fromkeys(w.setting.budget, 0))
    last = w.last
    if last is None or not last.is_alive or last.core.is_stopping:
        w.leaders.append(new_leader(w))
    for old in w.leaders[:-1]:
        old.is_alive = False
    asked, db.requests = db.requests, frozenset()
    turns(w, 1500, rng)
    if _blocked(w) and not _stopped(w):
        w.faults.append("BLOCKED")
    postgres.kinds.poison.clear()
    postgres.kinds.fault.clear()
    db.requests = asked
    turns(w, 600, rng, ask=True)


def _stopped(w: World) -> bool:
    """Return whether the last leader stopped because Kafka did not prove what was sent."""
    return isinstance(w.last, ExactLeader) and bool(w.last.stopped)


def _blocked(w: World) -> bool:
    """Return whether a message waits although no message of its key failed, and few keys of its topic had one."""
    kinds = w.postgres.kinds
    messages = list(w.postgres.db.messages.values())
    sick: dict[str, set[object]] = {}
    """What a topic may hold for failed messages: keys, and messages that have no order."""
    for msg in messages:
        if msg.uid in kinds.ever_bad:
            has_order = msg.key is not None and msg.topic != "s"
            sick.setdefault(msg.topic, set()).add(msg.key if has_order else msg.uid)
    many = {topic for topic, some in sick.items() if len(some) > w.setting.limits.holds}
    return any(
        w.postgres.is_unpublished(msg)
        and msg.state == "COMMITTED"
        and msg.topic not in many
        and msg.uid not in kinds.expiring
        and not {msg.key, msg.uid} & sick.get(msg.topic, set())
        for msg in messages
    )


def turns(w: World, most: int, rng: random.Random, *, ask: bool = False, until_done: bool = True) -> None:
    """Let the last leader take turns until nothing changes, or all is published."""
    leader, quiet = w.last, 0
    assert leader is not None
    db = w.postgres.db
    for _ in range(most):
        if not leader.is_alive or quiet > QUIET:
            return
        state = _state(w)
        if ask:
            db.requests |= {scope for scope in db.holds if scope.kind != "partition"}
        turn(w, rng)
        if until_done and _is_done(w, leader):
            return
        if quiet == PAUSE:
            w.now += w.setting.limits.longest_pause
        quiet = 0 if state != _state(w) else quiet + 1


def _state(w: World) -> tuple[object, ...]:
    """Return what changes until all is published. Rows go from a wide hold to a narrow one, page by page."""
    db = w.postgres.db
    waiting = tuple([(id_, wait.scope) for id_, wait in db.waiting.items()])
    return len(w.log), len(db.publication), len(db.holds), waiting


def _is_done(w: World, leader: Leader) -> bool:
    db = w.postgres.db
    if (
        db.holds
        or any(wait.scope != EXPIRED_SCOPE for wait in db.waiting.values())
        or leader.core.memory.rows
    ):
        return False
    return all(
        not w.postgres.is_unpublished(msg) or msg.state != "COMMITTED" or msg.id in db.waiting
        for msg in db.messages.values()
    )


def check(w: World) -> set[str]:
    """Return which promises a schedule broke."""
    found = set(w.faults)
    first: dict[int, int] = {}
    for place, record in enumerate(w.committed):
        first.setdefault(record.uid, place)
    if _stopped(w) and not (w.is_group_lost or w.postgres.is_lossy):
        found.add("STOPPED")
    states = {msg.uid: msg for msg in w.postgres.db.messages.values()}
    found |= _order(w, first, states)
    if w.setting.is_sudden and w.setting.kinds[1] == 0 and not w.postgres.is_lossy:
        found |= _stale(w)
    for uid in first:
        if uid in states and states[uid].state in ("DEAD", "SKIPPED"):
            found.add("DEAD, IN KAFKA")
    db, leader = w.postgres.db, w.last
    if _stopped(w):
        return (found - {"LOSS"}) | _twice(w)
    if db.holds or any(wait.scope != EXPIRED_SCOPE for wait in db.waiting.values()):
        found.add("STUCK")
    if leader is not None and leader.core.memory.rows:
        found.add("LEAK")
    return found | _twice(w)


def _twice(w: World) -> set[str]:
    seen: set[int] = set()
    for record in w.committed:
        may_be = ALL in w.disturbed or record.topic in w.disturbed
        if record.uid in seen and (w.setting.is_exactly_once or not may_be):
            return {"TWICE"}
        seen.add(record.uid)
    return set()


def _order(w: World, first: dict[int, int], states: dict[int, Msg]) -> set[str]:
    found = set()
    kinds = w.postgres.kinds
    last_place: dict[str | None, int] = {}
    for uid, _, key in w.postgres.order:
        if uid in first and uid not in kinds.exempt:
            if first[uid] < last_place.get(key, -1):
                found.add("ORDER")
            last_place[key] = max(first[uid], last_place.get(key, -1))
        if uid not in first and states[uid].state == "COMMITTED" and uid not in kinds.expiring:
            found.add("LOSS")
    return found


def _stale(w: World) -> set[str]:
    """What comes again comes in order, too: without a zombie the last record of a key is its newest message."""
    last = {record.uid: place for place, record in enumerate(w.log)}
    newest: dict[str | None, int] = {}
    for uid, topic, key in w.postgres.order:
        if uid in last and uid not in w.postgres.kinds.exempt and topic not in w.disturbed:
            if last[uid] < newest.get(key, -1):
                return {"STALE"}
            newest[key] = last[uid]
    return set()


def check_step(w: World) -> None:
    """Check after every action that the memory is bounded and counts all, and that no stream is empty."""
    limits = w.setting.limits
    for leader in w.leaders:
        if not leader.is_alive:
            continue
        core = leader.core
        rows = len(core.streams.published) + len(core.holds.claims)
        streams = [len(one.queued) + len(one.sent) for one in core.streams.by_name.values()]
        if not all(streams):
            w.faults.append("EMPTY")  # it would keep the leadership from being given back
        rows += sum(streams)
        if not rows <= core.memory.rows <= limits.rows or core.memory.size > limits.size:
            w.faults.append("MEMORY")
        if len(core.sources.open) > core.memory.rows:
            w.faults.append(
                "MEMORY"
            )  # statements that found nothing would be kept for as long as nothing is written
        narrow = Counter(scope.topic for scope in core.holds.by_scope if scope.kind in ("key", "message"))
        if narrow and max(narrow.values()) > limits.holds:
            w.faults.append("HOLDS")
