"""Shows in a status what is undecided per producer group."""

from __future__ import annotations

from collections.abc import Sequence

import click

from outbox_relay.cli import output
from outbox_relay.operations.status import Unsettled
from outbox_relay.text import formatting


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
                formatting.count(undecided),
                formatting.seconds(oldest),
                formatting.count(overdue),
                formatting.count(exhausted),
            )
            for exhausted, overdue, undecided, name, oldest in rows[:most]
        ],
        right=("undecided", "oldest", "overdue", "EXHAUSTED"),
    )
    if len(rows) > most:
        click.echo(f"… and {formatting.many(len(rows) - most, 'more group')} (--json has all)")
    click.echo()
