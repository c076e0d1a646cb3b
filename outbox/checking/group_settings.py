"""A producer group's settings for checking, and the pauses between checks that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.backoff import pause_after
from outbox.operations.groups import UNREGISTERED

LONGEST_S = 100 * 365 * 86_400.0
"""Seconds to which any duration is shortened: PostgreSQL adds them to timestamps, which must stay in range."""

LEASE_SLACK = 5.0
"""Seconds by which a claim outlasts its check: for the settling, and for a slow database."""

GRACE = 600.0
"""Seconds past its age for which a half message without a reply is still asked about; then it is EXHAUSTED."""
LAST_PAUSE_PAST_AGE = 120.0
"""Longest pause between two checks of a half message past its age, in seconds."""
NOTICED_AFTER = 60.0
"""Seconds (or `check_interval`, if shorter) past its due time after which one past its age raises `silent`."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a checker asks about one group, in seconds; the defaults are those of a group that is not registered.

    `ProducerGroup` is what an application registers, in timedeltas. A checker reads only what it needs in each round,
    as the floats that it calculates with and hands to its statements.
    """

    name: str
    check_after: float = UNREGISTERED.check_after.total_seconds()
    check_interval: float = UNREGISTERED.check_interval.total_seconds()
    max_check_interval: float = UNREGISTERED.max_check_interval.total_seconds()
    check_timeout: float = UNREGISTERED.check_timeout.total_seconds()
    max_checks: int = UNREGISTERED.max_checks
    max_age: float = UNREGISTERED.max_age.total_seconds()
    policy: str = UNREGISTERED.policy
    workers: int = UNREGISTERED.workers

    def pause_after(self, checks: int, stretch: float = 1.0) -> float:
        """Compute the seconds from a check that answered UNKNOWN to the next: 30, 60, 120 … 600.

        Args:
            checks: Checks that were made in all.
            stretch: By how much pauses are longer while the group is flooded, see `group_alarms.stretch_of`.
        """
        pause = pause_after(checks, self.check_interval, self.max_check_interval)
        return min(pause * stretch, LONGEST_S)

    def used_up(self, checks: int) -> bool:
        """Whether a half message that was checked so often is left to the policy."""
        return checks >= self.max_checks
