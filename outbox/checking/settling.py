"""Settling what was answered, and ending half messages whose checks or age are used up.

The rule of the end (docs/adr/0006): a group's policy follows a reply, and nothing else. An age that is reached is a
reason to ask once more, not a decision:

- all `max_checks` are used up, and the last of them got UNKNOWN: the policy;
- past `max_age`, a check gets UNKNOWN: the policy;
- all `max_checks` are used up, and the last of them failed; or past `max_age` its checks got no reply for `GRACE`;
  or its group does not reply at all, and the alarm `silent` has stood for `GRACE`: EXHAUSTED,
  whatever the policy.

The last check counts, not any check: an UNKNOWN while the local transaction ran does not show what it
committed later, without a reply. A check that fails takes an earlier reply away.

So while a checker runs, each half message ends within `max_age` + `GRACE` + a few minutes, and none is rolled back
without a reply. A failed check (an exception, no reply in time, no connection) counts, and is not a reply.

Schedules of `settle`:

- The process dies, or loses the database, before the commit: the lease passes and the half message is asked about
  again; nothing was counted. After it, before it learns of it: settling again finds another claim, or none.
- It was stopped past the lease and another checker has claimed: the reply is thrown away, because the other one asks.
- The producer decided meanwhile: its decision stands, whatever was answered; the check is noted in the audit.
- The producer's transaction holds the half message: not waited for. COMMIT and ROLLBACK are not even kept, because
  that transaction may end otherwise: the question is asked again when the lock is gone.
- Two replies for one half message: the second finds no claim.
- One half message of many cannot be settled (its transaction fails): the caller settles them one by one, and that one
  is due again when its lease has passed.

Schedules of `expire`:

- The process dies: the half message is still over, and is found by the next claim, or by the scan of the group.
- The producer commits after us: 0 rows, so the library raises; before us: our row is no longer UNKNOWN.
- The half message is locked, or somebody is asking about it: left for the next time, however old it is.
- Two checkers: the second skips what the first has locked, and then finds it decided.
- A claim is committed between our snapshot and our lock, at the very moment the age is reached: the policy decides
  while somebody asks, the reply comes too late and is thrown away. One decision, the one that was due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from outbox.checking.answers import Answer, LocalTransactionState
from outbox.checking.claiming import LOCKED_PAUSE
from outbox.checking.group_settings import GRACE, LAST_PAUSE_PAST_AGE, GroupSettings
from outbox.checking.transaction import SQL
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
    silent: bool = False
    """Whether no reply came: asking failed, or there was no listener."""


class Ended(NamedTuple):
    """A half message that a check, or the end of its checks, took from its producer; for the log."""

    id: int
    state: str
    """ROLLED_BACK or EXHAUSTED; COMMITTED never."""
    checks: int
    reason: str | None


class Settled(NamedTuple):
    """What became of the replies, in numbers; and which half messages were not left to a COMMIT."""

    decided: int = 0
    unknown: int = 0
    not_asked: int = 0
    locked: int = 0
    decided_before: int = 0
    """Decided by somebody else meanwhile."""
    late: int = 0
    """Answered after the claim had passed to somebody else."""
    expired: int = 0
    """Of these: ended by the policy, or EXHAUSTED, because that was the last check."""
    exhausted: int = 0
    """Of the expired: left to an operator."""
    by_policy: int = 0
    """Of the expired: rolled back by the policy."""
    ended: tuple[Ended, ...] = ()
    """Rolled back by an answer, and expired."""

    def plus(self, other: Settled) -> Settled:
        """Add another one's."""
        return self._replace(**{name: getattr(self, name) + getattr(other, name) for name in self._fields})


class Expired(NamedTuple):
    """Half messages that came to their end: left to an operator, or rolled back by the policy."""

    ended: tuple[Ended, ...]

    @property
    def exhausted(self) -> int:
        """How many are left to an operator."""
        return sum(one.state == "EXHAUSTED" for one in self.ended)

    @property
    def by_policy(self) -> int:
        """How many are rolled back."""
        return sum(one.state == "ROLLED_BACK" for one in self.ended)


def settle(group: GroupSettings, replies: Sequence[Reply], stretch: float = 1.0) -> Plan[Settled]:
    """Settle replies in one statement, and end those of which that was the last check.

    Args:
        group: The group's settings.
        replies: What came of the claimed half messages.
        stretch: By how much the pauses to the next checks are longer than those of the group's settings.
    """
    rows = yield Statement(
        SQL["settle"],
        (
            TextArray([str(reply.id) for reply in replies]),
            TextArray([reply.claim for reply in replies]),
            TextArray([None if reply.answer is None else str(reply.answer.state) for reply in replies]),
            TextArray([reply.remark if reply.answer is None else reply.answer.remark for reply in replies]),
            TextArray([repr(_pause(group, reply, stretch)) for reply in replies]),
            TextArray(["true" if reply.silent else "false" for reply in replies]),
            repr(LOCKED_PAUSE),
            repr(group.max_age),
            str(group.max_checks),
            repr(LAST_PAUSE_PAST_AGE),
            repr(GRACE),
        ),
    )
    became = {id: settled for id, settled, _ in rows}
    counts = Counter(became.values())
    last = [id for id, _, over in rows if over]
    expired = (yield from expire(group, last)) if last else Expired(())
    rolled_back = tuple(
        Ended(reply.id, "ROLLED_BACK", reply.checks + 1, reply.answer.remark)
        for reply in replies
        if became.get(reply.id) == "decided"
        and reply.answer is not None
        and reply.answer.state is LocalTransactionState.ROLLBACK
    )
    return Settled(
        **counts,
        late=len(replies) - len(rows),
        expired=len(expired.ended),
        exhausted=expired.exhausted,
        by_policy=expired.by_policy,
        ended=rolled_back + expired.ended,
    )


def expire(group: GroupSettings, ids: Sequence[int]) -> Plan[Expired]:
    """End those of a group's half messages that are over by the rule above, and not locked; return which they were."""
    rows = yield Statement(
        SQL["expire"],
        (
            TextArray([str(id) for id in ids]),
            group.name,
            STATE_BY_POLICY[group.policy],
            repr(group.max_age),
            str(group.max_checks),
            repr(GRACE),
        ),
    )
    return Expired(tuple(Ended(*row) for row in rows))


def _pause(group: GroupSettings, reply: Reply, stretch: float) -> float:
    return reply.pause if reply.answer is None else group.pause_after(reply.checks + 1, stretch)
