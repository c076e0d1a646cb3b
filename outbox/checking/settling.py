"""Settling what was answered, and applying the policy to half messages whose checks or age are used up.

Schedules of `settle`:

- The process dies, or loses the database, before the commit: the lease passes and the half message is asked about
  again; nothing was counted. After it, before it learns of it: settling again finds another claim, or none.
- It was stopped past the lease and another checker has claimed: the answer is thrown away, for the other one asks.
- The producer decided meanwhile: its decision stands, whatever was answered; the check is noted in the audit.
- The producer's transaction holds the half message: not waited for. COMMIT and ROLLBACK are not even kept, because
  that transaction may end otherwise: the question is asked again when the lock is gone.
- Two answers for one half message: the second finds no claim.
- One half message of many cannot be settled (its transaction fails): the caller settles them one by one, and that one
  is due again when its lease has passed.

Schedules of `expire`:

- The process dies: the half message is still over, and is found by the next claim, or by the walk over the group.
- The producer commits after us: 0 rows, so the library raises; before us: our row is no longer UNKNOWN.
- The half message is locked, or somebody is asking about it: left for the next time, however old it is.
- Two checkers: the second skips what the first has locked, and then finds it decided.
- A claim is committed between our snapshot and our lock, at the very moment the age is reached: the policy decides
  while somebody asks, the answer comes too late and is thrown away. One verdict, the one that was due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outbox.checking.claiming import LOCKED_PAUSE
from outbox.checking.group_settings import GroupSettings
from outbox.checking.transaction import SQL
from outbox.resolution import Answer
from outbox.statements import Plan, Statement, TextArray

STATE_BY_POLICY = {"ROLLBACK": "ROLLED_BACK", "EXHAUSTED": "EXHAUSTED"}


class Reply(NamedTuple):
    """What came of one claimed half message."""

    id: int
    claim: str
    """The claim's token, under which it was asked about."""
    checks: int
    """How often it had been asked about before."""
    answer: Answer | None
    """None: it was not asked about after all, and no check is used up."""
    pause: float = 0.0
    """Seconds until it is due again, if it was not asked about."""
    remark: str | None = None
    """Why it was not asked about."""


class Settled(NamedTuple):
    """What became of the replies, in numbers."""

    decided: int = 0
    unknown: int = 0
    not_asked: int = 0
    locked: int = 0
    decided_before: int = 0
    """Decided by somebody else meanwhile."""
    late: int = 0
    """Answered after the claim had passed to somebody else."""
    expired: int = 0
    """Of the unknown: decided by the policy, because that was the last check."""


def settle(group: GroupSettings, replies: Sequence[Reply]) -> Plan[Settled]:
    """Settle replies in one statement, and apply the policy to those that used up the last check."""
    rows = yield Statement(
        SQL["settle"],
        (
            TextArray([str(reply.id) for reply in replies]),
            TextArray([reply.claim for reply in replies]),
            TextArray([None if reply.answer is None else str(reply.answer.state) for reply in replies]),
            TextArray([reply.remark if reply.answer is None else reply.answer.remark for reply in replies]),
            TextArray([repr(_pause(group, reply)) for reply in replies]),
            repr(LOCKED_PAUSE),
            repr(group.max_age),
        ),
    )
    numbers = dict.fromkeys(Settled._fields, 0)
    for _, settled, _ in rows:
        numbers[settled] += 1
    numbers["late"] = len(replies) - len(rows)
    last = [id for id, settled, checks in rows if settled == "unknown" and group.used_up(checks)]
    if last:
        numbers["expired"] = len((yield from expire(group, last)))
    return Settled(**numbers)


def expire(group: GroupSettings, ids: Sequence[int]) -> Plan[list[int]]:
    """Apply the policy to those of a group's half messages that are over, and not locked; answer which they were."""
    rows = yield Statement(
        SQL["expire"],
        (
            TextArray([str(id) for id in ids]),
            group.name,
            STATE_BY_POLICY[group.policy],
            repr(group.max_age),
            str(group.max_checks),
        ),
    )
    return [id for (id,) in rows]


def _pause(group: GroupSettings, reply: Reply) -> float:
    return reply.pause if reply.answer is None else group.pause_after(reply.checks + 1)
