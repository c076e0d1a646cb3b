"""Batches without servers: which messages are run together, how often, and what a listener may return."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from time import monotonic
from uuid import UUID

import pytest

from outbox.errors import ConfigurationError, ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, Limits
from outbox.inbox.assignments import Assignments
from outbox.inbox.batch_plans import take_batch
from outbox.inbox.batches import one_by_one, results_of
from outbox.inbox.core.rounds import Rounds
from outbox.inbox.messages import Delivery, Source
from tests.support.members import member_of
from tests.support.waiting import wait_until

SUCCESS, LATER, DISCARD = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER, ConsumeResult.DISCARD
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def delivery(number: int, key: bytes | None = None, *, part: int = 0) -> Delivery:
    message = ConsumedMessage(UUID(int=number), "t", part, number, key, b"b", (), NOW, NOW)
    return Delivery(message, 1, date(2026, 11, 1), b"d", key, 1)


def run(items: int, call: Callable[[list[int]], set[int] | None]) -> tuple[Counter[int], list[int], int]:
    """Run a batch as the threads do; return the runs of each item, the ends of all, and the longest list.

    Args:
        items: how many there are.
        call: gets a list; returns those that failed, None: it raised.
    """
    rounds, runs, ends, longest = Rounds(range(items)), Counter[int](), [], 0
    parked: set[int] = set()
    while begun := rounds.next():
        given = begun.items
        if parked.issuperset(given):
            ends += given
            continue
        runs.update(given)
        longest = max(longest, len(given))
        failed = call(given)
        if failed is None and len(given) > 1:
            rounds.add_split(given, is_rest=begun.is_rest)
        elif not failed or len(given) == 1:
            ends += given
        else:
            rounds.add_rest([each for each in given if each not in failed], is_rest=begun.is_rest)
            parked |= failed
            rounds.add_alone(failed)
    return runs, ends, longest


def test_a_message_that_raises_is_isolated_in_few_runs() -> None:
    for items in range(1, 70):
        for poison in range(items):

            def call(given: list[int], poison: int = poison) -> set[int] | None:
                return None if poison in given else set()

            runs, ends, _ = run(items, call)
            assert sorted(ends) == list(range(items))
            assert max(runs.values()) <= 1 + math.ceil(math.log2(items))
            assert runs.total() <= 4 * items


def test_each_message_ends_once_however_the_listener_behaves() -> None:
    chance = random.Random(11)
    for _ in range(2000):
        items, raises, reports = chance.randint(1, 40), chance.random(), chance.random()

        def call(given: list[int], raises: float = raises, reports: float = reports) -> set[int] | None:
            if chance.random() < raises:
                return None
            return {each for each in given if chance.random() < reports}

        runs, ends, _ = run(items, call)
        assert sorted(ends) == list(range(items))
        assert max(runs.values()) <= 2 + math.ceil(math.log2(items))


def test_a_batch_in_which_all_succeed_is_run_once() -> None:
    assert run(9, lambda _: set()) == (Counter(range(9)), list(range(9)), 9)


def test_what_succeeded_is_run_again_together_without_what_failed() -> None:
    seen: list[list[int]] = []

    def call(given: list[int]) -> set[int]:
        seen.append(given)
        return {3, 5} & set(given)

    run(8, call)
    assert seen == [[*range(8)], [0, 1, 2, 4, 6, 7]]


def test_what_a_lost_thread_had_is_all_that_is_unfinished() -> None:
    rounds = Rounds(range(4))
    rounds.next()
    rounds.add_split(range(4))
    begun = rounds.next()
    assert begun is not None
    assert begun.items == [0, 1]
    assert list(rounds.unfinished()) == [0, 1, 2, 3]
    rounds.next()
    assert list(rounds.unfinished()) == [2, 3]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (SUCCESS, [SUCCESS] * 3),
        (DISCARD, [DISCARD] * 3),
        ([SUCCESS, LATER, DISCARD], [SUCCESS, LATER, DISCARD]),
        ((SUCCESS, SUCCESS, SUCCESS), [SUCCESS] * 3),
    ],
)
def test_a_batch_listener_returns_one_result_or_one_for_each(
    result: object, expected: list[ConsumeResult]
) -> None:
    assert results_of(result, 3) == expected


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "returned NoneType;"),
        ([SUCCESS] * 2, "returned 2 results for 3 messages;"),
        ([SUCCESS, None, SUCCESS], "a list with NoneType;"),
        ((each for each in [SUCCESS]), "returned generator;"),
        ({SUCCESS}, "returned set;"),
    ],
)
def test_another_result_of_a_batch_is_an_error(result: object, text: str) -> None:
    with pytest.raises(ListenerError, match=f"{text} allowed for a batch: "):
        results_of(result, 3)


def test_a_retry_is_a_list_of_one() -> None:
    seen = []

    def listener(_: object, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        seen.append(messages)
        return [LATER]

    single = one_by_one(listener)
    message = delivery(1).message
    assert single(None, message) is LATER  # type: ignore[arg-type]
    assert seen == [[message]]


def test_rows_of_a_batch_are_inserted_in_the_order_of_their_ids() -> None:
    plan = take_batch(7, [delivery(3), delivery(1), delivery(2)])
    statement = next(plan)
    assert str(statement.params[1]) == "{" + ",".join(str(UUID(int=number)) for number in (1, 2, 3)) + "}"
    assert statement.params[5] == "{1,2,3}"
    with pytest.raises(StopIteration) as done:
        plan.send([(UUID(int=3), date(2026, 11, 1), "9"), (UUID(int=2), date(2026, 11, 1), "9")])
    assert done.value.value == ("9", [True, False, True])


def opened(*, orderly: bool) -> Assignments:
    """Assignments with one partition that is open."""
    found = Assignments(orderly=orderly, limits=Limits())
    with found as partitions:
        assert partitions.open(("t", 0), Source(1, "c/t"), 0, 0) == 1
    return found


def add(work: Assignments, *deliveries: Delivery) -> None:
    for each in deliveries:
        with work as partitions:
            assert partitions.add(each)


def numbers(taken: list[tuple[object, Delivery]]) -> list[int]:
    return [each.message.offset for _, each in taken]


def test_a_batch_has_at_most_one_message_of_a_key() -> None:
    work = opened(orderly=True)
    for number in range(6):
        add(work, delivery(number, b"ab"[number % 2 :][:1]))
    first = work.take(0, 10, 0)
    assert numbers(first) == [0, 1]
    assert work.take(0, 10, 0) == []
    with work as partitions:
        partitions.finish(*first[0])
    assert numbers(work.take(0, 10, 0)) == [2]


def test_a_batch_without_order_takes_as_many_as_it_may() -> None:
    work = opened(orderly=False)
    for number in range(7):
        add(work, delivery(number, b"k"))
    assert [numbers(work.take(60, 3, 60)) for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    assert numbers(work.take(60, 3, 0)) == [6]


def test_a_batch_has_at_most_one_message_that_was_locked() -> None:
    work = opened(orderly=False)
    for number in range(6):
        add(work, replace(delivery(number), was_locked=number < 3))
    assert [numbers(work.take(0, 10, 0)) for _ in range(4)] == [[0], [1], [2], [3, 4, 5]]


def test_a_batch_waits_for_more_messages_and_takes_none_meanwhile() -> None:
    work, taken = opened(orderly=False), []
    add(work, delivery(0))
    thread = threading.Thread(target=lambda: taken.extend(work.take(60, 3, 60)))
    thread.start()
    add(work, delivery(1))
    # Nothing is in its hands, so giving the partition away does not wait.
    before = monotonic()
    assert [each.offset for each in work.close([("t", 0)], 30)] == [0]
    assert monotonic() - before < 10
    with work as partitions:
        assert partitions.open(("t", 0), Source(1, "c/t"), 0, 0) == 2
    for number in range(3):
        add(work, Delivery(*vars_of(delivery(number)), epoch=2))
    thread.join(30)
    assert numbers(taken) == [0, 1, 2]


def vars_of(given: Delivery) -> tuple[ConsumedMessage, int, date, bytes, bytes | None]:
    return given.message, given.topic_id, given.born_on, given.digest, given.order_key


def test_a_batch_that_does_not_fill_is_taken_after_its_time() -> None:
    work = opened(orderly=False)
    add(work, delivery(0))
    before = monotonic()
    assert numbers(work.take(60, 3, 0.2)) == [0]
    assert 0.2 <= monotonic() - before < 30


def test_waiting_for_a_batch_ends_with_the_member() -> None:
    work, ended = opened(orderly=False), threading.Event()

    def wait() -> None:
        work.take(60, 3, 60)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    work.end()
    wait_until(ended.is_set, "it has ended", seconds=30)


def test_threads_that_take_batches_miss_no_message() -> None:
    work, taken = opened(orderly=False), []
    lock = threading.Lock()

    def take() -> None:
        while found := work.take(20, 2, 0):
            with lock:
                taken.extend(numbers(found))

    threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(101):
        add(work, delivery(number))
    wait_until(lambda: len(taken) == 101, "all are taken", seconds=10)
    work.end()
    for thread in threads:
        thread.join(30)
    assert sorted(taken) == list(range(101))


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"batch": 1001}, {"linger": 1.0}, {"batch": 5, "linger": -1.0}]
)
def test_settings_of_batches_out_of_range_are_refused(options: dict[str, float]) -> None:
    member_of("g", {"t": "*"}, batch=5, linger=0.5)
    with pytest.raises(ConfigurationError, match="allowed: "):
        member_of("g", {"t": "*"}, **options)
