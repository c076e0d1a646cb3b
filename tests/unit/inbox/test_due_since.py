"""A search for due retries begins near the last one that was found, and soon at the beginning again."""

from __future__ import annotations

from outbox.inbox.parked_rows import BEGINNING, SEARCHED_FROM_S, SKEW_US, DueSince

FOUND = 1_800_000_000_000_000


def test_it_begins_a_moment_before_what_was_found() -> None:
    """A retry of another key may be committed later, and be due before."""
    due = DueSince()
    assert due.begin(100.0) == BEGINNING
    due.found(FOUND, 100.0)
    assert due.begin(100.0) == FOUND - SKEW_US
    due.found(FOUND + 7, 100.0)
    assert due.begin(100.0) == FOUND + 7 - SKEW_US


def test_it_begins_at_the_beginning_soon_however_much_is_found_meanwhile() -> None:
    due = DueSince()
    due.found(FOUND, 100.0)
    begins = []
    for quarter in range(1, 10):
        now = 100.0 + quarter * SEARCHED_FROM_S / 4
        begins.append(due.begin(now))
        due.found(FOUND, now)
    assert [each == BEGINNING for each in begins] == [False, False, False, True] * 2 + [False]
