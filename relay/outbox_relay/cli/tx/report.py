"""What the commands of `outbox tx` report of one half message that they have worked on."""

from __future__ import annotations

import click

from outbox_relay.database import connections
from outbox_relay.operations import group_callbacks, groups
from outbox_relay.operations.decide import DecisionResult
from outbox_relay.operations.messages import Row
from outbox_relay.text import formatting


def decided(outcome: DecisionResult) -> None:
    """Print what became of one decision; to standard error when it failed."""
    half = outcome.half
    text = f"half message {half['id']} {outcome.text}"
    if outcome.result == "decided" and outcome.state == "COMMITTED":
        later = half["deliver_at"]
        text += "; the relay publishes it" + ("" if later is None else f" at {formatting.cell(later)}")
    click.secho(text, err=outcome.failed, fg="red" if outcome.failed else None)


def due(conn: connections.Connection, half: Row) -> str:
    """Return who asks about a half message that was made due, or why it cannot be asked about."""
    if half["state"] != "UNKNOWN":
        return _final(half)
    if half["being_asked_by"] is not None:
        return f"is asked about at this moment by {formatting.printable(half['being_asked_by'])}"
    group = groups.find(conn, half["producer_group"])
    text = f"is due: asked next by {group_callbacks.who(group, half['checker'])}"
    for alarm in groups.alarms(conn, group.name):
        told = formatting.printable(alarm.detail)
        text += f"\n  alarm {alarm.kind} since {formatting.cell(alarm.since)}: {told}"
    return text


def _final(half: Row) -> str:
    """Why a half message cannot be asked about."""
    number = half["id"]
    if half["state"] == "EXHAUSTED":
        return (
            "is EXHAUSTED: its checks or its age are used up, and no check follows; decide it: "
            f"outbox tx commit {number} --reason TEXT, outbox tx rollback {number} --reason TEXT"
        )
    when = "" if half["decided_at"] is None else f" since {formatting.cell(half['decided_at'])}"
    return f"is {half['state']}{when}: there is nothing to ask; see: outbox tx explain {number}"
