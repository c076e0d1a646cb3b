"""Lists a half message's life in order of time, and what happens next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbox.checking.group_settings import GRACE
from outbox_relay.operations import group_callbacks
from outbox_relay.operations.half_message_life import HalfMessageLife
from outbox_relay.operations.messages import Row
from outbox_relay.text.formatting import cell, printable, seconds

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


def past(known: HalfMessageLife) -> list[Entry]:
    """What happened, in order of time."""
    half, life = known.half, known.life
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


def future(known: HalfMessageLife) -> list[Next]:
    """What happens next, what may hold it up, and what an operator can do."""
    message = known.life.message
    match message["status"]:
        case "UNKNOWN":
            return _undecided(known)
        case "EXHAUSTED":
            return [*_locked(known), _left_to_operator(known)]
        case "COMMITTED":
            return [_unpublished(known)]
        case "DEAD" if message["state"] == "COMMITTED":  # it fails, or its time is over
            return [_unpublished(known)]
        case "DEAD":
            return [
                Next(
                    "dead",
                    f"it is set aside. Publish it after all, or give it up:\noutbox holds release {known.half['id']} "
                    f"--reason TEXT\noutbox holds skip {known.half['id']} --reason TEXT",
                    None,
                    True,
                )
            ]
        case _:
            return []


def _undecided(known: HalfMessageLife) -> list[Next]:
    half, settings = known.half, known.group.settings
    steps = [*_locked(known), *_alarms(known)]
    exhausted = "becomes EXHAUSTED, left to an operator"
    policy = "is rolled back" if settings.policy == "ROLLBACK" else exhausted
    who = group_callbacks.who(known.group, half["checker"])
    asked = half["checks"] or 0
    if half["not_asked"] is not None and not steps:
        steps.append(Next("not_asked", f"was not asked at its last turn: {printable(half['not_asked'])}"))
    if asked >= settings.max_checks:
        text = f"its {settings.max_checks} checks are used up: it {policy} as soon as a checker finds it"
        steps.append(Next("policy", text, half["due_at"]))
    elif half["being_asked_by"] is not None:
        by = printable(half["being_asked_by"])
        text = f"check {asked + 1} of {settings.max_checks} is being asked at this moment by {by}"
        steps.append(Next("asking", text, half["due_at"]))
    elif known.overdue:
        late = seconds((known.now - half["due_at"]).total_seconds())
        text = (
            f"check {asked + 1} of {settings.max_checks} is overdue by {late} (since {cell(half['due_at'])}): "
            f"it is up to {who}; none has come to it"
        )
        steps.append(Next("overdue", text, half["due_at"], alarm=True))
    else:
        wait = (half["due_at"] - known.now).total_seconds()
        when = f"in {seconds(wait)}" if wait > 0 else "now"
        text = (
            f"will be asked {'again ' if asked else ''}at {cell(half['due_at'])} ({when}), check {asked + 1} of "
            f"{settings.max_checks}, by {who}"
        )
        steps.append(Next("check", text, half["due_at"]))
    if half["expires_at"] > known.now:
        steps.append(
            Next(
                "policy",
                f"without a decision it {policy} after check {settings.max_checks}, "
                f"at {cell(half['expires_at'])} at the latest",
                half["expires_at"],
            )
        )
    elif asked < settings.max_checks:
        text = (
            f"its time is used up since {cell(half['expires_at'])}: it is asked about once more, and {policy} "
            f"when the answer is UNKNOWN; after {GRACE / 60:g} min without a reply it {exhausted}"
        )
        steps.append(Next("policy", text, half["expires_at"]))
    return steps


def _locked(known: HalfMessageLife) -> list[Next]:
    if known.locker is None:
        return []
    meanwhile = (
        "it is not asked about, and no check is used up"
        if known.half["state"] == "UNKNOWN"
        else "no other transaction decides it"
    )
    return [
        Next(
            "locked",
            f"is locked by {known.locker.describe()}: while that runs {meanwhile}",
            known.locker.xact_start or known.locker.prepared,
        )
    ]


def _alarms(known: HalfMessageLife) -> list[Next]:
    lines = []
    for alarm in known.alarms:
        if alarm.kind in ("exhausted", "rolled_back"):  # about others
            continue
        # The alarm is the group's, and may be about another checker than this half message's.
        unanswered = known.half["not_asked"] is not None or known.half["checker"] is None
        what = {
            "no_checker": f"no listener is registered for {_checker(known.half)}"
            if unanswered
            else f"group {known.group.name!r} lacks a checker",
            "failing": f"checks of group {known.group.name!r} fail",
            "silent": f"group {known.group.name!r} does not reply",
            "flood": f"group {known.group.name!r} has too many undecided half messages: it is asked less often",
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


def _left_to_operator(known: HalfMessageLife) -> Next:
    number = known.half["id"]
    return Next(
        "operator",
        f"no check follows; find out what became of it and decide:\n"
        f"outbox tx commit {number} --reason TEXT\noutbox tx rollback {number} --reason TEXT",
        None,
        alarm=True,
    )


def _unpublished(known: HalfMessageLife) -> Next:
    message = known.life.message
    if message["waiting"] == "delayed":
        return Next(
            "delayed",
            f"is published at {cell(message['due_at'])}; until then: outbox message cancel {known.half['id']} "
            "--reason TEXT",
            message["due_at"],
        )
    hold = known.life.hold
    if hold is not None:
        return Next("held", "\n".join([hold.hold_up(message["id"]), *hold.repair()]), hold.since, alarm=True)
    if message["waiting"] == "expired":
        give_up = f"outbox holds skip {message['id']} --reason TEXT"
        return Next("expired", f"its deliver_before is over, so it is never published; give it up: {give_up}")
    if message["waiting"] is not None:
        return Next("waiting", f"is not published now: {message['waiting']}; see: outbox status")
    return Next("publish", "is published as soon as the relay gets to it; see: outbox status")


def document(known: HalfMessageLife) -> dict[str, Any]:
    """The story for machines."""
    return {
        "past": [{"at": entry.at, "text": entry.text} for entry in past(known)],
        "next": [
            {"what": step.what, "at": step.at, "alarm": step.alarm, "text": step.text}
            for step in future(known)
        ],
    }
