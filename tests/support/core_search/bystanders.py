"""Bystanders: while some topics, partitions or keys misbehave, everything else is published within a few turns."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from outbox_relay.publisher.core.values import Row
from tests.support.core_search.actions import do
from tests.support.core_search.checks import turn, turns
from tests.support.core_search.leader import Leader, partition_of
from tests.support.core_search.tables import Draft, Kind, Msg
from tests.support.core_search.world import KEYS, World

BOUND = 9
"""Turns of the loop within which a message of a topic that nothing is wrong with is published. One is for a list that
is still being made when its first page is asked for."""
BOUND_BESIDE = 22
"""The same for other keys and partitions of a topic with trouble, because it may have a catch-up. Of eight reads four
are the tail, two each are pages of catch-ups and of holds: a list that is made, and the next one, take twice eight. A
page has three rows here, so a bystander's one message may be an eighth of what does not fit, and get a catch-up."""
FIRST, LAST = 6, 24
"""Bystanders insert one message every second turn between these: far less than what a topic may have in memory."""
MOST = 2
"""Topics that misbehave, with those that did before: a memory of twelve rows has no room for more beside bystanders."""
KINDS = (
    "flood",
    "poison",
    "fault",
    "stuck",
    "silent",
    "leaderless",
    "paused",
    "moving",
    "key",
    "partition",
    "unknown",
)
COUNTS = {"flood": 4, "stuck": 4, "paused": 3}
"""Messages that a kind of trouble inserts in a turn; others insert 2, a key or partition one in six turns."""
NOTICED = {"silent": "silent", "leaderless": "leaderless", "partition": "silent"}


@dataclass
class Trouble:
    """What is wrong with a topic, with one of its partitions or keys, or with a topic that is unknown."""

    kind: str
    topic: str
    bad: list[Draft]
    spared: list[Draft] = field(default_factory=list)
    """What else the topic has: bystanders, too."""


def bystanders(w: World, rng: random.Random) -> None:
    """Let one topic or two misbehave as much as they can; the others publish new messages within a few turns."""
    leader = w.last
    if leader is None or not leader.is_alive or leader.core.is_stopping or not leader.leads():
        return
    for xid in list(w.postgres.active):
        do(w, ("commit", xid, True), rng)
    for _ in w.stuck:  # trouble of before that is noticed by now: what is on a wire leaves the memory
        leader.find_silent(is_leaderless=False)
    turns(w, 2 * BOUND, rng, until_done=False)
    healthy = [topic for topic in KEYS if _is_healthy(w, leader, topic)]
    most = MOST - (len(KEYS) - len(healthy))
    healthy = [topic for topic in healthy if topic != "n"]
    if most < 1 or len(healthy) < 2 or not leader.leads():
        return
    sick = rng.sample(healthy, rng.randint(1, min(most, len(healthy) - 1)))
    troubles = [_begin(w, leader, rng.choice(KINDS), topic) for topic in sick]
    spared = [Draft(topic, key) for topic in healthy if topic not in sick for key in KEYS[topic]]
    for trouble in troubles:
        spared += trouble.spared
    _observe(w, rng, troubles, spared)


def _begin(w: World, leader: Leader, kind: str, topic: str) -> Trouble:
    counts, db = leader.core.topics.counts, w.postgres.db
    keys = KEYS[topic]
    bad = [Draft(topic, key) for key in keys]
    if kind in ("key", "partition") and (len(keys) == 1 or (kind == "partition" and topic != "a")):
        kind = "stuck"
    if (kind == "moving" and (topic != "a" or "a" in db.asked)) or (kind == "unknown" and "n" in counts):
        kind = "flood"
    trouble = Trouble(kind, topic, bad)
    if kind == "unknown":
        trouble.bad, trouble.spared = [Draft("n", "n1")], bad
    elif kind in ("poison", "fault", "key"):
        worst: Kind = "fault" if kind == "fault" else "poison"
        some = keys[:1] if kind == "key" else keys
        trouble.bad = [Draft(topic, key, worst) for key in some]
        trouble.spared = [Draft(topic, key) for key in keys[len(some) :]]
    elif kind == "partition":
        w.stuck.add(_place(leader, topic, keys[0]))
        trouble.bad = bad[:1]
        trouble.spared = [one for one in bad[1:] if _place(leader, topic, one.key) not in w.stuck]
    elif kind in ("stuck", "silent", "leaderless"):
        w.stuck |= {(topic, partition) for partition in range(counts[topic])}
    elif kind == "paused":
        db.paused |= {topic}
    elif kind == "moving":
        db.asked[topic] = 5 - counts[topic]
    return trouble


