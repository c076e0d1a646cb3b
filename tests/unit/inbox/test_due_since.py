"""A search for due retries begins near the last one that was found, and soon at the beginning again."""

from __future__ import annotations

import pytest

from outbox.inbox import parked_rows
from outbox.inbox.parked_rows import BEGINNING, SEARCHED_FROM_S, SKEW_US, DueSince

FOUND = 1_800_000_000_000_000


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(parked_rows, "monotonic", clock)
    return clock


def test_it_begins_a_moment_before_what_was_found(clock: Clock) -> None:
    """A retry of another key may be committed later, and be due before."""
    due = DueSince()
    assert due.begin() == BEGINNING
    due.found(FOUND)
    assert due.begin() == FOUND - SKEW_US
    due.found(FOUND + 7)
    assert due.begin() == FOUND + 7 - SKEW_US


def test_it_begins_at_the_beginning_soon_however_much_is_found_meanwhile(clock: Clock) -> None:
    due = DueSince()
    due.found(FOUND)
    begins = []
    for _ in range(9):
        clock.now += SEARCHED_FROM_S / 4
        begins.append(due.begin())
        due.found(FOUND)
    assert [each == BEGINNING for each in begins] == [False, False, False, True] * 2 + [False]
