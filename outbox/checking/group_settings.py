"""A producer group's settings for checking, and the pauses between checks that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 100 * 365 * 86_400.0
"""Seconds that any duration is cut to: PostgreSQL adds them to timestamps, which must stay in range."""

LEASE_SLACK = 5.0
"""Seconds by which a claim outlasts its check: for the settling, and for a slow database."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What `outbox.producer_group` says of a group, in seconds; its defaults hold for a group that is not there."""

    name: str
    check_after: float = 6.0
    check_interval: float = 30.0
    max_check_interval: float = 600.0
    check_timeout: float = 3.0
    max_checks: int = 15
    max_age: float = 259_200.0
    policy: str = "ROLLBACK"
    workers: int = 4

    def pause_after(self, checks: int) -> float:
        """Seconds from a check that answered UNKNOWN to the next, when `checks` were made in all: 30, 60, 120 … 600."""
        doubled = self.check_interval * 2.0 ** min(max(checks - 1, 0), 60)
        return min(doubled, self.max_check_interval)

    def used_up(self, checks: int) -> bool:
        """Whether a half message that was checked so often is left to the policy."""
        return checks >= self.max_checks
