"""Queues of keys: order, turns of places, keys that are postponed and work that is forgotten."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from outbox.inbox.core.key_queues import KeyQueues


def test_a_key_is_in_one_pair_of_hands_and_keeps_its_order() -> None:
    queues: KeyQueues[int] = KeyQueues()
    for number in range(6):
        queues.put("p", "ab"[number % 2], number)
    assert queues.take() == ("a", 0)
    assert queues.take() == ("b", 1)
    assert queues.take() is None
    queues.put("p", "c", 9)
    assert queues.take() == ("c", 9)
    assert queues.release("a")
    assert queues.take() == ("a", 2)
    assert not queues.release("c")
    assert len(queues) == 3


def test_forgotten_work_is_not_taken_and_its_key_stays_usable() -> None:
    queues: KeyQueues[int] = KeyQueues()
    for number in range(6):
        queues.put("p", "ab"[number % 2], number)
    queues.take()
    assert queues.forget(lambda number: number % 2 == 0 or number == 1) == [2, 4, 1]
    assert queues.take() == ("b", 3)
    assert not queues.release("a")
    queues.put("p", "a", 8)
    assert queues.take() == ("a", 8)


def test_a_key_that_is_postponed_waits_alone_and_longer_each_time() -> None:
    queues: KeyQueues[int] = KeyQueues()
    for number in range(4):
        queues.put("p", "ab"[number % 2], number)
    pauses: list[float] = []
    for _ in range(3):
        assert queues.take() == ("a", 0)
        queues.put_back("a", [0])
        queues.postpone("a", 100.0)
        queues.put("p", "a", 4 + len(pauses))
        queues.wake(100.4)
        assert queues.ready == 1, "b is ready"
        pauses.append(min(pause for pause in (0.5, 1.0, 2.0, 4.0) if is_awake(queues, 100.0 + pause)))
        assert queues.take() == ("b", 1)
        queues.put_back("b", [1])
        queues.release("b")
    assert pauses == [0.5, 1.0, 2.0]
    taken = []
    while one := queues.take():
        taken.append(one)
        queues.release(one[0])
    assert [number for key, number in taken if key == "a"] == [0, 2, 4, 5, 6], "its order is kept"


def is_awake(queues: KeyQueues[int], now: float) -> bool:
    queues.wake(now)
    return queues.ready == 2


def test_a_postponed_key_that_is_forgotten_does_not_come_back_twice() -> None:
    queues: KeyQueues[int] = KeyQueues()
    queues.put("p", "a", 0)
    queues.take()
    queues.put_back("a", [0])
    queues.postpone("a", 0.0)
    queues.forget(lambda _: True)
    queues.put("p", "a", 1)
    queues.put("p", "a", 2)
    queues.wake(100.0)
    assert (queues.take(), queues.take()) == (("a", 1), None)


@pytest.mark.parametrize("keys", [1, 7, 1000])
def test_a_flood_of_some_places_delays_another_one_by_a_round(keys: int) -> None:
    """Whether its keys are released at once, or stay in hands."""
    queues: KeyQueues[int] = KeyQueues()
    for number in range(12_000):
        queues.put(number % 12, (number % 12, number // 12 % keys), number)
    for _ in range(40):
        taken = queues.take()
        assert taken is not None
        queues.release(taken[0])
    for number in range(3):
        queues.put("quiet", ("quiet", number), -number)
    order: list[Any] = []
    while len(order) < 40 and (taken := queues.take()):
        order.append(taken)
        queues.release(taken[0])
    places = [key[0] for key, _ in order]
    assert [number for number, place in enumerate(places) if place == "quiet"] == [12, 25, 38]
    assert [key for key, _ in order if key[0] == "quiet"] == [("quiet", number) for number in range(3)]


def test_places_take_turns_whatever_is_taken_released_and_forgotten() -> None:
    """A model with a list for each place does the same, and no place is passed over twice."""
    chance = random.Random(11)
    queues: KeyQueues[tuple[int, int]] = KeyQueues()
    waiting: dict[int, dict[int, list[int]]] = {place: {} for place in range(5)}
    busy: set[tuple[int, int]] = set()
    passed: dict[int, list[int]] = {place: [] for place in range(5)}

    def is_at(place: int, item: tuple[int, int]) -> bool:
        return item[0] == place

    def ready(place: int) -> list[int]:
        return [key for key, items in waiting[place].items() if items and (place, key) not in busy]

    for number in range(20_000):
        place, key = chance.choice([0, 0, 0, 0, 1, 2, 3, 4]), chance.randrange(6)
        action = chance.random()
        if action < 0.45:
            queues.put(place, (place, key), (place, number))
            waiting[place].setdefault(key, []).append(number)
        elif action < 0.75:
            taken: Any = queues.take()
            able = [each for each in waiting if ready(each)]
            assert (taken is None) == (not able)
            if taken is None:
                continue
            (at, of), item = taken
            assert (at, of) not in busy
            assert item == (at, waiting[at][of].pop(0))
            busy.add((at, of))
            for each in waiting:
                passed[each] = passed[each] + [at] if each in able and each != at else []
                assert len(passed[each]) == len(set(passed[each])), (
                    "a place was taken from twice before another one"
                )
        elif action < 0.99 and busy:
            released = chance.choice(sorted(busy))
            busy.remove(released)
            assert queues.release(released) is bool(waiting[released[0]][released[1]])
        elif action >= 0.99:
            gone = queues.forget(partial(is_at, place))
            assert sorted(n for _, n in gone) == sorted(n for items in waiting[place].values() for n in items)
            waiting[place], passed[place] = {key: [] for key in waiting[place]}, []
        assert queues.ready == sum(len(ready(each)) for each in waiting)
        assert len(queues) == sum(len(items) for keys in waiting.values() for items in keys.values())
