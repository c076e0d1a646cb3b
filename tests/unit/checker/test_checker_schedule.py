"""Groups take turns in the order in which they fell due, each on one thread at a time."""

from __future__ import annotations

import threading

import pytest

from outbox_relay.checker.schedule import Schedule


class Clock:
    """Time that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def schedule(clock: Clock) -> Schedule:
    return Schedule(clock)


def test_turns_are_taken_in_the_order_of_their_times(schedule: Schedule, clock: Clock) -> None:
    for name in "abc":
        schedule.add(name)
    assert [schedule.take() for _ in "abc"] == ["a", "b", "c"]
    for name, pause in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        schedule.give_back(name, pause)
    clock.now = 5.0
    assert [schedule.take() for _ in "abc"] == ["b", "c", "a"]


def test_a_group_that_always_has_more_to_do_waits_behind_all_that_are_due(schedule: Schedule) -> None:
    for name in ("flood", "a", "b"):
        schedule.add(name)
    taken = []
    for _ in range(9):
        group = schedule.take()
        assert group is not None
        taken.append(group)
        schedule.give_back(group, 0.0)
    assert taken == ["flood", "a", "b"] * 3


def test_a_group_is_never_on_two_threads(schedule: Schedule) -> None:
    schedule.add("a")
    schedule.add("b")
    assert schedule.take() == "a"
    schedule.add("a")
    schedule.wake("a")
    assert schedule.take() == "b"
    schedule.give_back("a", 1000.0)
    assert schedule.take() == "a", "woken during its turn: another follows"


def test_waking_makes_a_turn_due_once(schedule: Schedule, clock: Clock) -> None:
    schedule.add("a")
    assert schedule.take() == "a"
    schedule.give_back("a", 1000.0)
    schedule.wake("a")
    schedule.wake("a")
    schedule.wake("unknown")
    assert schedule.take() == "a"
    schedule.add("b")
    schedule.give_back("a", 1000.0)
    assert schedule.take() == "b"
    clock.now = 1000.0
    assert schedule.take() == "a"


def test_who_has_ended_gets_no_turn(schedule: Schedule) -> None:
    schedule.add("a")
    schedule.add("b")
    assert schedule.take() == "a"
    schedule.wake("a")
    schedule.give_back("a", None)
    assert schedule.take() == "b"
    schedule.add("a")
    assert schedule.take() == "a"


def test_closing_sends_everybody_home() -> None:
    schedule = Schedule()
    taken: list[str | None] = []
    threads = [threading.Thread(target=lambda: taken.append(schedule.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    schedule.close()
    for thread in threads:
        thread.join(10)
    assert taken == [None] * 3
