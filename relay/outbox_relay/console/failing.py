"""What fails now, in one list by cause: messages of consumers that fail, what is held, undecided half messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import psycopg

from outbox_relay.operations import dlq, hold_groups, holds
from outbox_relay.operations.dlq import DeadLetterFilter
from outbox_relay.operations.holds import HoldView
from outbox_relay.operations.messages import Row
from outbox_relay.operations.status import Unsettled
from outbox_relay.text.formatting import printable

MOST_CAUSES = 30
MOST_RETRYING = 300
"""Messages that are tried again of which the causes are counted, the next try first."""
MOST_HOLDS = 100


@dataclass(frozen=True)
class Way:
    """Something that an operator can do here; `path` leads to its form."""

    text: str
    path: str


@dataclass(frozen=True)
class FailureCause:
    """Messages that fail for one reason.

    Attributes:
        kind: in a word, for people: dead, retrying, held, undecided, exhausted.
        where: the group or the topic.
        failure: why.
        messages: how many fail.
        since: when the first of them failed.
        age: the same in seconds, where that is what is known.
        next_try: when the next of them is tried again.
        behind: how many wait behind them, as far as they were counted.
        key: of the example.
        example: the id of one, as the commands take it.
        message_id: of the example.
        error: the example's whole error.
        commands: lines for a terminal.
        ways: what can be done here.
        path: where all of them are listed.
    """

    kind: str
    where: str
    failure: str
    messages: int
    since: datetime | None = None
    age: float | None = None
    next_try: datetime | None = None
    behind: int = 0
    key: bytes | None = None
    example: int | None = None
    message_id: UUID | None = None
    error: str | None = None
    commands: tuple[str, ...] = ()
    ways: tuple[Way, ...] = ()
    path: str | None = None


def link(path: str, **values: Any) -> str:
    """Return the path with its query, without what is None."""
    given = {name: value for name, value in values.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def causes(conn: psycopg.Connection[Any], unsettled: list[Unsettled]) -> list[FailureCause]:
    """Return what fails, what needs an operator first.

    Args:
        conn: a session that reads.
        unsettled: the half messages of the present status.
    """
    return [*_held(conn), *_half_messages(unsettled), *_dead(conn), *_retrying(conn)]


def _dead(conn: psycopg.Connection[Any]) -> Iterator[FailureCause]:
    found = dlq.summary(conn)[:MOST_CAUSES]
    examples = _examples(conn, [row["example"] for row in found])
    for row in found:
        group, failure, id_ = row["consumer_group"], row["failure"], row["example"]
        example = examples.get(id_, {})
        chosen = {"group": group, "failure": failure} if failure else {"ids": id_}
        given = (
            f"--group {quote(printable(group))} --failure {quote(printable(failure))}"
            if failure
            else str(id_)
        )
        yield FailureCause(
            "dead",
            f"consumer group {printable(group)}",
            printable(failure or "no error is noted"),
            row["messages"],
            since=row["first_at"],
            behind=example.get("waiting", 0),
            key=example.get("key"),
            example=id_,
            message_id=example.get("message_id"),
            error=example.get("error"),
            commands=(f"outbox dlq show {id_}", f"outbox dlq redrive {given}", f"outbox dlq discard {given}"),
            ways=(
                Way("Try again", link("/acts/redrive", **chosen)),
                Way("Discard", link("/acts/discard", **chosen)),
            ),
            path=link("/letters", group=group, failure=failure) if failure else None,
        )


def _examples(conn: psycopg.Connection[Any], ids: list[int]) -> dict[int, Row]:
    listed = {row["id"]: row for page in dlq.pages(conn, DeadLetterFilter(ids=ids)) for row in page}
    return {id_: {**row, "error": (dlq.show(conn, id_) or {}).get("error")} for id_, row in listed.items()}


def _retrying(conn: psycopg.Connection[Any]) -> Iterator[FailureCause]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in dlq.retrying(conn, DeadLetterFilter(), MOST_RETRYING):
        groups.setdefault((row["consumer_group"], row["failure"] or ""), []).append(row)
    for (group, failure), found in list(groups.items())[:MOST_CAUSES]:
        first = found[0]
        shown = dlq.show(conn, first["id"]) or {}
        yield FailureCause(
            "retrying",
            f"consumer group {printable(group)}",
            printable(failure or "no error is noted"),
            len(found),
            since=min((row["failed_at"] for row in found if row["failed_at"]), default=None),
            next_try=first["due_at"],
            behind=sum(row["waiting"] for row in found),
            key=first["key"],
            example=first["id"],
            message_id=first["message_id"],
            error=shown.get("error"),
            commands=(
                f"outbox dlq ls --retrying --group {quote(printable(group))}",
                f"outbox dlq show {first['id']}",
            ),
        )


def _held(conn: psycopg.Connection[Any]) -> Iterator[FailureCause]:
    examples: dict[tuple[str, str, str], HoldView] = {}
    for hold in holds.everything(conn, most=MOST_HOLDS):
        examples.setdefault((hold.kind, hold.topic, hold.code), hold)
    for group in hold_groups.read(conn)[:MOST_CAUSES]:
        example = examples.get((group.kind, group.topic, group.code))
        yield FailureCause(
            "held",
            group.place if example is None else example.place,
            printable(group.error),
            group.holds,
            since=group.since,
            behind=group.waiting,
            key=None if example is None else example.order_key,
            example=None if example is None else example.id,
            commands=(group.command, *(() if example is None else tuple(example.repair()))),
            ways=() if example is None else tuple(ways_out(example)),
        )


def ways_out(hold: HoldView) -> Iterator[Way]:
    """Yield the ways that `HoldView.repair` names as commands."""
    if hold.is_paused:
        yield Way("Resume the topic", link("/acts/resume-topic", topic=hold.topic))
        return
    if hold.is_over:
        return
    if hold.kind in ("topic", "partition"):
        yield Way("Try again", link("/acts/release", topic=hold.topic, error=hold.code))
    else:
        yield Way("Try again", link("/acts/release", id=hold.id))
    if hold.may_be_given_up:
        yield Way("Give up", link("/acts/skip", id=hold.id, in_doubt="yes" if hold.in_doubt else None))
        if not hold.in_doubt:
            yield Way("Set aside", link("/acts/set-aside", id=hold.id))


def _half_messages(unsettled: list[Unsettled]) -> Iterator[FailureCause]:
    for one in unsettled:
        group = printable(one.producer_group or "")
        path = link("/half-messages", group=one.producer_group)
        listed = f"outbox tx ls --group {quote(group)}"
        if one.state == "EXHAUSTED":
            yield FailureCause(
                "exhausted",
                f"producer group {group}",
                "checks or age are used up: left to an operator",
                one.messages,
                age=one.oldest,
                commands=(f"{listed} --state EXHAUSTED",),
                path=f"{path}&state=EXHAUSTED",
            )
        elif one.state == "UNKNOWN" and one.overdue:
            yield FailureCause(
                "undecided",
                f"producer group {group}",
                "due to be asked about, and no checker comes to them",
                one.overdue,
                age=one.oldest,
                commands=("outbox checker run", f"{listed} --overdue"),
                path=f"{path}&overdue=yes",
            )
