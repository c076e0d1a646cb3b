"""Random schedules: each number of a seed is one, and the same one whenever it is run."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from outbox.inbox.core.hands import Hands
from outbox.inbox.core.partitions import Partitions
from outbox.inbox.core.retries import Retries
from tests.support.inbox_search.actions import Action, do, keep, possible, steps_of
from tests.support.inbox_search.database import TOPIC
from tests.support.inbox_search.world import LIMITS, PARTS, Core, World

CORE = Core(Partitions, Hands, Retries)
WEIGHT = {
    "tick": 3, "produce": 4, "open": 5, "fetch": 6, "run": 8, "end": 5, "give_up": 2, "die": 0.2, "seek": 3,
    "end_retry": 4, "revoke": 0.3, "close": 3, "lose": 0.2, "told": 1, "keep": 2, "crash": 0.15, "pause": 0.1,
    "resume": 1, "lock": 0.3, "unlock": 0.7, "replicate": 0.5, "fail_over": 0.08, "notice": 2,
}  # fmt: skip
ROUNDS = 400
"""So many fair rounds are enough to end everything once nothing is sick any more."""
BOUND, EACH = 20, 8
"""And so many, with these for each message that is not done, for one that nothing is wrong with while others are sick.

A thread keeps a message during which PostgreSQL goes away again and again, and there may be one thread."""


@dataclass
class Outcome:
    """What came of a schedule."""

    faults: set[str]
    trace: list[Action] = field(default_factory=list)


def run(seed: str, number: int, *, length: int = 260, core: Core = CORE) -> Outcome:
    """Run one schedule.

    Args:
        seed: of a series of schedules.
        number: of the schedule in the series.
        length: the most actions before the recovery.
        core: the classes of the core.
    """
    rng = random.Random(f"{seed}:{number}")
    w = World(core, rng)
    weight = {name: value * rng.choice((0.3, 1, 3)) for name, value in WEIGHT.items()}
    trace: list[Action] = []
    try:
        for _ in range(rng.choice((length // 4, length // 2, length))):
            options = list(possible(w))
            action = rng.choices(options, [weight[option[0]] for option in options])[0]
            trace.append(action)
            do(w, action)
            check_step(w)
        if rng.random() < 0.4:
            bystanders(w)
        recover(w)
    except Exception as error:
        error.add_note(repeat(seed, number))
        raise
    return Outcome(w.db.faults, trace)


def check_step(w: World) -> None:
    """Note what must not be at any time."""
    for p in w.processes:
        keys: Counter[object] = Counter()
        for thread in p.threads:
            keys.update(work.key for work in thread.hands.works if p.partitions.is_current(work.delivery))
        if keys and max(keys.values()) > 1:
            w.db.faults.add("a key is in two hands")
        for part in range(PARTS):
            found = p.partitions.find((TOPIC, part))
            if found is not None and (found.running < 0 or found.waiting < 0):
                w.db.faults.add("a count is wrong")
            if found is not None and found.waiting > LIMITS.messages + 3 * len(p.threads):
                w.db.faults.add("more waits than may")
        if any(seeker.row is not None and p.retries._searcher is seeker for seeker in p.seekers):
            w.db.faults.add("a thread searches inside a listener")
        if p.retries.has_suspect and not any(s.row is not None and s.retry.is_suspect for s in p.seekers):
            w.db.faults.add("a suspect that nobody runs holds up others")
        suspects = [
            m
            for thread in p.threads
            if len(thread.works) == 1 and p.partitions.is_current(thread.works[0].delivery)
            for m in [thread.works[0].delivery.message]
            if (watch := p.partitions.suspects._watches.get((TOPIC, m.partition))) and m.offset in watch.begun
        ]
        if len(suspects) > 1:
            w.db.faults.add("two suspects at a time")
    waiting = Counter(row.message.key for row in w.db.parked if row.state == "waiting")
    if waiting and max(waiting.values()) > 2 * LIMITS.behind_key:
        w.db.faults.add("more is parked than may")


def fair_round(w: World) -> None:
    """Let each thread do a step, and time pass."""
    for part in range(PARTS):
        if w.owner[part] is None and part not in w.topic_paused:
            able = [p for p in w.processes if part not in p.reads and not p.is_stale]
            if able:
                w.open(able[part % len(able)], part)
    for p in list(w.processes):
        if p.is_stale:
            do(w, ("notice", p))
        for name in ("told", "close", "fetch", "give_up", "run", "end", "end", "seek", "end_retry"):
            for action in [each for each in steps_of(w, p) if each[0] == name]:
                if p in w.processes and action in list(steps_of(w, p)):
                    do(w, action)
        if p in w.processes:
            keep(w, p)
    w.now += 1.0
    check_step(w)


def discard_dead(w: World) -> None:
    """Discard dead letters, as an operator does: a key stands behind one, and its partition once the key is full."""
    for row in [each for each in w.db.parked if each.state == "dead" and each.locked_by is None]:
        w.discarded.add(row.message.number)
        w.db.take_out(row, is_applied=False)


def bystanders(w: World) -> None:
    """Require that messages with which nothing is wrong are applied soon, while others are as sick as before."""
    w.topic_paused.clear()
    for message in w.messages:
        if message.kind == "kill":  # its process dies again and again, and others with it
            message.bad_runs = 0
    # What is locked for long holds up its own partition in the end (`Limits.width`).
    sick = {m.part for m in w.messages if m.number in w.locked}
    new = [w.produce(part, b"by%d" % part, "ok", 0) for part in range(PARTS) if part not in sick]
    unsettled = sum(m.number not in w.db.inbox for m in w.messages)
    for _ in range(BOUND + EACH * unsettled):
        if {m.number for m in new} <= {m.number for m in w.db.applied}:
            return
        discard_dead(w)
        fair_round(w)
    w.db.faults.add("a bystander waits")


def recover(w: World) -> None:
    """Repair everything, and require that all messages are applied."""
    w.locked.clear()
    w.topic_paused.clear()
    for message in w.messages:
        message.bad_runs = 0
    for _ in range(ROUNDS):
        discard_dead(w)
        fair_round(w)
        is_done = all(m.number in w.db.inbox for m in w.messages) and not w.db.parked
        if is_done and all(w.db.positions[part] >= w.end_of(part) for part in range(PARTS)):
            break
    else:
        w.db.faults.add("stuck")
    applied = Counter(m.number for m in w.db.applied)
    if any(count > 1 for count in applied.values()):
        w.db.faults.add("twice")
    if any(not applied[m.number] and m.number not in w.discarded for m in w.messages):
        w.db.faults.add("without an effect")
    if any(p.partitions.has_running([(TOPIC, part)]) for p in w.processes for part in range(PARTS)):
        w.db.faults.add("what runs never ends")


def repeat(seed: str, number: int) -> str:
    """Return the command that runs a schedule again."""
    return f"python -m tests.support.inbox_search --seed {seed} --first {number} --schedules 1 --trace"
