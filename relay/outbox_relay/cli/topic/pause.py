"""`outbox topic pause`, `on-growth` and `resume`: publish nothing of a topic for a while."""

from __future__ import annotations

from dataclasses import asdict

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import Command, dsn_option, json_option, timeout_option
from outbox_relay.cli.topic import following
from outbox_relay.cli.topic.options import topic_argument
from outbox_relay.cli.tx.options import reason_option
from outbox_relay.cli.types import Choice
from outbox_relay.database import connections, schema
from outbox_relay.operations import topic_pauses
from outbox_relay.operations.decide import checked_reason
from outbox_relay.text import formatting


@click.command("pause", cls=Command)
@topic_argument
@reason_option
@timeout_option(
    "How long to wait for the relays; after it they pause all the same, and the command can be repeated."
)
@dsn_option
@json_option
def pause(*, name: str, reason: str, timeout: float, dsn: str, as_json: bool) -> None:
    """Publish nothing more of a topic, and wait until Kafka has acknowledged what was under way.

    Messages of other topics flow. Those of this one wait, in order, one row of outbox.waiting each, until:
    outbox topic resume. Applications go on sending. The relays keep the pause when they are restarted.

    Repeating the command is safe: it waits for the relays that have not paused yet.

    \b
    Examples:
      outbox topic pause orders --reason "consumers are migrated"
      outbox topic resume orders
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        topic, changed = topic_pauses.pause(conn, name, checked_reason(reason))
        if not changed and not as_json:
            since = (
                f"since {formatting.cell(topic.paused_at)}, by {formatting.printable(topic.paused_by or '')}"
            )
            click.echo(
                f"topic {name} is paused already, {since}: {formatting.printable(topic.pause_reason or '')}",
                err=True,
            )
        again = f"outbox topic pause {name} --reason TEXT"
        relays = following.follow(conn, name, timeout, "paused", again, is_quiet=as_json)
    if as_json:
        facts = {
            "topic": name,
            "changed": changed,
            "paused_at": topic.paused_at,
            "paused_by": topic.paused_by,
        }
        output.emit_json({**facts, "reason": topic.pause_reason, "relays": [asdict(one) for one in relays]})
        return
    click.echo(f"topic {name} is paused; go on with: outbox topic resume {name}")


@click.command("resume", cls=Command)
@topic_argument
@dsn_option
@json_option
def resume(*, name: str, dsn: str, as_json: bool) -> None:
    """Let a paused topic go on: what waits is published in order within seconds, before newer messages.

    \b
    Example:
      outbox topic resume orders
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        changed = topic_pauses.resume(conn, name)
        waiting = topic_pauses.waiting(conn, name)
    if as_json:
        output.emit_json({"topic": name, "changed": changed, "waiting": waiting})
        return
    click.echo(f"topic {name} goes on" if changed else f"topic {name} is not paused")
    if waiting:
        click.echo(
            f"{formatting.many(waiting, 'message')} of it wait, and are published in order once Kafka takes them"
        )


@click.command("on-growth", cls=Command)
@topic_argument
@click.argument("action", type=Choice(("pause", "alarm")))
@dsn_option
@json_option
def on_growth(*, name: str, action: str, dsn: str, as_json: bool) -> None:
    """Choose what happens when Kafka has more partitions of a topic than are pinned.

    alarm, the default: its keys stay on the pinned partitions, and an alarm is raised. pause: the alarm is raised, and
    nothing more of the topic is published until outbox topic repartition takes the new partitions into use, or outbox
    topic resume lets it go on as it is and takes the option back.

    \b
    Example:
      outbox topic on-growth orders pause
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        changed = topic_pauses.pause_when_grown(conn, name, pauses=action == "pause")
    if as_json:
        output.emit_json({"topic": name, "on_growth": action, "changed": changed})
        return
    click.echo(f"topic {name}: {action} when it has grown" + ("" if changed else ", as it was"))
