"""`outbox lane`: which relay has each lane, which are stopped, and trying them again now."""

from __future__ import annotations

from dataclasses import asdict

import click

from outbox.partitioning.lanes import LANES
from outbox_relay.cli import output
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import parked_keys, stopped_lanes
from outbox_relay.operations.parked_keys import ParkedKey
from outbox_relay.text import formatting
from outbox_relay.text.errors import OperatorError


@click.group(cls=CommandGroup)
def lane() -> None:
    """Which lanes are stopped, at what; try them again now.

    All messages of one order key share one of eight lanes. A lane stops before a message that cannot be published; the
    others go on.
    """


@lane.command("ls")
@dsn_option
@json_option
def ls(dsn: str, as_json: bool) -> None:
    """List the lanes with the relay of each; for a stopped one, and for each parked key, the message and what to do."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        lanes = stopped_lanes.everything(conn)
        keys = parked_keys.everything(conn)
    if as_json:
        output.emit_json(
            [
                {
                    **asdict(one),
                    "repair": one.repair(),
                    "parked_keys": [key.document() for key in keys if key.lane == one.lane],
                }
                for one in lanes
            ]
        )
        return
    for one in lanes:
        if one.is_stopped:
            click.secho(f"lane {one.lane}: {formatting.printable(one.error or '')}", fg="red")
            for line in one.repair():
                click.echo(f"  {line}")
    for key in keys:
        _parked_key(key)
    if keys or any(one.is_stopped for one in lanes):
        click.echo()
    output.table(
        ["lane", "condition", "relay", "since", "message", "topic", "error"],
        [
            (
                one.lane,
                one.condition,
                one.owner,
                one.stopped_at,
                one.id if one.id is not None else one.message_id,
                one.topic,
                (one.error or "").partition(":")[0] or None,
            )
            for one in lanes
        ],
        right=("lane",),
        keep=("lane", "condition", "relay", "topic", "error"),
    )


def _parked_key(key: ParkedKey) -> None:
    held = formatting.many(key.held, "message")
    at = "" if key.is_topic else f" at message {key.id}"
    click.secho(
        f"lane {key.lane}, {key.place}: parked since {formatting.cell(key.since)}{at}, {held} held: "
        f"{formatting.printable(key.error)}",
        fg="red",
    )
    for line in key.repair():
        click.echo(f"  {line}")


@lane.command()
@click.argument("number", metavar="[LANE]", type=click.IntRange(0, LANES - 1), required=False)
@click.option("--all", "everything", is_flag=True, help="Every lane that is stopped.")
@dsn_option
@json_option
def retry(*, number: int | None, everything: bool, dsn: str, as_json: bool) -> None:
    """Ask the relay to try a stopped lane again now, not at its next turn of up to a minute.

    \b
      outbox lane retry 4
      outbox lane retry --all
    """
    if (number is None) is not everything:
        raise click.UsageError("name one lane, 0 to 7, or give --all")
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        lanes = stopped_lanes.everything(conn)
        if number is not None and not lanes[number].is_stopped:
            raise OperatorError(f"lane {number} is not stopped; see: outbox lane ls")
        asked = stopped_lanes.request_retry(conn, range(LANES) if number is None else [number])
    if as_json:
        output.emit_json({"requested": asked})
        return
    if not asked:
        click.echo("no lane is stopped")
        return
    click.echo(
        f"lane{'s' if len(asked) > 1 else ''} {', '.join(map(str, asked))} tried again within about a second"
    )
    if all(one.owner is None for one in lanes):
        click.echo("no relay runs; it tries all lanes when it starts: outbox relay run", err=True)
