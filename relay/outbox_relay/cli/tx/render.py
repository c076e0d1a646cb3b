"""Shows half messages: a page of them, one with all its facts, or one's whole life."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.cli.message import render as message_render
from outbox_relay.operations import group_callbacks, half_message_story
from outbox_relay.operations.half_message_life import HalfMessageLife
from outbox_relay.operations.half_messages import OVERDUE_S
from outbox_relay.operations.messages import Row
from outbox_relay.text import formatting

LONGEST_CELL = 28


def half_document(row: Row, now: Any) -> dict[str, Any]:
    """One half message of a list, for machines; ages in seconds."""
    due = row["due_at"]
    document = dict(row)
    document["key"] = formatting.bytes_for_json(row["key"])
    document["message_id"] = str(row["message_id"])
    document["age_seconds"] = round(document.pop("age"), 3)
    document["overdue"] = due is not None and (now - due).total_seconds() > OVERDUE_S
    return document


def show_list(rows: Sequence[Row], now: Any) -> None:
    """Print half messages as a table, the oldest first; a wide terminal or a pipe gets all columns."""
    wide = output.is_wide()
    columns = ["id", "state", "group", "age", "checks", "next check", "last answer"]
    if wide:
        columns[3:3] = ["topic", "checker", "business"]
    output.table(
        columns,
        [_cells(row, now, wide=wide) for row in rows],
        right=("id", "age", "checks"),
        keep=("id", "state", "group"),
    )


def _cells(row: Row, now: Any, *, wide: bool) -> list[Any]:
    checks = row["checks"] or 0
    # One unit of time is enough to see what is old.
    units = 2 if wide else 1
    age = formatting.seconds(row["age"], units=units)
    cells: list[Any] = [row["id"], row["state"], _short(row["producer_group"]), age]
    if wide:
        cells[3:3] = [row["topic"], row["checker"], _business(row)]
    cells += [
        f"{checks} of {row['max_checks']}" if row["state"] == "UNKNOWN" else checks,
        _next_check(row, now, units),
        _answer(row) if wide else row["last_answer"],
    ]
    return cells


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _business(row: Row) -> str | None:
    return " ".join(filter(None, (row["biz_type"], row["biz_id"]))) or None


def _answer(row: Row) -> str | None:
    if row["last_answer"] is None:
        return None
    return f"{row['last_answer']}: {row['last_remark']}" if row["last_remark"] else str(row["last_answer"])


def _next_check(row: Row, now: Any, units: int = 2) -> str:
    if row["state"] != "UNKNOWN":
        return "operator decides"
    if row["being_asked_by"] is not None:
        return "being asked"
    late = (now - row["due_at"]).total_seconds()
    if late > OVERDUE_S:
        return f"overdue {formatting.seconds(late, units=units)}"
    return "now" if late >= 0 else f"in {formatting.seconds(-late, units=units)}"


def show_one(known: HalfMessageLife) -> None:
    """Print the facts of one half message."""
    half, message, group = known.half, known.life.message, known.group
    undecided = half["state"] == "UNKNOWN"
    output.pairs(
        [
            ("message id", half["message_id"]),
            ("id", half["id"]),
            ("status", f"{message['status']}, {half_message_story.LEFT[message['status']]}"),
            ("remark", half["remark"]),
            (
                "producer group",
                group.name if group.registered else f"{group.name} (not registered: defaults)",
            ),
            ("type", group.settings.message_type),
            ("checker", half["checker"]),
            ("business", _business(half)),
            ("transaction id", half["transaction_id"]),
            ("topic", half["topic"]),
            ("partition", message["partition"]),
            ("offset", message["offset"]),
            ("key", half["key"]),
            ("tags", half["tags"] or None),
            ("index keys", half["index_keys"] or None),
            ("born", f"{formatting.cell(half['born_at'])}, {formatting.seconds(half['age'])} ago"),
            ("deliver at", half["deliver_at"]),
            ("decided", half["decided_at"]),
            ("checks", f"{half['checks'] or 0} of {half['max_checks']}" if undecided else half["checks"]),
            ("last answer", _answer(half)),
            ("answered", half["answered_at"]),
            ("answered by", half["answered_by"]),
            ("not asked", half["not_asked"]),
            ("being asked", None if half["being_asked_by"] is None else f"by {half['being_asked_by']}"),
            (
                "next check",
                f"{formatting.cell(half['due_at'])}, {_next_check(half, known.now)}" if undecided else None,
            ),
            ("is asked", group_callbacks.who(group, half["checker"]) if undecided else None),
            ("schedule", group_callbacks.schedule(group) if undecided else None),
            ("policy", f"{half['policy']}, by {formatting.cell(half['expires_at'])}" if undecided else None),
            ("locked", None if known.locker is None else f"by {known.locker.describe()}"),
            *(
                (f"ALARM {alarm.kind}", f"since {formatting.cell(alarm.since)}: {alarm.detail}")
                for alarm in known.alarms
            ),
        ]
    )


def explain(known: HalfMessageLife) -> None:
    """Print the life of one half message in order of time, and what happens next."""
    half = known.half
    status = known.life.message["status"]
    business = "" if _business(half) is None else f" about {formatting.printable(_business(half) or '')}"
    _line(
        "",
        f"half message {half['id']} ({half['message_id']}){business} for topic {half['topic']}: "
        f"{status}, {half_message_story.LEFT[status]}",
    )
    if not known.group.registered and status == "UNKNOWN":
        _line(
            "",
            f"group {known.group.name!r} is not registered, has the defaults: {group_callbacks.schedule(known.group)}",
        )
    elif status == "UNKNOWN":
        _line(
            "",
            f"group {known.group.name!r}: {group_callbacks.schedule(known.group)}; "
            f"policy {known.group.settings.policy}",
        )
    click.echo()
    for number, entry in enumerate(half_message_story.past(known)):
        after = (entry.at - half["born_at"]).total_seconds()
        passed = "" if number == 0 else f"+{formatting.seconds(after)}"
        _line(f"{formatting.moment(entry.at)}  {passed:>12}  ", entry.text)
    steps = half_message_story.future(known)
    if not steps:
        return
    click.echo()
    for number, step in enumerate(steps):
        label = "next  " if number == 0 else "      "
        _line(label, step.text, fg="red" if step.alarm else None)


def _line(label: str, text: str, *, fg: str | None = None) -> None:
    """Print a text beside its label; at a terminal it is broken at the right edge and kept in its column."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    paragraphs = []
    for part in text.split("\n"):
        paragraphs += textwrap.wrap(
            part,
            max(width - len(label), 30),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    for number, line in enumerate(paragraphs):
        shown = line if fg is None else click.style(line, fg=fg)
        click.echo((label if number == 0 else " " * len(label)) + shown)


def life_document(known: HalfMessageLife) -> dict[str, Any]:
    """One half message's life for machines."""
    locker = known.locker
    return {
        **half_document(known.half, known.now),
        "status": known.life.message["status"],
        "partition": known.life.message["partition"],
        "offset": known.life.message["offset"],
        "published_at": known.life.message["published_at"],
        "waiting": known.life.message["waiting"],
        "registered": known.group.registered,
        "asked": group_callbacks.who(known.group, known.half["checker"]),
        "locked_by": None
        if locker is None
        else {
            "pid": locker.pid,
            "since": locker.xact_start or locker.prepared,
            "application_name": locker.application_name,
            "user": locker.usename,
            "address": locker.address,
            "prepared_transaction": locker.gid,
        },
        "alarms": [
            {"kind": one.kind, "detail": one.detail, "since": one.since, "seen_at": one.seen_at}
            for one in known.alarms
        ],
        "events": known.life.events,
        "publications": known.life.publications,
        "schedule": durations_of(known),
        **half_message_story.document(known),
        "message": message_render.as_document(known.life.message),
    }


def durations_of(known: HalfMessageLife) -> dict[str, Any]:
    """The group's schedule, in seconds."""
    group = known.group
    return {
        "check_after_seconds": group.settings.check_after.total_seconds(),
        "check_interval_seconds": group.settings.check_interval.total_seconds(),
        "max_check_interval_seconds": group.settings.max_check_interval.total_seconds(),
        "max_checks": group.settings.max_checks,
        "max_age_seconds": group.settings.max_age.total_seconds(),
        "policy": group.settings.policy,
    }