def _place(leader: Leader, topic: str, key: str | None) -> tuple[str, int]:
    return topic, partition_of(Row(0, 0, topic, key, 0), leader.core.topics.counts[topic])


def _observe(w: World, rng: random.Random, troubles: list[Trouble], spared: list[Draft]) -> None:
    waiting: dict[int, tuple[int, Msg]] = {}
    uids: set[int] = set()
    leader = w.last
    assert leader is not None
    sick, dead = {trouble.topic for trouble in troubles}, set(leader.dead)
    name = " and ".join(sorted(trouble.kind for trouble in troubles))
    for number in range(LAST + (BOUND_BESIDE if any(one.spared for one in troubles) else BOUND)):
        for trouble in troubles:
            _insert(w, [rng.choice(trouble.bad) for _ in range(_count(trouble, number))])
            if (
                trouble.kind == "paused" and number == LAST // 2
            ):  # what waits is published next to new messages
                w.postgres.db.paused -= {trouble.topic}
        if FIRST <= number < LAST and number % 2 == 0:
            [msg] = _insert(w, [spared[number // 2 % len(spared)]])
            uids.add(msg.uid)
            waiting[msg.uid] = number + (BOUND_BESIDE if msg.topic in sick else BOUND), msg
        # Trouble is noticed with messages of the bystanders on the wire.
        noticed = [NOTICED[one.kind] for one in troubles if one.kind in NOTICED and number % 3 == 2]
        turn(w, rng, *noticed)
        waiting = {uid: (due, msg) for uid, (due, msg) in waiting.items() if w.postgres.is_unpublished(msg)}
        more = dict.fromkeys(leader.core.sources.catch_ups.keys() - sick, BOUND_BESIDE - BOUND)
        if any(due + more.get(msg.topic, 0) <= number for due, msg in waiting.values()):
            w.faults.append(f"BYSTANDER of {name}")
            return
    records = Counter(record.uid for record in w.log if record.uid in uids)
    # A refusal or a lost answer ends the producer of all topics: nothing behind a refused message may arrive.
    if leader.dead == dead and any(count > 1 for count in records.values()):
        w.faults.append(f"BYSTANDER TWICE of {name}")


def _count(trouble: Trouble, number: int) -> int:
    if trouble.kind in ("key", "partition"):  # its catch-up, if there is one, becomes no longer
        return int(number % 6 == 0)
    return COUNTS.get(trouble.kind, 2)


def _insert(w: World, drafts: list[Draft]) -> list[Msg]:
    if not drafts:
        return []
    xid = w.postgres.db.next_xid
    w.postgres.begin_insert(drafts)
    new = list(w.postgres.active[xid])
    w.postgres.commit(xid, is_synchronous=True)
    return new


def _is_healthy(w: World, leader: Leader, topic: str) -> bool:
    """Return whether nothing is wrong with a topic, and all of it is published."""
    db = w.postgres.db
    scopes = [*leader.core.holds.by_scope, *db.holds]
    return (
        topic not in db.paused
        and all(name[0] != topic for name in w.stuck)
        and all(scope.topic != topic for scope in scopes)
        and topic not in leader.core.topics.moving
        and topic not in leader.core.sources.catch_ups
        and topic not in leader.core.streams.probation
        and all(
            not w.postgres.is_unpublished(msg)
            or msg.state != "COMMITTED"
            or msg.uid in w.postgres.kinds.expiring
            for msg in db.messages.values()
            if msg.topic == topic
        )
    )
