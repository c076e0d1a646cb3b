"""What a thread for deliveries does next, and how its listener ends."""

from __future__ import annotations

from typing import Any

from outbox.inbox.core.hands import BatchOutcome, Running
from outbox.inbox.core.suspects import MOST_RUNS
from outbox.inbox.failures import Failure, LockedError
from tests.support.inbox_search.database import TOPIC
from tests.support.inbox_search.world import PARTS, TIMEOUT, Process, Thread, World

FAILED = Failure("failed", "")


def crash(w: World, p: Process) -> None:
    """Let a process die, and start another one."""
    for thread in [*p.threads, *p.zombies, *p.seekers]:
        w.db.roll_back(thread)
    for part in range(PARTS):
        if w.owner[part] is p:
            w.owner[part] = None
    w.processes[w.processes.index(p)] = Process(w.started, w.core, w.rng)
    w.started += 1


def run(w: World, p: Process, thread: Thread) -> None:
    """Let a thread take something, or try what comes next."""
    pause, resume = p.partitions.full()
    p.paused = (p.paused | {each for _, each in pause}) - {each for _, each in resume}
    hands = thread.hands
    if not hands.works:
        hands.take(p.partitions.take(w.now, thread.most))
    works = hands.next(w.now)
    if not works:
        return
    if p.is_stale:  # it is led to a server that the member has not accepted
        if hands.settle():
            hands.unconnected()
        return
    if len(works) == 1:
        _begin_alone(w, p, thread, works[0])
    else:
        _begin_together(w, p, thread, works)


def _begin_alone(w: World, p: Process, thread: Thread, work: Any) -> None:
    hands, message, delivery = thread.hands, w.of(work.delivery), work.delivery
    if work.failure is None and (message.number, delivery.epoch) in p.failed:
        w.db.faults.add("a listener runs again whose failure is known")
    found = "locked" if message.number in w.locked else w.db.take(message, thread)
    if found == "held" or work.failure is not None:
        _park(w, p, thread, work, found)
    elif found == "locked":
        _locked(w, thread)
    elif found == "refused":
        if hands.settle():
            hands.finish()
    else:
        if p.partitions.suspects.counts(delivery):
            runs = w.db.count_run(message, p.number)
            p.partitions.suspects.ran(delivery)
            if runs > MOST_RUNS:
                w.db.roll_back(thread)
                if hands.settle():
                    hands.failed(Failure("killed", "", is_final=True))
                    p.failed.add((message.number, delivery.epoch))
                return
        _begin(w, thread, [work])


def _begin(w: World, thread: Thread, works: list[Any]) -> None:
    thread.works = works
    thread.hands.running = Running(w.now, works[0].delivery)


def _locked(w: World, thread: Thread) -> None:
    w.db.roll_back(thread)
    if thread.hands.settle():
        thread.hands.locked(w.now)


def _park(w: World, p: Process, thread: Thread, work: Any, found: str) -> None:
    hands, message, partitions = thread.hands, w.of(work.delivery), p.partitions
    if found == "locked":
        _locked(w, thread)
        return
    if found != "refused":
        is_behind = message.key in w.db.held
        if is_behind and work.failure is None:
            try:
                partitions.full_keys.require(TOPIC, message.key)
            except LockedError:
                _locked(w, thread)
                return
        final = work.failure is not None and work.failure.is_final
        state = "waiting" if is_behind else "dead" if final else "retry"
        w.db.park(message, thread, state, w.now + 1.0)
        if message.key is not None:
            _park_followers(w, p, thread, work)
    if hands.settle():
        hands.finish()


def _park_followers(w: World, p: Process, thread: Thread, work: Any) -> None:
    followers = p.partitions.take_followers(work.key, lambda each: each.failure is None)
    most = p.partitions.full_keys.admit(TOPIC, work.delivery.order_key, len(followers))
    done = [False] * len(followers)
    for place, each in enumerate(followers[:most]):
        message = w.of(each)
        if message.number in w.locked or w.db.take(message, thread) != "held":
            w.db.roll_back(thread)
            break
        w.db.park(message, thread, "waiting", 0.0)
        done[place] = True
    p.partitions.finish_followers(work.key, followers, done)


def _begin_together(w: World, p: Process, thread: Thread, works: list[Any]) -> None:
    messages = [w.of(work.delivery) for work in works]
    if any(m.number in w.locked for m in messages):
        _locked(w, thread)
        return
    found = [w.db.take(m, thread) for m in messages]
    if "locked" in found:
        _locked(w, thread)
    elif set(found) == {"new"}:
        _begin(w, thread, works)
    else:
        w.db.roll_back(thread)
        outcome = BatchOutcome(
            refused=[place for place, each in enumerate(found) if each == "refused"],
            alone=[place for place, each in enumerate(found) if each == "held"],
            again=[place for place, each in enumerate(found) if each == "new"],
        )
        if thread.hands.settle():
            thread.hands.note(outcome)


