"""Pauses between attempts grow up to their limit until they are reset."""

from __future__ import annotations

from outbox.backoff import Backoff, pause_after


def pauses(backoff: Backoff, number: int) -> list[float]:
    return [backoff.next() for _ in range(number)]


def test_a_pause_is_twice_the_one_before_it_up_to_the_last() -> None:
    assert pauses(Backoff(0.5, 3.0), 5) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_factor_sets_how_much_longer_each_pause_is() -> None:
    assert pauses(Backoff(0.25, 1.0, factor=1.5), 5) == [0.25, 0.375, 0.5625, 0.84375, 1.0]


def test_the_pauses_begin_again_only_after_a_reset() -> None:
    backoff = Backoff(1.0, 8.0)
    assert pauses(backoff, 3) == [1.0, 2.0, 4.0]
    backoff.reset()
    assert backoff.pause == 0.0
    assert pauses(backoff, 2) == [1.0, 2.0]


def test_the_first_pause_is_not_longer_than_the_last() -> None:
    assert pauses(Backoff(9.0, 5.0), 2) == [5.0, 5.0]


def test_another_limit_holds_for_one_pause_and_shortens_the_next_ones() -> None:
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next(60.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert backoff.next() == 5.0
    assert backoff.next(60.0) == 10.0


def test_the_latest_pause_can_be_read() -> None:
    backoff = Backoff(2.0, 60.0)
    backoff.next()
    assert backoff.next() == backoff.pause == 4.0


def test_a_stored_number_of_attempts_gives_the_same_pauses() -> None:
    assert [pause_after(number, 1.0, 300.0) for number in range(1, 12)] == pauses(Backoff(1.0, 300.0), 11)
    assert pause_after(10**9, 1.0, 300.0) == 300.0
    assert pause_after(0, 2.0, 300.0) == 2.0, "before the first attempt"
