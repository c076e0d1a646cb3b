"""`outbox message dead | skip | retry`: what an operator does with a message that cannot be published."""

from __future__ import annotations

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import Command, dsn_option, json_option
from outbox_relay.cli.tx.options import reason_option, wait_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import dead_letters, filters, names
from outbox_relay.operations.decide import DecisionResult, checked_reason


def report(outcome: DecisionResult, *, as_json: bool) -> None:
    """Print what became of one message; exit with 1 when it was refused."""
    if as_json:
        output.emit_json(outcome.document())
    else:
        click.secho(
            f"message {outcome.half['id']} {outcome.text}",
            err=outcome.failed,
            fg="red" if outcome.failed else None,
        )
    if outcome.failed:
        raise click.exceptions.Exit(1)


def _act(action: str, identity: str, reason: str, wait: float, dsn: str, *, as_json: bool) -> None:
    named = filters.identity(identity)
    checked = checked_reason(reason)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        outcome = dead_letters.act(conn, action, named, checked, wait)
    report(outcome, as_json=as_json)


@click.command(cls=Command)
@click.argument("identity", metavar="ID")
@reason_option
@wait_option
@dsn_option
@json_option
def dead(*, identity: str, reason: str, wait: float, dsn: str, as_json: bool) -> None:
    """Set a message aside that cannot be published; its lane goes on.

    Only the message that its lane has stopped at, or one that waits for its time. What is published, or may be because
    an earlier acknowledgement was lost, cannot be set aside. The messages behind it are published without it; needs the
    role outbox_operator.

    \b
      outbox message dead 4711 --reason "too large for every consumer"
    """
    _act("dead", identity, reason, wait, dsn, as_json=as_json)


@click.command(cls=Command)
@click.argument("identity", metavar="[ID]", required=False)
@click.option("--expired", is_flag=True, help="Instead of ID: every message that has expired.")
@click.option("--failed", is_flag=True, help="Instead of ID: every message of --topic that parks its key.")
@click.option(
    "--topic", metavar="NAME", help="With --expired: of this topic only. With --failed: of this topic."
)
@click.option(
    "--may-be-published",
    is_flag=True,
    help="For a message in doubt: an earlier acknowledgement was lost, so Kafka may have it.",
)
@reason_option
@wait_option
@dsn_option
@json_option
def skip(
    *,
    identity: str | None,
    expired: bool,
    failed: bool,
    topic: str | None,
    may_be_published: bool,
    reason: str,
    wait: float,
    dsn: str,
    as_json: bool,
) -> None:
    """Give a message up for good: one that is DEAD, or that its lane has stopped at.

    It is not published from now on, and this cannot be undone. Of a message in doubt, consumers may have a record.

    \b
      outbox message skip 4711 --reason "sent again as 4802"
      outbox message skip 4711 --may-be-published --reason "sent again as 4802"
      outbox message skip --expired --topic offers --reason "the offers are over"
      outbox message skip --failed --topic offers --reason "sent to queues that do not exist"
    """
    if (identity is not None) + expired + failed != 1 or (topic is not None and identity is not None):
        raise click.UsageError(
            "give either the ID of a message, or --expired, with --topic NAME if it is for one topic only, "
            "or --failed with --topic NAME"
        )
    if failed and topic is None:
        raise click.UsageError("--failed needs --topic NAME: of which topic failing messages are given up")
    if identity is not None:
        _act("skip in doubt" if may_be_published else "skip", identity, reason, wait, dsn, as_json=as_json)
        return
    checked = checked_reason(reason)
    given_up, refused = 0, []
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        waiting = "failed" if failed else "expired"
        for outcome in dead_letters.skip_all(conn, waiting, topic, checked, wait, in_doubt=may_be_published):
            given_up += not outcome.failed
            refused += [outcome] if outcome.failed else []
        if not given_up and not refused:
            names.require_known(conn, topic=topic)
    if as_json:
        output.emit_json({"given_up": given_up, "failed": [one.document() for one in refused]})
    else:
        click.echo(f"{waiting} messages given up: {given_up:,}")
        for one in refused:
            click.secho(f"message {one.half['id']} {one.text}", err=True, fg="red")
    if refused:
        raise click.exceptions.Exit(1)


@click.command(cls=Command)
@click.argument("identity", metavar="ID")
@reason_option
@wait_option
@dsn_option
@json_option
def retry(*, identity: str, reason: str, wait: float, dsn: str, as_json: bool) -> None:
    """Publish a DEAD message after all.

    It takes its place in the order now: behind the messages of its key that were committed meanwhile.

    \b
      outbox message retry 4711 --reason "the topic exists now"
    """
    _act("retry", identity, reason, wait, dsn, as_json=as_json)
