"""Shows in a status what is undecided per producer group, and what checkers raise alarms about."""

from __future__ import annotations

from collections.abc import Sequence

import click

from outbox_relay import output
from outbox_relay.groups import rendering
from outbox_relay.groups.registry import Alarm
from outbox_relay.inspect.status import Unsettled


def show(unsettled: Sequence[Unsettled], most: int) -> None:
    """Print a table of groups with half messages to decide: EXHAUSTED first, then overdue, then many."""
    groups: dict[str, dict[str, Unsettled]] = {}
    for one in unsettled:
        if one.producer_group is not None and one.state != "DEAD":
            groups.setdefault(one.producer_group, {})[one.state] = one
    if not groups:
        return
    rows = []
    for name, states in groups.items():
        undecided, exhausted = states.get("UNKNOWN"), states.get("EXHAUSTED")
        rows.append(
            (
                exhausted.messages if exhausted else 0,
                undecided.overdue if undecided else 0,
                undecided.messages if undecided else 0,
                name,
                undecided.oldest if undecided else None,
            )
        )
    rows.sort(key=lambda row: (-row[0], -row[1], -row[2], row[3]))
    output.table(
        ["group", "undecided", "oldest", "overdue", "EXHAUSTED"],
        [
            (
                name,
                output.count(undecided),
                output.seconds(oldest),
                output.count(overdue),
                output.count(exhausted),
            )
            for exhausted, overdue, undecided, name, oldest in rows[:most]
        ],
        right=("undecided", "oldest", "overdue", "EXHAUSTED"),
    )
    if len(rows) > most:
        click.echo(f"… and {len(rows) - most} more groups (--json has all)")
    click.echo()


def alarms(unsettled: Sequence[Unsettled], raised: Sequence[Alarm], most: int) -> None:
    """Print what an operator has to do about half messages."""
    rendering.show_alarms(raised[:most])
    if len(raised) > most:
        click.secho(f"… and {len(raised) - most} more alarms: outbox group ls", fg="red")
    if any(one.state == "EXHAUSTED" for one in unsettled):
        click.secho("EXHAUSTED half messages are left to you: outbox tx ls --state EXHAUSTED", fg="red")
    if any(one.overdue for one in unsettled) and not raised:
        click.secho("no checker comes to what is overdue: outbox tx ls --overdue", fg="yellow")
