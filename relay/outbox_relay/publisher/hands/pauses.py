"""Pauses after failures."""

from __future__ import annotations

from outbox.backoff import Backoff

PAUSE_FIRST_S, PAUSE_LAST_S = 0.05, 5.0
"""After a producer that failed."""
BROKEN_PAUSE_LAST_S = 60.0
"""After an error of the relay's own: each start over publishes again what was not recorded."""
FORGET_AFTER_S = 10.0
"""So long without another failure, the pause after the next one is the first again."""


class PauseAfterFailure:
    """A pause that is longer with each failure, until none was for a while."""

    def __init__(self, longest: float) -> None:
        """Begin without a pause."""
        self.over_at = 0.0
        """When the pause is over (monotonic seconds)."""
        self._backoff = Backoff(PAUSE_FIRST_S, longest)

    def begin(self, now: float) -> float:
        """Begin a pause; return for how many seconds."""
        if now >= self.over_at + FORGET_AFTER_S:
            self._backoff.reset()
        pause = self._backoff.next()
        self.over_at = now + pause
        return pause