def end(w: World, p: Process, thread: Thread) -> None:
    """Let the listener of a thread return, fail, kill its process, or lose its session."""
    works, thread.works = thread.works, []
    is_sent = thread.is_committing
    messages = [w.of(work.delivery) for work in works]
    if p.is_stale or not all(w.db.rows.get(m.number) is thread for m in messages):
        thread.is_committing = False
        thread.hands.give_ahead_back()
        _interrupt(w, thread, works)  # the session has ended
        return
    kinds = [m.kind if m.bad_runs > 0 and not is_sent else "ok" for m in messages]
    for message in messages:
        message.bad_runs -= message.bad_runs > 0 and not is_sent
    if "kill" in kinds:
        crash(w, p)
    elif len(works) == 1:
        _end_alone(w, p, thread, works[0], kinds[0])
    else:
        _end_together(w, p, thread, works, kinds)
    if thread in p.zombies and not thread.works:
        p.zombies.remove(thread)
        w.db.roll_back(thread)


def _end_alone(w: World, p: Process, thread: Thread, work: Any, kind: str) -> None:
    hands, message = thread.hands, w.of(work.delivery)
    if kind in ("away", "defect"):
        _interrupt(w, thread, [work], "Defect" if kind == "defect" else None)
    elif kind in ("fail", "hang"):
        w.db.roll_back(thread)
        if hands.settle():
            hands.failed(FAILED)
            p.failed.add((message.number, work.delivery.epoch))
    elif not thread.is_committing and kind != "discard":
        if thread.most == 1 and w.rng.random() < 0.5:
            hands.take_ahead(w.now)
        thread.is_committing, thread.works = True, [work]
    else:
        thread.is_committing = False
        outcome = w.rng.choice(("done", "done", "done", "done", "refused", "unknown"))
        if outcome != "refused":
            w.db.commit([message], thread, is_applied=kind != "discard")
            w.discarded |= {message.number} if kind == "discard" else set()
        if outcome != "done":
            hands.give_ahead_back()
            _interrupt(w, thread, [work])
        elif hands.settle():
            hands.finish()
            hands.begin_ahead()


def _end_together(w: World, p: Process, thread: Thread, works: list[Any], kinds: list[str]) -> None:
    hands, messages = thread.hands, [w.of(work.delivery) for work in works]
    if "away" in kinds or "defect" in kinds:
        _interrupt(w, thread, works, "Defect" if "defect" in kinds else None)
    elif "hang" in kinds:
        w.db.roll_back(thread)
        if hands.settle():
            hands.failed(FAILED)
    elif set(kinds) <= {"ok", "discard"} and "discard" not in kinds:
        w.db.commit(messages, thread)
        if hands.settle():
            hands.note(BatchOutcome(done=list(range(len(works))), applied=len(works)))
    else:
        w.db.roll_back(thread)
        outcome = BatchOutcome()
        for place, (message, kind) in enumerate(zip(messages, kinds, strict=True)):
            if kind == "fail":
                outcome.failed[place] = FAILED
            elif kind == "ok":
                outcome.again.append(place)
            elif w.db.take(message, thread) == "new":
                w.db.commit([message], thread, is_applied=False)
                w.discarded.add(message.number)
                outcome.done.append(place)
            else:
                w.db.roll_back(thread)
                outcome.alone.append(place)
        if hands.settle():
            hands.note(outcome)


def _interrupt(w: World, thread: Thread, works: list[Any], defect: str | None = None) -> None:
    w.db.roll_back(thread)
    if thread.hands.settle():
        then = thread.hands.interrupted(defect).name
        if then == "BLAME" and w.rng.random() < 0.7:
            thread.hands.blame(FAILED)
        elif then != "GO_ON":
            thread.asleep = w.now + 0.5


def give_up(w: World, p: Process, thread: Thread) -> None:
    """Give a thread up whose listener runs past its time-out, or find that it does not."""
    if thread.hands.give_up(w.now, TIMEOUT) is not None:
        heir = Thread(thread.hands.successor(Failure("timed out", "")), thread.most)
        p.threads[p.threads.index(thread)] = heir
        p.zombies.append(thread)


def die(w: World, p: Process, thread: Thread) -> None:
    """Let a thread end by itself."""
    w.db.roll_back(thread)
    p.threads[p.threads.index(thread)] = Thread(thread.hands.successor(None), thread.most)
