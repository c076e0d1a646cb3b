"""Shows a status: its health first, then figures and tables for people; one document for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.cli.status import render_half_messages
from outbox_relay.operations.consumer_lag import Lag
from outbox_relay.operations.health import Problem
from outbox_relay.operations.status import Share, Status
from outbox_relay.text import formatting

MOST_TOPICS = 20
"""Topics, and groups, shown to people; machines get all."""


def as_document(status: Status, found: Sequence[Problem], lag: Lag | None = None) -> dict[str, Any]:
    """Everything for machines: counts, seconds and messages/s; a topic named null was not identified."""
    return {
        "healthy": not found,
        "problems": [asdict(one) for one in found],
        "backlog": status.total.backlog,
        "oldest_age_seconds": status.total.oldest,
        "published_per_second": status.total.published_per_second,
        "window_seconds": status.window,
        "topics": [{"topic": name, **_share(share)} for name, share in _by_backlog(status)],
        "lanes": [
            {
                "lane": lane.lane,
                "state": lane.state,
                "mode": lane.mode,
                "owner": lane.owner,
                "epoch": lane.epoch,
                "lease_seconds": lane.lease,
                **_share(lane.share),
            }
            for lane in status.lanes
        ],
        "holds": [{**asdict(one), "command": one.command} for one in status.holds],
        "waiting": [asdict(one) for one in status.waiting],
        "unsettled": [asdict(one) for one in status.unsettled],
        "alarms": [
            {
                "producer_group": one.producer_group,
                "kind": one.kind,
                "detail": one.detail,
                "since": one.since,
                "seen_at": one.seen_at,
            }
            for one in status.alarms
        ],
        "grown_topics": [asdict(one) for one in status.grown],
        "consumers": asdict(status.consumers)
        | ({} if lag is None else {"lag": lag.messages, "oldest_age_seconds": lag.oldest}),
        "partitions": {
            "newest_id": status.partitions.newest_id,
            "ahead": status.partitions.ahead,
            "ids_left": status.partitions.ids_left,
            "alarm": status.partitions.ahead < 1,
        },
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "backlog": share.backlog,
        "oldest_age_seconds": share.oldest,
        "published_per_second": round(share.published_per_second, 3),
    }


def _by_backlog(status: Status) -> list[tuple[str | None, Share]]:
    return sorted(
        status.topics.items(),
        key=lambda item: (-item[1].backlog, -item[1].published_per_second, item[0] or ""),
    )


def show(status: Status, found: Sequence[Problem], place: str, lag: Lag | None = None) -> None:
    """Print the status for people; `lag`: of all consumer groups, if Kafka was asked."""
    show_verdict(found)
    click.echo(f"{place}, {formatting.moment(datetime.now(UTC))}")
    output.pairs(_summary(status, lag))
    click.echo()
    _topics(status)
    render_half_messages.show(status.unsettled, MOST_TOPICS)
    if len({(lane.state, lane.owner) for lane in status.lanes}) > 1:
        _lanes(status)


def show_verdict(found: Sequence[Problem]) -> None:
    """Print `healthy`, or one line for each problem, with the command that repairs it or shows more."""
    if not found:
        click.secho("healthy", fg="green")
    for one in found[:MOST_TOPICS]:
        click.secho(f"PROBLEM: {one.text}: {one.command}", fg="red")
    if len(found) > MOST_TOPICS:
        click.secho(
            f"… and {formatting.many(len(found) - MOST_TOPICS, 'more problem')} (--json has all)", fg="red"
        )


def _summary(status: Status, lag: Lag | None) -> list[tuple[str, Any]]:
    total = status.total
    oldest = f", the oldest {formatting.seconds(total.oldest)} old" if total.backlog else ""
    rows: list[tuple[str, Any]] = [
        ("backlog", f"{formatting.many(total.backlog, 'message')}{oldest}"),
        (
            "published",
            f"{_rate(total.published_per_second)}/s over the last {formatting.seconds(status.window)}",
        ),
    ]
    if status.holds:
        rows.append(("held", _held(status)))
    for waiting in status.waiting:
        due = "" if waiting.next_due is None else f", the next due in {formatting.seconds(waiting.next_due)}"
        rows.append((waiting.reason, f"{formatting.many(waiting.messages, 'message')}{due}"))
    for state, what in (
        ("UNKNOWN", ("half message undecided", "half messages undecided")),
        ("EXHAUSTED", ("half message left to an operator", "half messages left to an operator")),
        ("DEAD", ("message that cannot be published", "messages that cannot be published")),
    ):
        found = [one for one in status.unsettled if one.state == state]
        if found:
            messages = sum(one.messages for one in found)
            age = formatting.seconds(max(one.oldest for one in found))
            overdue = sum(one.overdue for one in found)
            late = f", {formatting.count(overdue)} of them overdue" if overdue else ""
            rows.append(
                (state, f"{formatting.count(messages)} {what[messages != 1]}{late}, the oldest {age} old")
            )
    consumers = status.consumers
    if consumers.groups:
        figures = [
            formatting.many(consumers.groups, "group"),
            formatting.many(consumers.dead, "dead letter"),
            f"{formatting.count(consumers.retries)} {'retry' if consumers.retries == 1 else 'retries'}",
            formatting.many(consumers.held_keys, "held key"),
        ]
        if lag is not None:
            age = "" if lag.oldest is None else f", the oldest message {formatting.seconds(lag.oldest)} old"
            figures.append(f"lag {formatting.count(lag.messages)}{age}")
        rows.append(("consumers", ", ".join(figures)))
        if consumers.retrying:
            rows.append(("retrying", _retrying(consumers.retrying)))
    room = formatting.many(status.partitions.ids_left, "message")
    left = status.partitions.seconds_until(status.partitions.newest_id + status.partitions.ids_left)
    rate = "" if left is None else f", {formatting.seconds(left)} at the present rate"
    rows.append(
        (
            "partitions",
            f"{status.partitions.ahead} ahead, room for {room}{rate}",
        )
    )
    if len({(lane.state, lane.owner) for lane in status.lanes}) == 1:
        rows.append(("lanes", _alike(status)))
    return rows


def _held(status: Status) -> str:
    """Count the holds by kind, and what waits for them."""
    kinds: Counter[str] = Counter()
    for one in status.holds:
        kinds[one.kind] += one.holds
    waiting = sum(one.waiting for one in status.holds)
    counted = [formatting.many(number, kind) for kind, number in kinds.items()]
    return ", ".join([*counted, f"{formatting.many(waiting, 'message')} behind"])


def _retrying(groups: dict[str, int]) -> str:
    """Count the messages that fail and are tried again, by group, most first."""
    ranked = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    counted = [f"{name} {formatting.count(messages)}" for name, messages in ranked[:MOST_TOPICS]]
    if len(ranked) > MOST_TOPICS:
        counted.append(f"{formatting.many(len(ranked) - MOST_TOPICS, 'more group')} (--json has all)")
    return f"{', '.join(counted)}: outbox dlq ls --retrying"


def _alike(status: Status) -> str:
    """Describe lanes that do not differ."""
    first = status.lanes[0]
    lease = [lane.lease for lane in status.lanes if lane.lease is not None]
    owner = "" if first.owner is None else f", owner {first.owner}"
    left = f", lease {formatting.seconds(min(lease))}" if lease and first.state == "running" else ""
    return f"{len(status.lanes)} {first.state}{owner}{left}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _topics(status: Status) -> None:
    found = [
        (name, share) for name, share in _by_backlog(status) if share.backlog or share.published_per_second
    ]
    if not found:
        return
    output.table(
        ["topic", "backlog", "oldest", "published/s ~"],
        [
            (
                "(half messages)" if name is None else name,
                formatting.count(share.backlog),
                formatting.seconds(share.oldest),
                _rate(share.published_per_second),
            )
            for name, share in found[:MOST_TOPICS]
        ],
        right=("backlog", "oldest", "published/s ~"),
        keep=("topic", "backlog", "oldest"),
    )
    if len(found) > MOST_TOPICS:
        click.echo(f"… and {formatting.many(len(found) - MOST_TOPICS, 'more topic')} (--json has all)")
    click.echo()


def _lanes(status: Status) -> None:
    output.table(
        ["lane", "state", "owner", "lease", "backlog", "oldest", "published/s ~"],
        [
            (
                lane.lane,
                lane.state,
                lane.owner,
                formatting.seconds(lane.lease) if lane.state == "running" else None,
                formatting.count(lane.share.backlog),
                formatting.seconds(lane.share.oldest),
                _rate(lane.share.published_per_second),
            )
            for lane in status.lanes
        ],
        right=("lane", "lease", "backlog", "oldest", "published/s ~"),
        keep=("lane", "state", "owner"),
    )
