"""A group's workers: threads made lazily, never more than a bound, whatever the callbacks do."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from outbox.checking import Answer, FailedAnswer, LocalTransactionState
from outbox.checking.workers import Task, Workers
from outbox.records import MessageView
from tests.support.waiting import wait_until


class Calls:
    """An asker whose calls are held until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.entered = 0
        self.missing_now: str | None = None

    def missing(self, view: MessageView) -> str | None:
        return self.missing_now

    def ask(self, view: MessageView, deadline: float) -> Answer:
        self.entered += 1
        self.go_on.wait(60)
        return Answer(LocalTransactionState.COMMIT)


def task(id: int, *, timeout: float = 60.0, queue: float = 60.0) -> Task:
    view = MessageView(id, uuid.uuid4(), "t", "g", datetime.now(UTC))
    return Task(view, "claim", timeout, time.monotonic() + queue)


def workers(asker: Any, size: int, wake: Any = lambda: None) -> Workers:
    made = Workers(f"test-{uuid.uuid4().hex[:8]}", asker, wake)
    made.resize(size)
    return made


def threads_of(made: Workers) -> int:
    return sum(thread.name.startswith(made._name) for thread in threading.enumerate())


def collected(made: Workers, count: int) -> list[Task]:
    found: list[Task] = []

    def enough() -> bool:
        found.extend(made.collect())
        return len(found) >= count

    wait_until(enough, f"{count} tasks are answered", seconds=20)
    return found


@pytest.mark.feature("S-46")
def test_threads_are_made_when_there_is_work_and_not_more_than_asked_for() -> None:
    calls = Calls()
    made = workers(calls, 3)
    assert threads_of(made) == 0
    made.submit([task(1)])
    assert threads_of(made) == 1
    made.submit(task(id) for id in range(2, 20))
    assert threads_of(made) == 3
    calls.go_on.set()
    assert len(collected(made, 19)) == 19
    assert made.in_flight == 0
    made.stop()
    wait_until(lambda: threads_of(made) == 0, "threads end")


def test_wake_is_called_when_all_are_answered() -> None:
    calls, woken = Calls(), threading.Event()
    made = workers(calls, 2, woken.set)
    made.submit([task(1), task(2), task(3)])
    assert not woken.is_set()
    calls.go_on.set()
    assert woken.wait(20)
    assert len(made.collect()) == 3
    made.stop()


@pytest.mark.feature("S-47")
def test_a_call_past_its_deadline_is_unknown_and_its_late_answer_thrown_away() -> None:
    calls = Calls()
    made = workers(calls, 1)
    late = task(1, timeout=0.01)
    made.submit([late])
    (answered,) = collected(made, 1)
    assert answered is late
    assert isinstance(answered.answer, FailedAnswer)
    assert answered.failed == "check time-out: no answer within 0.01 s"
    assert made.hanging == 1
    calls.go_on.set()
    wait_until(lambda: made.hanging == 0, "the call returns")
    assert made.collect() == []
    assert answered.answer.state == LocalTransactionState.UNKNOWN
    made.stop()


@pytest.mark.parametrize(("size", "most"), [(1, 16), (2, 16), (5, 20)])
def test_another_thread_takes_the_place_of_one_that_hangs_up_to_a_bound(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "outbox.checking.workers.OVERTIME", 0.01
    )  # one after the other: 16 graces would be seconds
    calls = Calls()
    made = workers(calls, size)
    for id in range(1, most + 1):
        assert made.available == min(size, most - id + 1)
        made.submit([task(id, timeout=0.01)])
        collected(made, 1)
    assert made.available == 0
    assert threads_of(made) == most
    assert made.hanging_since(60.0) == []
    assert made.hanging_since(0.0) == list(range(1, most + 1))
    made.submit([task(99, queue=0.05)])
    (given_back,) = collected(made, 1)
    assert given_back.answer is None
    assert given_back.missing is None
    assert threads_of(made) == most
    calls.go_on.set()
    wait_until(lambda: made.available == size and threads_of(made) <= size, "superfluous threads end")
    made.submit([task(100)])
    assert collected(made, 1)[0].answer == Answer(LocalTransactionState.COMMIT)
    made.stop()


def test_nobody_is_asked_again_about_a_message_whose_call_hangs() -> None:
    calls = Calls()
    made = workers(calls, 4)
    made.submit([task(1, timeout=0.01)])
    collected(made, 1)
    made.submit([task(1)])
    (again,) = collected(made, 1)
    assert (again.hangs, again.answer, again.missing) == (True, None, None)
    assert calls.entered == 1
    calls.go_on.set()
    made.stop()


def test_what_was_not_begun_can_be_given_back() -> None:
    calls = Calls()
    made = workers(calls, 1)
    made.submit([task(1), task(2), task(3)])
    wait_until(lambda: calls.entered == 1, "the first is asked about")
    made.give_back()
    assert [(found.view.id, found.answer) for found in made.collect()] == [(2, None), (3, None)]
    calls.go_on.set()
    assert collected(made, 1)[0].view.id == 1
    made.stop()


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), KeyboardInterrupt()])
def test_nothing_that_is_raised_ends_a_worker(error: BaseException) -> None:
    class Raises(Calls):
        def ask(self, view: MessageView, deadline: float) -> Answer:
            if view.id == 1:
                raise error
            return Answer(LocalTransactionState.ROLLBACK)

    made = workers(Raises(), 1)
    made.submit([task(1), task(2)])
    first, second = collected(made, 2)
    assert str(first.failed).startswith(f"checkLocalTransactionState exception: {type(error).__name__}")
    assert second.answer == Answer(LocalTransactionState.ROLLBACK)
    made.stop()


def test_who_is_missing_is_not_asked() -> None:
    calls = Calls()
    calls.missing_now = "nobody"
    made = workers(calls, 1)
    made.submit([task(1)])
    (found,) = collected(made, 1)
    assert (found.missing, found.answer, calls.entered) == ("nobody", None, 0)
    made.stop()
