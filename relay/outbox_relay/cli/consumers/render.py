"""Shows consumer groups to people."""

from __future__ import annotations

from collections.abc import Sequence

import click

from outbox_relay.cli import output
from outbox_relay.cli.dlq import render
from outbox_relay.operations.consumer_reset import Reset
from outbox_relay.operations.messages import Row
from outbox_relay.text import formatting

HOW_TO_GET_LAG = "lag is Kafka's: give --bootstrap-servers, or set OUTBOX_BOOTSTRAP_SERVERS"
COLUMNS = {
    "group": "consumer_group",
    "topic": "topic",
    "partitions": "partitions",
    "members": "members",
    "idle": "idle_members",
    "due": "retries_due",
    "later": "retries_later",
    "waiting": "waiting",
    "held": "held_keys",
    "full": "full_keys",
    "dead": "dead",
}


def groups(found: Sequence[Row], *, has_lag: bool) -> None:
    """Print consumer groups, a line for each topic; `has_lag`: Kafka was asked."""
    if not found:
        click.echo("no consumer group")
        return
    bound = ["role"] if any(row["role"] for row in found) else []
    columns = [
        *list(COLUMNS)[:5],
        "kind",
        *list(COLUMNS)[5:],
        *(("oldest", "lag") if has_lag else ()),
        *bound,
    ]
    rows = []
    for row in found:
        cells = {column: row[name] for column, name in COLUMNS.items()} | {
            "kind": f"{kind(row)}, paused" if row["is_paused"] else kind(row),
            "role": row["role"],
        }
        if has_lag:
            cells |= {"oldest": formatting.seconds(row["oldest_age_seconds"]), "lag": row["lag"]}
        rows.append([cells[column] for column in columns])
    output.table(
        columns,
        rows,
        right=set(columns) - {"group", "topic", "kind", "role"},
        keep=("group", "topic", "held", "dead", "oldest", "lag"),
    )
    if not has_lag:
        click.echo(HOW_TO_GET_LAG, err=True)


def group(
    found: Row,
    members: Sequence[Row],
    pauses: Sequence[Row],
    positions: Sequence[Row],
    retrying: Sequence[Row],
    *,
    has_lag: bool,
) -> None:
    """Print one group with its members and positions, and what it tries again; `has_lag`: Kafka was asked."""
    tags = ", ".join(f"{topic}: {tags}" for topic, tags in sorted(found["subscription"].items()))
    rows = [
        ("group", found["consumer_group"]),
        ("kind", kind(found)),
        ("subscription", tags),
        ("role", found["role"] or "none: every consumer of this database"),
        ("registered", found["registered_at"]),
    ]
    for pause in pauses:
        since = f"since {formatting.cell(pause['paused_at'])}, by {formatting.printable(pause['paused_by'])}"
        what = "all topics" if pause["topic"] is None else f"topic {pause['topic']}"
        rows.append(("paused", f"{what}, {since}: {formatting.printable(pause['reason'])}"))
    for member in members:
        condition = "runs" if member["runs"] else "does not run"
        since = "" if member["idle_since"] is None else f" since {formatting.cell(member['idle_since'])}"
        reads = f"{formatting.many(member['partitions'], 'partition')}{since}"
        full = [formatting.many(member["full_keys"], "full key")] if member["full_keys"] else []
        seen = f"seen {formatting.cell(member['seen_at'])}"
        rows.append(("member", ", ".join((member["member"], condition, reads, *full, seen))))
    output.pairs(rows)
    columns = ["topic", "partition", "position", *(("end", "lag") if has_lag else ()), "moved_at"]
    click.echo()
    output.table(
        [column.replace("_at", "") for column in columns],
        [[row[column] for column in columns] for row in positions],
        right={"partition", "position", "end", "lag"},
        keep=("topic", "partition", "position", "lag"),
    )
    if retrying:
        click.echo()
        click.echo(f"tried again: outbox dlq ls --retrying --group {found['consumer_group']}")
        render.messages(retrying)
    if not has_lag:
        click.echo(HOW_TO_GET_LAG, err=True)


def reset(planned: Reset) -> None:
    """Print what a reset changes."""
    rows = []
    for move in planned.moves:
        change = None if move.begin is None else move.to - move.begin
        meaning = (
            "unchanged" if change == 0 else "read again" if change is not None and change < 0 else "skipped"
        )
        rows.append((planned.topic, move.partition, move.begin, move.to, abs(change or 0), meaning))
    output.table(
        ["topic", "partition", "from", "to", "offsets", "are"],
        rows,
        right={"partition", "from", "to", "offsets"},
    )


def deleted(found: Row) -> str:
    """Name what is deleted with a group."""
    return ", ".join(
        (
            "its inbox",
            formatting.many(found["positions"], "position"),
            formatting.many(found["parked"], "parked message"),
            formatting.many(found["dead"], "dead letter"),
        )
    )


def kind(row: Row) -> str:
    """Name the kind of a group's listener."""
    return "orderly" if row["orderly"] else "concurrent"
