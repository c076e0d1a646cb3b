"""Scanning a group's half messages: which part is scanned next, and how often, so that a flood costs only its group.

Two scans take turns, each page by page. The short one goes from the first half message that was too young last time to
the end, every second: it finds what has just passed its first delay. The whole one starts at the group's beginning,
every 10 s: it finds what was committed late and what is over, and counts. After either comes a pause of at least 20
times what it took, so that a group with a million half messages, or with a million dead index entries under a held
snapshot, takes a twentieth of one connection's time, and pays for it with a longer delay of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from outbox.checking.finding import Found

SHORT_PAUSE = 1.0
WHOLE_PAUSE = 10.0
REST = 20.0
"""How many times as long as a scan took the pause after it is."""


class Overview(NamedTuple):
    """What a scan of the whole group counted."""

    pending: int = 0
    exhausted: int = 0
    overdue: int = 0
    unheard: int = 0
    """Past the longest age, overdue, and not being asked about."""

    def plus(self, found: Found) -> Overview:
        """Add a page."""
        return Overview(
            self.pending + found.pending,
            self.exhausted + found.exhausted,
            self.overdue + found.overdue,
            self.unheard + len(found.unheard),
        )


class Scan:
    """Where one checker is in its group; the first scan is a whole one."""

    def __init__(self, page: int = 5000, clock: Callable[[], float] = time.monotonic) -> None:
        self.page = page
        self._clock = clock
        self._whole_at = self._short_at = clock()
        self._whole: bool | None = None
        """Which scan is on its way: the whole one, the short one, or None."""
        self._after = self._young = 0
        self._first_young: int | None = None
        self._spent = 0.0
        self._overview = Overview()

    @property
    def on_its_way(self) -> bool:
        """Whether a scan has begun and not ended."""
        return self._whole is not None

    @property
    def next_at(self) -> float:
        """When the next page is due, by the clock given."""
        return 0.0 if self.on_its_way else min(self._whole_at, self._short_at)

    def hurry(self) -> None:
        """Scan the whole group next, whatever was spent before."""
        self._whole_at, self._whole = self._clock(), None

    def begin(self) -> int | None:
        """The id after which the next page starts, or None when nothing is due."""
        if self._whole is None:
            now = self._clock()
            if now < self.next_at:
                return None
            self._whole = now >= self._whole_at
            self._after = 0 if self._whole else self._young
            self._first_young, self._spent, self._overview = None, 0.0, Overview()
        return self._after

    def took(self, found: Found, seconds: float) -> Overview | None:
        """Note a page that was scanned in `seconds`; returns the overview at the end of a whole scan."""
        self._spent += seconds
        self._overview = self._overview.plus(found)
        if self._first_young is None:
            self._first_young = found.first_young
        if found.last is not None:
            self._after = found.last
        if found.rows >= self.page:
            return None
        self._young = self._after if self._first_young is None else self._first_young - 1
        whole, self._whole = self._whole, None
        rest = self._clock() + REST * self._spent
        self._short_at = max(rest, self._clock() + SHORT_PAUSE)
        if whole:
            self._whole_at = max(rest, self._clock() + WHOLE_PAUSE)
        return self._overview if whole else None
