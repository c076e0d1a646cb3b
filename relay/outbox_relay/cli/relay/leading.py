"""`outbox relay ls` and `outbox relay drain`: which relay leads, and how one gives its lanes up."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import Command, dsn_option, json_option, timeout_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import relays
from outbox_relay.operations.relays import Drain, LeasedRelay
from outbox_relay.text import formatting
from outbox_relay.text.errors import OperatorError

ASK_EVERY_S = 0.1


@click.command("ls", cls=Command)
@dsn_option
@json_option
def ls(dsn: str, as_json: bool) -> None:
    """List the relays of this database: which leads and which stand by, and how long their leases last."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = relays.everything(conn)
    if as_json:
        output.emit_json([_facts(relay) for relay in found])
        return
    if not found:
        click.echo("no relay runs; start one: outbox relay run")
        return
    output.table(
        ["relay", "condition", "shard", "lanes", "epoch", "version", "joined", "lease ends in"],
        [
            (
                relay.owner,
                relay.condition,
                relay.shard,
                relay.lanes,
                relay.epoch,
                relay.version,
                relay.joined_at,
                formatting.seconds(relay.lease_seconds) if relay.lease_seconds > 0 else "ended",
            )
            for relay in found
        ],
        right=("epoch", "version"),
        keep=("relay", "condition", "shard", "lanes"),
    )


def _facts(relay: LeasedRelay) -> dict[str, object]:
    return {**asdict(relay), "condition": relay.condition}


@click.command("drain", cls=Command)
@click.argument("owner", metavar="[RELAY]", required=False)
@click.option("--all", "everyone", is_flag=True, help="Every relay of this database.")
@click.option("--undo", is_flag=True, help="Let them lead again, or stand by.")
@click.option("--no-wait", is_flag=True, help="Ask, and do not wait until the lanes are given back.")
@timeout_option("How long to wait; after it the relays go on draining.")
@dsn_option
@json_option
def drain(
    *, owner: str | None, everyone: bool, undo: bool, no_wait: bool, timeout: float, dsn: str, as_json: bool
) -> None:
    """Let a relay give its lanes to a standby, without stopping it, and wait until it has.

    RELAY is a name that `outbox relay ls` lists, or its beginning HOST:PID. What is on the wire is recorded first, so
    nothing is published twice. A drained relay keeps running without lanes until --undo, or until it is stopped.

    \b
    Examples:
      outbox relay drain db7:4711
      outbox relay drain db7:4711 --undo
      outbox relay drain --all
    """
    if (owner is None) is not everyone:
        raise click.UsageError("name one relay, or give --all; they are listed by: outbox relay ls")
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        chosen = relays.choose(relays.everything(conn), owner)
        if undo:
            relays.ask(conn, [relay.epoch for relay in chosen], is_draining=False)
        else:
            asked = Drain(conn, chosen)
            if not no_wait:
                _wait(asked, timeout, is_quiet=as_json)
        names = {relay.owner for relay in chosen}
        now = relays.everything(conn)
    if as_json:
        output.emit_json([_facts(relay) for relay in now if relay.owner in names])
    else:
        alive = {relay.owner for relay in now if relay.lives}
        for name in sorted(names):
            done = _done(undo=undo, no_wait=no_wait) if name in alive else "has ended"
            click.echo(f"{formatting.printable(name)} {done}")
    if not undo and not any(relay.lives and not relay.is_draining for relay in now):
        click.echo(
            "no other relay runs, so nothing is published until one is started (outbox relay run) or: "
            "outbox relay drain --all --undo",
            err=True,
        )


def _done(*, undo: bool, no_wait: bool) -> str:
    if undo:
        return "leads again, or stands by"
    return "is asked to give its lanes back" if no_wait else "has given its lanes back"


def _wait(asked: Drain, timeout: float, *, is_quiet: bool) -> None:
    """Wait until the lanes are given back, and report on standard error when that changes."""
    until = time.monotonic() + timeout
    shown: dict[str, list[int]] = {}
    while left := asked.left():
        if time.monotonic() >= until:
            held = "; ".join(f"{name} has lanes {formatting.cell(lanes)}" for name, lanes in left.items())
            raise OperatorError(
                f"not drained within {timeout:g} s: {formatting.printable(held)}; the relays go on draining\n"
                "see who has which lanes, and what is held: outbox relay ls, outbox holds ls"
            )
        for name, lanes in left.items():
            if lanes != shown.get(name) and not is_quiet:
                click.echo(f"{formatting.printable(name)} still has lanes {formatting.cell(lanes)}", err=True)
        shown = left
        time.sleep(ASK_EVERY_S)
