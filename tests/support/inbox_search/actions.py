"""What can happen next: each action is one step of one thread, one event, or one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from outbox.inbox.core.suspects import MOST_RETRY_RUNS
from outbox.inbox.parked_rows import Retry
from tests.support.inbox_search.database import TOPIC, Message, Parked
from tests.support.inbox_search.deliveries import crash, die, end, give_up, run
from tests.support.inbox_search.world import PARTS, Process, Seeker, World

Action = tuple[Any, ...]
DRAIN = 3.0
KEYS = (b"a", b"b", None)
KINDS = ("ok", "ok", "ok", "fail", "fail", "away", "defect", "hang", "kill", "discard")


def possible(w: World) -> Iterator[Action]:
    """Yield what can happen next."""
    yield ("tick",)
    if len(w.messages) < 40:
        yield ("produce",)
    for part in range(PARTS):
        owner = w.owner[part]
        if owner is None and part not in w.topic_paused:
            yield from (("open", p, part) for p in w.processes if part not in p.reads and not p.is_stale)
        elif owner is not None and part not in owner.closing:
            yield from (("revoke", owner, part), ("lose", owner, part))
        yield ("pause" if part not in w.topic_paused else "resume", part)
    for p in w.processes:
        yield from steps_of(w, p)
    if w.locked:
        yield ("unlock",)
    yield from (("lock",), ("replicate",), ("fail_over",))


def steps_of(w: World, p: Process) -> Iterator[Action]:
    """Yield what can happen next in a process."""
    yield from (("crash", p), ("keep", p))
    if p.is_stale:
        yield ("notice", p)
    for part in p.reads:
        if part not in p.closing and part not in p.paused and p.reads[part] < w.end_of(part):
            yield ("fetch", p, part)
        if part in p.lost:
            yield ("told", p, part)
    for part in p.closing:
        yield ("close", p, part)
    for thread in p.threads:
        if thread.is_running:
            yield from (("end", p, thread), ("give_up", p, thread), ("die", p, thread))
        elif thread.asleep <= w.now:
            yield ("run", p, thread)
    for thread in p.zombies:
        yield ("end", p, thread)
    for seeker in p.seekers:
        yield ("end_retry", p, seeker) if seeker.row is not None else ("seek", p, seeker)


def do(w: World, action: Action) -> None:
    """Do one of them."""
    ACTIONS[action[0]](w, *action[1:])


def produce(w: World) -> None:
    """Append a message."""
    kind = w.rng.choice(KINDS)
    part = w.rng.randrange(PARTS)
    key = w.rng.choice(KEYS)
    w.produce(part, key and key + b"%d" % part, kind, w.rng.choice((1, 1, 2, 7)) if kind != "ok" else 0)


def fetch(w: World, p: Process, part: int) -> None:
    """Fetch the next message of a partition."""
    found = p.partitions.find((TOPIC, part))
    message = next(m for m in w.logs[part] if m.offset >= p.reads[part])
    p.reads[part] = message.offset + 1
    p.partitions.add(w.delivery(message, found.epoch))
    pause, resume = p.partitions.full()
    p.paused |= {each for _, each in pause}
    p.paused -= {each for _, each in resume}


def seek(w: World, p: Process, seeker: Seeker) -> None:
    """Let a retry thread search."""
    if not p.retries.take(seeker) or p.is_stale:
        p.retries.give_back(seeker)
        return
    p.retries.due.begin(w.now)
    for row in w.db.parked:
        is_free = row.locked_by is None and row.message.part not in w.topic_paused
        is_suspect = w.db.runs.get(row.message.number, (0, p.number))[1] != p.number
        if row.state != "retry" or row.due > w.now or not is_free or (is_suspect and p.retries.has_suspect):
            continue
        row.locked_by = seeker
        seeker.row = row
        seeker.retry = Retry(row.id, "1", row.attempts, w.delivery(row.message, 0), False, is_suspect, 0)
        is_counted = p.retries.begin(seeker, seeker.retry, w.now)
        if is_counted and w.db.count_run(row.message, p.number) > MOST_RETRY_RUNS:
            row.state = "dead"
            _leave_retry(p, seeker)
        return
    p.retries.give_back(seeker)


def _leave_retry(p: Process, seeker: Seeker) -> None:
    assert seeker.row is not None
    seeker.row.locked_by = None
    p.retries.give_back(seeker)
    p.retries.end(seeker.retry)
    seeker.row = None


def end_retry(w: World, p: Process, seeker: Seeker) -> None:
    """Let the listener of a retry return."""
    row: Parked | None = seeker.row
    assert row is not None
    message = row.message
    kind = message.kind if message.bad_runs > 0 else "ok"
    message.bad_runs -= message.bad_runs > 0
    if p.is_stale or row not in w.db.parked:
        kind = "away"
    if kind == "kill":
        crash(w, p)
        return
    _leave_retry(p, seeker)
    if kind in ("ok", "discard"):
        w.discarded |= {message.number} if kind == "discard" else set()
        w.db.take_out(row, is_applied=kind == "ok")
        p.retries.succeeded(seeker.retry)
        return
    seconds = p.retries.interrupted(seeker.retry) if kind in ("away", "defect") else None
    if seconds is not None:
        row.due = w.now + seconds
        return
    p.retries.succeeded(seeker.retry)
    w.db.runs.pop(message.number, None)
    row.attempts, row.due = row.attempts + 1, w.now + 1.0
    if row.attempts > 4:
        row.state = "dead"


def revoke(w: World, p: Process, part: int) -> None:
    """Begin to give a partition away."""
    p.partitions.forget([(TOPIC, part)])
    p.closing[part] = w.now + DRAIN


def close(w: World, p: Process, part: int, *, is_told: bool = True) -> None:
    """Give a partition away once nothing of it runs, or after some time."""
    place = (TOPIC, part)
    if is_told and p.partitions.has_running([place]) and w.now < p.closing[part]:
        return
    offsets = p.partitions.close([place])
    p.closing.pop(part, None)
    p.reads.pop(part, None)
    if part not in p.lost:
        w.store(p, offsets)
        if w.db.readers.get(part) == p.number:
            w.db.readers.pop(part)
        w.owner[part] = None
    p.lost.discard(part)


def lose(w: World, p: Process, part: int) -> None:
    """Let the group give a partition to others without a word."""
    p.lost.add(part)
    w.owner[part] = None


def told(w: World, p: Process, part: int) -> None:
    """Let a process find out that a partition is another one's."""
    p.partitions.forget([(TOPIC, part)])
    close(w, p, part, is_told=False)


