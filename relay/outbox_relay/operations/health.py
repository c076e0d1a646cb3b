"""Sums up a status: healthy, or what is wrong, each with the command that repairs it or shows more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from outbox_relay.operations.status import LaneStatus, Status
from outbox_relay.text.formatting import cell, many, printable, seconds

MAX_AGE_S = 300.0
"""Age in seconds beyond which a message that a running relay has not published is a problem by default."""


@dataclass(frozen=True)
class Problem:
    """One thing that an operator has to do something about; `kind` is for machines and does not change.

    `age_seconds` is how long it has lasted, or the age of the oldest of what it counts; None: that is not known.
    """

    kind: str
    text: str
    command: str
    age_seconds: float | None = None


def problems(status: Status, max_age: float = MAX_AGE_S) -> list[Problem]:
    """List what is wrong, the most urgent first; nothing: the outbox is healthy.

    Args:
        status: what was read.
        max_age: age in seconds beyond which a message that waits for a running relay is a problem.
    """
    return [
        *_not_proven(status),
        *_relay(status),
        *_older_relay(status),
        *_held(status),
        *_expired(status),
        *_partitions(status),
        *_failovers(status),
        *_late(status, max_age),
        *_checkers(status),
        *_unsettled(status),
        *_grown(status),
        *_consumers(status),
    ]


def _alive(lane: LaneStatus) -> bool:
    return lane.owner is not None and lane.lease is not None and lane.lease > 0


def _not_proven(status: Status) -> Iterator[Problem]:
    for one in status.not_proven:
        yield Problem(
            "not_proven",
            f"nothing of shard {one.shard} is published (BATCH_NOT_PROVEN): Kafka has another batch than PostgreSQL; "
            "the relay's log names both, and the way out",
            "outbox failover scan",
            one.age,
        )


def _relay(status: Status) -> Iterator[Problem]:
    orphans = [lane.lane for lane in status.lanes if not _alive(lane)]
    if not orphans:
        return
    waiting = f", and {many(status.total.backlog, 'message')} to publish" if status.total.backlog else ""
    ended = [-lane.lease for lane in status.lanes if lane.lease is not None and not _alive(lane)]
    age = max(ended, default=None)
    if len(orphans) == len(status.lanes):
        yield Problem("no_relay", f"no relay runs{waiting}", "outbox relay run", age)
    else:
        lanes = f"lane{'s' if len(orphans) > 1 else ''} {', '.join(map(str, orphans))}"
        yield Problem("no_relay", f"no relay runs for {lanes}{waiting}", "outbox relay run", age)


def _older_relay(status: Status) -> Iterator[Problem]:
    """Name the lanes that wait for an upgrade to end: a relay of this version stops none, and publishes them."""
    stopped = ", ".join(str(lane.lane) for lane in status.lanes if lane.is_stopped)
    if stopped:
        yield Problem(
            "older_relay",
            f"a relay of an older version has stopped lane {stopped}: nothing of it is published until a relay of this "
            "version takes it; stop the older one",
            "outbox relay ls",
        )


def _held(status: Status) -> Iterator[Problem]:
    """Name each kind of hold once, with its oldest: a fault may hold thousands."""
    for kind in ("topic", "partition", "key", "message"):
        found = [one for one in status.holds if one.kind == kind]
        if not found:
            continue
        first, waiting = found[0], sum(one.waiting for one in found)
        behind = f", {many(waiting, 'message')} wait{'s' if waiting == 1 else ''}" if waiting else ""
        oldest = ": " if len(found) == 1 else "; the oldest: "
        yield Problem(
            "hold",
            f"{many(sum(one.holds for one in found), kind)} held since {cell(first.since)}{behind}"
            f"{oldest}{first.place}: {printable(first.error)}",
            first.command if len(found) == 1 else "outbox holds ls",
            max(one.age_seconds for one in found),
        )


def _expired(status: Status) -> Iterator[Problem]:
    expired = sum(one.messages for one in status.waiting if one.reason == "expired")
    if expired:
        yield Problem(
            "expired",
            f"{many(expired, 'message')} expired before the relay came to publish them",
            "outbox message ls --status DEAD",
            max((one.oldest or 0.0 for one in status.waiting if one.reason == "expired"), default=None),
        )


def _partitions(status: Status) -> Iterator[Problem]:
    if status.partitions.ahead < 1:
        yield Problem("partitions", "the next partition is missing", "outbox db partitions --ensure 7")


def _failovers(status: Status) -> Iterator[Problem]:
    for failover in status.failovers:
        if failover.scanned_at is None:
            yield Problem(
                "failover",
                f"this server took over from another one at {cell(failover.noticed_at)}: Kafka may have messages whose "
                "transactions were lost",
                "outbox failover scan",
            )
            return


def _late(status: Status, max_age: float) -> Iterator[Problem]:
    ages = [lane.share.oldest or 0.0 for lane in status.lanes if _alive(lane)]
    if ages and max(ages) > max_age:
        yield Problem(
            "late",
            f"a relay runs, and a message has waited for {seconds(max(ages))} (more than {seconds(max_age)})",
            "outbox message ls --status COMMITTED",
            max(ages),
        )


def _checkers(status: Status) -> Iterator[Problem]:
    for alarm in status.alarms:
        yield Problem(
            "alarm",
            f"alarm {alarm.kind}, group {printable(alarm.producer_group)}, since {cell(alarm.since)}: "
            f"{printable(alarm.detail)}",
            f"outbox group show {quote(printable(alarm.producer_group))}",
            alarm.age,
        )
    # A group with an alarm is named above, with the reason.
    named = {alarm.producer_group for alarm in status.alarms}
    late = [one for one in status.unsettled if one.overdue and one.producer_group not in named]
    if late:
        overdue = sum(one.overdue for one in late)
        yield Problem(
            "no_checker",
            f"no checker asks about {many(overdue, 'overdue half message')} (outbox tx ls --overdue)",
            "outbox checker run",
            max(one.oldest for one in late),
        )


def _grown(status: Status) -> Iterator[Problem]:
    for topic in status.grown:
        yield Problem(
            "topic_grown",
            f"topic {topic.name} has {topic.partitions_in_kafka} partitions in Kafka and is pinned to "
            f"{topic.partitions}: no key moves, and the new ones stay empty",
            f"outbox topic show {topic.name}",
        )


def _unsettled(status: Status) -> Iterator[Problem]:
    for state, what, command in (
        ("EXHAUSTED", "left to an operator", "outbox tx ls --state EXHAUSTED"),
        ("DEAD", "cannot be published", "outbox message ls --status DEAD"),
    ):
        found = [one for one in status.unsettled if one.state == state]
        if found:
            messages = sum(one.messages for one in found)
            oldest = max(one.oldest for one in found)
            yield Problem(state.lower(), f"{many(messages, 'message')} {state}: {what}", command, oldest)


def _consumers(status: Status) -> Iterator[Problem]:
    if status.consumers.dead:
        letters = many(status.consumers.dead, "dead letter")
        yield Problem("dead_letters", f"{letters} of consumer groups", "outbox dlq summary")
    if status.consumers.paused:
        group = printable(status.consumers.paused_group or "")
        yield Problem(
            "paused_groups",
            f"{many(status.consumers.paused, 'consumer group')} paused, or topics of them, such as of {group}",
            f"outbox consumers show {quote(group)}",
        )
    if status.consumers.full_keys:
        group = printable(status.consumers.full_group or "")
        yield Problem(
            "full_keys",
            f"{many(status.consumers.full_keys, 'order key')} of consumer groups, such as {group}, have as many "
            "messages behind one that failed as may wait: later ones stay in Kafka, and their partitions wait",
            f"outbox dlq ls --group {quote(group)}",
        )
    if status.consumers.idle_members:
        members = many(status.consumers.idle_members, "member")
        group = printable(status.consumers.idle_group or "")
        yield Problem(
            "idle_members",
            f"{members} of consumer groups, such as {group}, read no partition: there are more members than "
            "partitions, or Kafka has assigned none",
            f"outbox consumers show {quote(group)}",
        )
