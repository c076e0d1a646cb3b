"""Shows producer groups: the registry, or one group with its alarms and what of it is undecided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.operations import group_callbacks
from outbox_relay.operations.groups import Alarm, HalfMessageCounts, RegisteredGroup
from outbox_relay.text import durations, formatting
from outbox_relay.text.masking import mask_url


def document(group: RegisteredGroup, alarms: Sequence[Alarm], counts: HalfMessageCounts) -> dict[str, Any]:
    """One group for machines; durations in seconds."""
    shown = {
        (f"{name}_seconds" if isinstance(value, timedelta) else name): (
            value.total_seconds() if isinstance(value, timedelta) else value
        )
        for name, value in group.settings._asdict().items()
    }
    shown |= {"callback": group.callback, "role": group.role, "registered_at": group.registered_at}
    if group.callback is not None and "url" in group.callback:
        shown["callback"] = {
            **group.callback,
            "url": mask_url(str(group.callback["url"])),
        }
    return {
        **shown,
        "registered": group.registered,
        "undecided": counts.undecided,
        "overdue": counts.overdue,
        "exhausted": counts.exhausted,
        "oldest_age_seconds": counts.oldest,
        "alarms": [
            {"kind": one.kind, "detail": one.detail, "since": one.since, "seen_at": one.seen_at}
            for one in alarms
        ],
    }


def show_list(
    groups: Sequence[RegisteredGroup], alarms: Sequence[Alarm], counts: Mapping[str, HalfMessageCounts]
) -> None:
    """Print the registry as a table, and alarms below it."""
    if not groups:
        click.echo(
            "no producer group is registered, and nothing is undecided; register one: outbox group set NAME"
        )
        return
    wide = output.is_wide()
    columns = ["group", "type", "undecided", "overdue", "EXHAUSTED", "alarms"]
    if wide:
        columns[2:2] = ["policy", "after", "every", "checks", "age", "asked"]
    rows = []
    for group in groups:
        count = counts.get(group.name, HalfMessageCounts(group.name))
        kinds = ", ".join(one.kind for one in alarms if one.producer_group == group.name)
        cells: list[Any] = [
            group.name,
            group.settings.message_type if group.registered else "(defaults)",
            formatting.count(count.undecided),
            formatting.count(count.overdue),
            formatting.count(count.exhausted),
            kinds or None,
        ]
        if wide:
            cells[2:2] = [
                group.settings.policy,
                durations.short(group.settings.check_after),
                f"{durations.short(group.settings.check_interval)}…{durations.short(group.settings.max_check_interval)}",
                group.settings.max_checks,
                durations.short(group.settings.max_age),
                group_callbacks.brief(group.callback),
            ]
        rows.append(cells)
    output.table(
        columns,
        rows,
        right=("undecided", "overdue", "EXHAUSTED", "checks"),
        keep=("group", "undecided", "overdue", "EXHAUSTED"),
    )
    show_alarms(alarms)


def show_alarms(alarms: Sequence[Alarm]) -> None:
    """Print what checkers report about groups."""
    for one in alarms:
        click.secho(
            f"alarm {one.kind}, group {formatting.printable(one.producer_group)}, since {formatting.cell(one.since)} "
            f"({formatting.seconds(one.age)}): {formatting.printable(one.detail)}",
            fg="red",
        )


def one(group: RegisteredGroup, alarms: Sequence[Alarm], counts: HalfMessageCounts, said: str = "") -> None:
    """Print one group."""
    if said:
        click.echo(said)
    callback = group.callback or {}
    output.pairs(
        [
            ("group", group.name if group.registered else f"{group.name} (not registered: defaults)"),
            ("type", group.settings.message_type),
            ("check after", durations.short(group.settings.check_after)),
            ("check interval", f"{durations.short(group.settings.check_interval)}, doubling"),
            ("max check interval", durations.short(group.settings.max_check_interval)),
            ("check timeout", durations.short(group.settings.check_timeout)),
            ("max checks", group.settings.max_checks),
            ("max age", durations.short(group.settings.max_age)),
            ("policy", group.settings.policy),
            ("workers", group.settings.workers),
            (
                "asked",
                group_callbacks.who(group)
                if callback.get("kind") != "sql"
                else "`outbox checker run`, by SQL",
            ),
            ("query", callback.get("query")),
            ("database", f"of ${callback['dsn_env']}" if callback.get("dsn_env") else None),
            ("callback role", callback.get("role")),
            ("decided by", None if group.role is None else f"members of {group.role}, checkers, operators"),
            ("registered", group.registered_at),
            (
                "undecided",
                f"{formatting.count(counts.undecided)}, {formatting.count(counts.overdue)} of them overdue",
            ),
            ("EXHAUSTED", formatting.count(counts.exhausted)),
            ("oldest", None if counts.oldest is None else formatting.seconds(counts.oldest)),
        ]
    )
    show_alarms(alarms)
    if counts.exhausted:
        click.echo(f"decide what is EXHAUSTED: outbox tx ls --state EXHAUSTED --group {group.name}")
