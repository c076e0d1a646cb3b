"""A producer group's settings for checking, and the pauses between checks that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.operations.groups import DEFAULTS

LONGEST = 100 * 365 * 86_400.0
"""Seconds that any duration is cut to: PostgreSQL adds them to timestamps, which must stay in range."""

LEASE_SLACK = 5.0
"""Seconds by which a claim outlasts its check: for the settling, and for a slow database."""

GRACE = 600.0
"""Seconds past its age for which a half message is asked about that nobody answers for; then it is EXHAUSTED."""
LAST_PAUSE = 120.0
"""Longest pause between two checks of a half message past its age, in seconds."""
NOTICED_AFTER = 60.0
"""Seconds (or `check_interval`, if shorter) past its due time after which one past its age raises `silent`."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What `outbox.producer_group` says of a group, in seconds; its defaults hold for a group that is not there."""

    name: str
    check_after: float = DEFAULTS.check_after.total_seconds()
    check_interval: float = DEFAULTS.check_interval.total_seconds()
    max_check_interval: float = DEFAULTS.max_check_interval.total_seconds()
    check_timeout: float = DEFAULTS.check_timeout.total_seconds()
    max_checks: int = DEFAULTS.max_checks
    max_age: float = DEFAULTS.max_age.total_seconds()
    policy: str = DEFAULTS.policy
    workers: int = DEFAULTS.workers

    def pause_after(self, checks: int, stretch: float = 1.0) -> float:
        """Compute the seconds from a check that answered UNKNOWN to the next: 30, 60, 120 … 600.

        Args:
            checks: Checks that were made in all.
            stretch: By how much pauses are longer while the group is flooded, see `group_alarms.stretch_of`.
        """
        doubled = self.check_interval * 2.0 ** min(max(checks - 1, 0), 60)
        return min(min(doubled, self.max_check_interval) * stretch, LONGEST)

    def used_up(self, checks: int) -> bool:
        """Whether a half message that was checked so often is left to the policy."""
        return checks >= self.max_checks
