"""A group's circuit breaker: who fails again and again is left alone for a while, and then asked one question.

closed ── 5 failures in a row ──▶ open ── after 5 s, 10, 20 … 60 ──▶ half open: one question
  ▲                                ▲                                     │
  └──────── it succeeds ───────────┼──── it fails ◀──────────────────────┤
                                   └─────────────────────────────────────┘

A failure is a check that raised or gave no answer in time; UNKNOWN is an answer. While the breaker is open nothing is
asked and no check is used up; other checkers of the group have breakers of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outbox.backoff import Backoff

FAILURES = 5
FIRST_BREAK = 5.0
LONGEST_BREAK = 60.0
"""Seconds: a group that has recovered is asked again within this time."""


class Breaker:
    """One group's breaker. Not for several threads at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._backoff = Backoff(FIRST_BREAK, LONGEST_BREAK)
        self._until: float | None = None
        self._probing = False
        self.reason: str | None = None
        """Why it is open: the last failure."""

    @property
    def open(self) -> bool:
        """Whether the group is being left alone, the one question included."""
        return self._until is not None

    def may_ask(self) -> int | None:
        """How many may be asked about now: None for any number, 1 for the one question, 0 while it is open."""
        if self._until is None:
            return None
        return 0 if self._probing or self._clock() < self._until else 1

    def probe(self) -> None:
        """The one question is being asked."""
        self._probing = self._until is not None

    def no_probe(self) -> None:
        """The one question was not asked after all: nothing was due, or there was no listener."""
        self._probing = False

    def succeeded(self) -> None:
        """An answer came, if only UNKNOWN."""
        self._failures, self._until, self._probing, self.reason = 0, None, False, None
        self._backoff.reset()

    def failed(self, reason: str) -> None:
        """A check raised, or gave no answer in time."""
        self._failures += 1
        if self._probing or (self._until is None and self._failures >= FAILURES):
            self.trip(reason)

    def trip(self, reason: str) -> None:
        """Open now, for longer than the last time."""
        self._until = self._clock() + self._backoff.next()
        self._probing, self.reason = False, reason
