"""Puts together what the threads of a member noted of themselves; nothing here waits for a thread or a server."""

from __future__ import annotations

from time import monotonic

from outbox.inbox.assignments import Assignments
from outbox.inbox.counts import MessageCounts
from outbox.inbox.keeper import Keeper
from outbox.inbox.poller import Poller
from outbox.inbox.settings import Member
from outbox.inbox.vitals import ConsumerVitals

HANGS_S = 120.0
"""Seconds without progress of the loop, besides the time to drain, after which it hangs. When a partition is given
away, PostgreSQL is waited for, for 10 s, and then Kafka, which takes the offsets."""


def observe(
    member: Member,
    counts: MessageCounts,
    assignments: Assignments,
    keeper: Keeper,
    poller: Poller | None,
    *,
    given_up: int,
    is_ending: bool,
    error: BaseException | None,
) -> ConsumerVitals:
    """Return how a member stands.

    Args:
        member: its settings.
        counts: what became of its messages.
        assignments: its partitions.
        keeper: its thread for PostgreSQL.
        poller: its loop for Kafka; None: it has not begun.
        given_up: listeners that have not returned.
        is_ending: whether it was asked to end, or has ended.
        error: what ended it.
    """
    now = monotonic()
    polled_ago = 0.0 if poller is None else max(0.0, now - poller.polled_at)
    defect = None
    if error is not None:
        defect = f"it has ended: {type(error).__name__}"
    elif not is_ending and polled_ago > member.settings.drain + HANGS_S:
        defect = f"it hangs: Kafka was polled {polled_ago:.0f} s ago"
    with assignments as partitions:
        found = partitions.vitals({} if poller is None else poller.ends)
        skipped, pauses, keys = partitions.skipped, partitions.pauses, partitions.full_keys
        held, full = keys.held, keys.count
    return ConsumerVitals(
        member.group,
        member.name,
        found,
        {**counts.messages, "skipped": skipped},
        counts.retries,
        given_up,
        held,
        polled_ago,
        0.0 if poller is None else max(0.0, now - keeper.kept_at),
        _trouble(counts, keeper, poller, is_ending=is_ending),
        defect,
        counts.erasures,
        {} if poller is None else poller.stopped,
        pauses.topics,
        full,
    )


def _trouble(counts: MessageCounts, keeper: Keeper, poller: Poller | None, *, is_ending: bool) -> str | None:
    if is_ending:
        return "it ends"
    if poller is None:
        return "it has not registered yet"
    if keeper.trouble is not None:
        return f"PostgreSQL: {keeper.trouble}"
    if counts.trouble is not None:
        return f"each transaction of a message fails, the last: {counts.trouble}"
    if poller.trouble is not None:
        return poller.trouble
    stopped = [f"{topic}[{part}]: {reason}" for (topic, part), reason in sorted(poller.stopped.items())]
    if stopped:
        return f"{len(stopped)} partitions are not read, such as {stopped[0]}, which the group has not handled (on_gap)"
    return None
