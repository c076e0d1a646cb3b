"""Which thread searches for retries that are due, from when on, and what interrupted retries cost.

One idle thread of a member has the right to search, and searches every half second. It gives the right back before it
calls a listener, and the next idle thread searches at once: so a retry that runs long holds up the others only when
each thread has such a one. A thread that ends, or pauses because PostgreSQL is away, gives the right back, too. No
thread has it inside a listener, so a thread that is given up never has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from outbox.inbox.core.hands import MOST_INTERRUPTIONS
from outbox.inbox.core.suspects import FIRST_RETRIES
from outbox.inbox.parked_rows import DueSince, Retry

SEARCH_PAUSE = 0.5
"""Seconds between two searches that find nothing."""
FIRST_PAUSE = 0.5
"""Half of the seconds for which a retry waits that was interrupted once; twice as long after each further time."""


class Retries:
    """The search for retries of a member. Not thread-safe."""

    def __init__(self) -> None:
        self._searcher: Hashable = None
        self._begun = 0
        self._suspect: int | None = None
        self._interruptions: Counter[int] = Counter()
        self.due = DueSince()
        self.is_soon = False
        """Whether to search at once: a retry was found or has ended, so others may be due, or a thread is to end."""

    def take(self, who: Hashable) -> bool:
        """Take the right to search; False: another thread has it."""
        if self._searcher is None:
            self._searcher = who
        return self._searcher == who

    def give_back(self, who: Hashable) -> None:
        """Let another thread have the right, if this one has it."""
        if self._searcher == who:
            self._searcher = None

    @property
    def has_suspect(self) -> bool:
        """Whether a retry is run that may have ended another process: one at a time is."""
        return self._suspect is not None

    def begin(self, who: Hashable, retry: Retry, now: float) -> bool:
        """Begin with a retry that was found, and give the right back; return whether its run is counted."""
        self.due.found(retry.due_at, now)
        self._begun += 1
        if retry.is_suspect:
            self._suspect = retry.id
        self.is_soon = True
        self.give_back(who)
        return retry.is_suspect or retry.attempts > 0 or self._begun <= FIRST_RETRIES

    def rest(self, now: float) -> float:
        """Return the seconds until the next search after one that found nothing."""
        left = self.due.left(now)
        return left if 0 < left < SEARCH_PAUSE else SEARCH_PAUSE

    def end(self, retry: Retry | None) -> None:
        """End with a retry, whatever became of it."""
        if retry is not None and retry.id == self._suspect:
            self._suspect, self.is_soon = None, True

    def succeeded(self, retry: Retry) -> None:
        """Note that a retry was dealt with, or that its failure is counted."""
        self._interruptions.pop(retry.id, None)
        self.is_soon = True  # the next message of its key is due now

    def interrupted(self, retry: Retry) -> float | None:
        """Count an interruption, by all threads; return for how long the retry waits, None: it counts as failed."""
        self._interruptions[retry.id] += 1
        count = self._interruptions[retry.id]
        return FIRST_PAUSE * 2**count if count < MOST_INTERRUPTIONS else None
