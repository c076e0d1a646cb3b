"""Tells a half message's life in order of time, and what happens next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbox.checking.group_settings import GRACE
from outbox_relay.formatting import cell, printable, seconds
from outbox_relay.operations import group_callbacks
from outbox_relay.operations.half_message_life import HalfLife
from outbox_relay.operations.messages import Row

LEFT = {
    "UNKNOWN": "undecided",
    "EXHAUSTED": "left to an operator",
    "COMMITTED": "decided: publish",
    "ROLLED_BACK": "decided: never publish",
    "PUBLISHED": "published",
    "CANCELLED": "cancelled before delivery",
    "DEAD": "committed, and cannot be published",
    "SKIPPED": "committed, and given up by an operator",
}


@dataclass(frozen=True)
class Entry:
    """Something that happened, and when."""

    at: datetime
    text: str


@dataclass(frozen=True)
class Next:
    """Something that will happen or is wrong; `at` where the time is known, `alarm` where somebody must act."""

    what: str
    text: str
    at: datetime | None = None
    alarm: bool = False


def past(told: HalfLife) -> list[Entry]:
    """What happened, in order of time."""
    half, life = told.half, told.life
    entries = [Entry(event["happened_at"], _event(event, half)) for event in _numbered(life.events)]
    for number, one in enumerate(life.publications):
        again = " again" if number else ""
        entries.append(
            Entry(
                one["published_at"],
                f"published{again} to {half['topic']}, partition {one['partition']}, offset {one['offset']}",
            )
        )
    return sorted(entries, key=lambda entry: entry.at)


def _numbered(events: list[Row]) -> list[Row]:
    """The checks of an audit, numbered."""
    number = 0
    numbered = []
    for event in events:
        number += event["kind"] == "check"
        numbered.append({**event, "number": number})
    return numbered


def _event(event: Row, half: Row) -> str:
    actor = printable(event["actor"])
    reason = "" if event["reason"] is None else f": {printable(event['reason'])}"
    if event["kind"] == "check":
        return f"check {event['number']} by {actor} answered {event['answer'] or 'nothing'}{reason}"
    if event["from_state"] is None:
        return f"born UNKNOWN, a half message of group {half['producer_group']!r}, by {actor}{reason}"
    if event["to_state"] == "EXHAUSTED":
        return f"EXHAUSTED, left to an operator, by {actor}{reason}"
    return f"decided {event['to_state']} by {actor}{reason}"


def future(told: HalfLife) -> list[Next]:
    """What happens next, what may hold it up, and what an operator can do."""
    status = told.life.message["status"]
    match status:
        case "UNKNOWN":
            return _undecided(told)
        case "EXHAUSTED":
            return [*_locked(told), _left_to_operator(told)]
        case "COMMITTED":
            return [_unpublished(told)]
        case "DEAD":
            return [
                Next(
                    "dead",
                    f"it is set aside. Publish it after all, or give it up:\noutbox message retry {told.half['id']} "
                    f"--reason TEXT\noutbox message skip {told.half['id']} --reason TEXT",
                    None,
                    True,
                )
            ]
        case _:
            return []


def _undecided(told: HalfLife) -> list[Next]:
    half, settings = told.half, told.group.settings
    steps = [*_locked(told), *_alarms(told)]
    exhausted = "becomes EXHAUSTED, left to an operator"
    policy = "is rolled back" if settings.policy == "ROLLBACK" else exhausted
    who = group_callbacks.who(told.group, half["checker"])
    asked = half["checks"] or 0
    if half["not_asked"] is not None and not steps:
        steps.append(Next("not_asked", f"was not asked at its last turn: {printable(half['not_asked'])}"))
    if asked >= settings.max_checks:
        text = f"its {settings.max_checks} checks are used up: it {policy} as soon as a checker looks at it"
        steps.append(Next("policy", text, half["due_at"]))
    elif half["being_asked_by"] is not None:
        by = printable(half["being_asked_by"])
        text = f"check {asked + 1} of {settings.max_checks} is being asked at this moment by {by}"
        steps.append(Next("asking", text, half["due_at"]))
    elif told.overdue:
        late = seconds((told.now - half["due_at"]).total_seconds())
        text = (
            f"check {asked + 1} of {settings.max_checks} is overdue by {late} (since {cell(half['due_at'])}): "
            f"it is up to {who}; none has come to it"
        )
        steps.append(Next("overdue", text, half["due_at"], alarm=True))
    else:
        wait = (half["due_at"] - told.now).total_seconds()
        when = f"in {seconds(wait)}" if wait > 0 else "now"
        text = (
            f"will be asked {'again ' if asked else ''}at {cell(half['due_at'])} ({when}), check {asked + 1} of "
            f"{settings.max_checks}, by {who}"
        )
        steps.append(Next("check", text, half["due_at"]))
    if half["expires_at"] > told.now:
        steps.append(
            Next(
                "policy",
                f"if nobody decides, it {policy} after check {settings.max_checks}, "
                f"at {cell(half['expires_at'])} at the latest",
                half["expires_at"],
            )
        )
    elif asked < settings.max_checks:
        text = (
            f"its time is used up since {cell(half['expires_at'])}: it is asked about once more, and {policy} "
            f"when the answer is UNKNOWN; if nobody answers for {GRACE / 60:g} min, it {exhausted}"
        )
        steps.append(Next("policy", text, half["expires_at"]))
    return steps


def _locked(told: HalfLife) -> list[Next]:
    if told.locker is None:
        return []
    meanwhile = (
        "it is not asked about, and no check is used up"
        if told.half["state"] == "UNKNOWN"
        else "nobody else decides it"
    )
    return [
        Next(
            "locked",
            f"is locked by {told.locker.describe()}: while that runs {meanwhile}",
            told.locker.xact_start or told.locker.prepared,
        )
    ]


def _alarms(told: HalfLife) -> list[Next]:
    lines = []
    for alarm in told.alarms:
        if alarm.kind == "exhausted":
            continue
        # The alarm is the group's, and may be about another checker than this half message's.
        unanswered = told.half["not_asked"] is not None or told.half["checker"] is None
        what = {
            "no_checker": f"nobody answers for {_checker(told.half)}"
            if unanswered
            else f"group {told.group.name!r} lacks a checker",
            "failing": f"checks of group {told.group.name!r} fail",
            "silent": f"nobody answers for group {told.group.name!r}",
            "flood": f"group {told.group.name!r} has too many undecided half messages: it is asked less often",
        }.get(alarm.kind, alarm.kind)
        lines.append(
            Next(
                f"alarm:{alarm.kind}",
                f"{what}: alarm since {cell(alarm.since)}: {printable(alarm.detail)}",
                alarm.since,
                alarm=True,
            )
        )
    return lines


def _checker(half: Row) -> str:
    return f"group {half['producer_group']!r}" if half["checker"] is None else f"checker {half['checker']!r}"


def _left_to_operator(told: HalfLife) -> Next:
    number = told.half["id"]
    return Next(
        "operator",
        f"nobody is asked any more; find out what became of it and decide:\n"
        f"outbox tx commit {number} --reason TEXT\noutbox tx rollback {number} --reason TEXT",
        None,
        alarm=True,
    )


def _unpublished(told: HalfLife) -> Next:
    message = told.life.message
    if message["waiting"] == "delayed":
        return Next(
            "delayed",
            f"is published at {cell(message['due_at'])}; until then: outbox message cancel {told.half['id']} "
            "--reason TEXT",
            message["due_at"],
        )
    if message["waiting"] is not None:
        return Next("waiting", f"is not published now: {message['waiting']}; see: outbox status")
    stopped = told.life.stopped
    if stopped is not None:
        lines = [stopped.hold_up(message["message_id"]), *stopped.repair()]
        return Next("stopped", "\n".join(lines), stopped.stopped_at, alarm=True)
    return Next("publish", "is published as soon as the relay gets to it; see: outbox status")


def document(told: HalfLife) -> dict[str, Any]:
    """The story for machines."""
    return {
        "past": [{"at": entry.at, "text": entry.text} for entry in past(told)],
        "next": [
            {"what": step.what, "at": step.at, "alarm": step.alarm, "text": step.text}
            for step in future(told)
        ],
    }