def keep(w: World, p: Process) -> None:
    """Store positions, and count what waits behind held keys."""
    if p.is_stale:
        return
    offsets = p.partitions.offsets()
    w.store(p, offsets)
    p.partitions.stored(offsets)
    keys = p.partitions.full_keys
    keys.begin_count()
    keys.counted(w.db.count_behind(keys.per_key))


def pause(w: World, part: int) -> None:
    """Pause a topic, which has one partition here."""
    w.topic_paused.add(part)
    for p in w.processes:
        if part in p.reads and part not in p.lost:
            p.partitions.forget([(TOPIC, part)])
            close(w, p, part, is_told=False)


def fail_over(w: World) -> None:
    """Let a standby take over that lacks what was committed since it replicated."""
    faults = w.db.faults
    w.db, w.snapshot = w.snapshot, w.snapshot.copy()
    w.db.faults |= faults
    for p in w.processes:
        p.is_stale = True


def notice(w: World, p: Process) -> None:
    """Let a process find out that another server has taken over."""
    p.is_stale = False
    p.partitions.restart()
    mine = [part for part in p.reads if w.owner[part] is p]
    p.reads.clear()
    p.closing.clear()
    p.lost.clear()
    for part in mine:
        w.owner[part] = None
    for seeker in p.seekers:
        if seeker.row is not None:
            _leave_retry(p, seeker)


def tick(w: World) -> None:
    """Let time pass."""
    w.now += w.rng.choice((0.3, 1.0, 5.0, 11.0))


def lock(w: World) -> None:
    """Let another session lock the row of a message."""
    free: list[Message] = [m for m in w.messages if m.number not in w.db.inbox and m.number not in w.db.rows]
    if free:
        w.locked.add(w.rng.choice(free).number)


def replicate(w: World) -> None:
    """Let the standby catch up."""
    w.snapshot = w.db.copy()


ACTIONS: dict[str, Callable[..., None]] = {
    "tick": tick, "produce": produce, "open": World.open, "fetch": fetch, "run": run, "end": end, "give_up": give_up,
    "die": die, "seek": seek, "end_retry": end_retry, "revoke": revoke, "close": close, "lose": lose, "told": told,
    "keep": keep, "crash": crash, "pause": pause, "resume": lambda w, part: w.topic_paused.discard(part),
    "lock": lock, "unlock": lambda w: w.locked.clear(), "replicate": replicate, "fail_over": fail_over,
    "notice": notice,
}  # fmt: skip
