"""Decisions on ranges of ids: what speaks against dropping one, by name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from outbox_relay.retention.ranges import Range

NOT_ASKED_FOR = {
    "current": "its ids are still being given out, or it is the newest partition",
    "young": "it has changed within the retention",
    "detached_by_hand": "it was detached by somebody else, and is left alone",
}
"""Reasons that are no refusals: such a range is not what `--older-than` asks for."""

REFUSALS = {
    "incomplete": "one of its tables is missing",
    "open": "a transaction runs that could still insert into it",
    "undecided": "half messages are UNKNOWN or EXHAUSTED",
    "dead": "messages are DEAD: an operator has to retry or skip them",
    "waiting": "messages are delayed, held or parked",
    "checking": "a checker is asking about a message at this moment",
    "unpublished": "COMMITTED messages have no publication",
    "needed": "it holds the publications of older messages that stay",
    "unexported": "no certificate of the target covers all its transactions",
    "unverified": "the last verification found problems, or the warehouse does not hold any more what was verified",
    "other_cluster": "the target's certificates are of another cluster, or of another database",
    "other_timeline": "the target's certificates were given before a standby was promoted",
    "depended_on": "other objects, such as views, depend on its tables",
    "busy": "a lock was not free in time; what was begun is finished by the next run",
}
"""Reasons to refuse a range that is old enough, in the order in which they are checked."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that speaks against dropping a range; `name` is one of the above."""

    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """What was found about a range; messages and their last change where its tables were read."""

    range: Range
    reasons: tuple[Reason, ...] = ()
    messages: int | None = None
    changed_at: datetime | None = None

    @property
    def may_go(self) -> bool:
        """Whether nothing speaks against dropping it."""
        return not self.reasons

    @property
    def is_refusal(self) -> bool:
        """Whether it is old enough, and must stay all the same."""
        return bool(self.reasons) and not any(reason.name in NOT_ASKED_FOR for reason in self.reasons)
