"""`outbox holds`: what is not published, why, and an operator's ways out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import click
import psycopg

from outbox_relay.cli import output
from outbox_relay.cli.message.outcome import gather, report, report_all
from outbox_relay.cli.options import CommandGroup, add_options, dsn_option, json_option, limit_option
from outbox_relay.cli.tx.options import reason_option, wait_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import dead_letters, filters, messages, names
from outbox_relay.operations import holds as holds_operation
from outbox_relay.operations.decide import checked_reason
from outbox_relay.operations.holds import HoldFilter, HoldView
from outbox_relay.text import durations, formatting
from outbox_relay.text.errors import OperatorError

F = TypeVar("F", bound=Callable[..., Any])
SHOWN = 20
"""Waiting messages that `show` lists."""


def _filters(command: F) -> F:
    """Add the options that choose holds."""
    return add_options(
        command,
        (
            click.option("--topic", metavar="NAME", help="Of this topic."),
            click.option("--error", metavar="CODE", help="With this code, such as MESSAGE_TOO_LARGE."),
            click.option("--older-than", metavar="SPAN", help="Which began longer ago: 30s, 10min, 2h, 3d."),
        ),
    )


def _chosen(options: dict[str, Any]) -> HoldFilter:
    """Read the options that choose holds."""
    older = options["older_than"]
    return HoldFilter(
        topic=options["topic"],
        error=options["error"],
        older=None if older is None else durations.duration("--older-than", older).total_seconds(),
    )


def _require_one_way(identity: str | None, chosen: HoldFilter, *, everything: bool = False) -> None:
    if (identity is not None) + (chosen != holds_operation.ALL) + everything != 1:
        raise click.UsageError(
            "give the ID of one message that fails, or choose holds: --topic, --error, --older-than; "
            "see the examples in --help"
        )


@click.group(cls=CommandGroup)
def holds() -> None:
    """What cannot be published, why, and what to do: release it, give it up, set it aside.

    A hold keeps back one message, or the messages of a key, a partition or a topic, in their order; all others flow.
    The relay makes it, and ends it once what is held is published or given up. Messages that were set aside hold
    nothing: outbox message ls --status DEAD.
    """


@holds.command("ls")
@_filters
@limit_option
@dsn_option
@json_option
def ls(*, limit: int, dsn: str, as_json: bool, **options: Any) -> None:
    """List what is held: since when, how much, by which error, and the commands that repair it.

    \b
      outbox holds ls
      outbox holds ls --error MESSAGE_TOO_LARGE --older-than 1h
    """
    chosen = _chosen(options)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = holds_operation.everything(conn, chosen, limit + 1)
        if not found:
            names.require_known(conn, topic=chosen.topic)
    listed = found[:limit]
    if as_json:
        output.emit_json([hold.document() for hold in listed])
        return
    for hold in listed:
        _describe(hold)
    if not listed:
        click.echo("nothing is held" if chosen == holds_operation.ALL else "nothing of that is held")
    if len(found) > limit:
        click.echo(f"more are held than these {limit}, the oldest: --limit N lists more", err=True)


def _describe(hold: HoldView) -> None:
    no_relay = "" if hold.has_relay else " (no relay runs for it)"
    click.secho(
        f"{hold.place}: held since {formatting.cell(hold.since)}{hold.behind}{no_relay}: "
        f"{formatting.printable(hold.error)}{hold.tried}",
        fg="red",
    )
    for line in hold.repair():
        click.echo(f"  {line}")


@holds.command()
@click.argument("identity", metavar="ID")
@dsn_option
@json_option
def show(*, identity: str, dsn: str, as_json: bool) -> None:
    """Show the hold of one message, and the messages that wait for it in their order.

    ID is that of the message that fails, or of any that waits behind it.

    \b
      outbox holds show 4711
    """
    number, message_id = filters.identity(identity)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        life = messages.life(conn, filters.Filters(id=number, message_id=message_id))
        hold = None if life is None else life.hold
        if hold is None:
            what = "there is no message" if life is None else "no hold keeps back message"
            raise OperatorError(f"{what} {identity}; what became of it: outbox message show {identity}")
        waiting = holds_operation.waiting(conn, hold, SHOWN)
    if as_json:
        output.emit_json({**hold.document(), "messages": waiting})
        return
    _describe(hold)
    click.echo()
    output.table(
        ["message", "reason", "in doubt", "since"],
        [(one["id"], one["reason"], "yes" if one["in_doubt"] else "no", one["since"]) for one in waiting],
        right=("message",),
        keep=("message", "reason"),
    )
    if len(waiting) == SHOWN:
        click.echo(f"the first {SHOWN} of those that wait")


@holds.command()
@click.argument("identity", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="All that is held.")
@_filters
@click.option(
    "--reason", metavar="TEXT", help="Why; needed for a message that was set aside: the audit keeps it."
)
@wait_option
@dsn_option
@json_option
def release(
    *,
    identity: str | None,
    everything: bool,
    reason: str | None,
    wait: float,
    dsn: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Let the relay try what is held again now, in order, after its cause is repaired.

    A message that was set aside is published after all; it takes its place in the order now, behind the messages of its
    key that were committed meanwhile.

    \b
      outbox holds release 4711
      outbox holds release --topic orders
      outbox holds release --error MESSAGE_TOO_LARGE --older-than 1h
      outbox holds release 4711 --reason "the topic exists now"     it was set aside
    """
    chosen = _chosen(options)
    _require_one_way(identity, chosen, everything=everything)
    checked = None if reason is None else checked_reason(reason)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        if identity is not None:
            named = filters.identity(identity)
            report(dead_letters.act(conn, "release", named, checked, wait), as_json=as_json)
            return
        found = holds_operation.everything(conn, chosen, None)
        if not found:
            names.require_known(conn, topic=chosen.topic)
        asked = holds_operation.release(conn, found)
    _report_released(found, asked, as_json=as_json)


def _report_released(found: Iterable[HoldView], asked: list[HoldView], *, as_json: bool) -> None:
    done = {id(hold) for hold in asked}
    left = [hold for hold in found if id(hold) not in done]
    if as_json:
        output.emit_json(
            {
                "released": [hold.document() for hold in asked],
                "left": [hold.document() for hold in left],
            }
        )
    else:
        click.echo(
            f"{formatting.many(len(asked), 'hold')} tried again within about a second"
            if asked or left
            else "nothing of that is held"
        )
        for hold in left:
            why = (
                hold.repair()[0]
                if hold.is_paused
                else "it is tried or changed at this moment: outbox holds ls"
            )
            click.secho(f"{hold.place} is left as it is: {why}", err=True, fg="yellow")
        if asked and not any(hold.has_relay for hold in asked):
            click.echo("no relay runs for them; one tries them when it starts: outbox relay run", err=True)


@holds.command()
@click.argument("identity", metavar="[ID]", required=False)
@_filters
@click.option("--expired", is_flag=True, help="Instead of what fails: every message that has expired.")
@click.option(
    "--may-be-published",
    is_flag=True,
    help="For messages in doubt: an earlier acknowledgement was lost, so Kafka may have them.",
)
@reason_option
@wait_option
@dsn_option
@json_option
def skip(
    *,
    identity: str | None,
    expired: bool,
    may_be_published: bool,
    reason: str,
    wait: float,
    dsn: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Give up for good what fails, and publish what is held behind it.

    With an ID also a message that waits behind another, or was set aside. It is not published from now on, and this
    cannot be undone. Of a message in doubt, consumers may have a record.

    \b
      outbox holds skip 4711 --reason "sent again as 4802"
      outbox holds skip 4711 --may-be-published --reason "sent again as 4802"
      outbox holds skip --topic offers --error QUEUE_OUT_OF_RANGE --reason "sent to queues that do not exist"
      outbox holds skip --expired --topic offers --reason "the offers are over"
    """
    chosen = _chosen(options)
    if expired and (identity is not None or chosen != HoldFilter(topic=chosen.topic)):
        raise click.UsageError("--expired takes --topic NAME and no other filter, and no ID")
    _require_one_way(identity, HoldFilter() if expired else chosen, everything=expired)
    change = _Change(
        "skip in doubt" if may_be_published else "skip",
        "messages given up",
        checked_reason(reason),
        wait,
        "expired" if expired else "failed",
    )
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        _change(conn, change, identity, chosen, as_json=as_json)


@holds.command()
@click.argument("identity", metavar="[ID]", required=False)
@_filters
@reason_option
@wait_option
@dsn_option
@json_option
def dead(*, identity: str | None, reason: str, wait: float, dsn: str, as_json: bool, **options: Any) -> None:
    """Set aside what fails, and publish what is held behind it; release it later, or give it up.

    Only a message that fails, or one that waits for its time. What is published, or may be because an earlier
    acknowledgement was lost, cannot be set aside.

    \b
      outbox holds dead 4711 --reason "too large for every consumer"
      outbox holds dead --topic orders --older-than 1d --reason "needs a fix of the sender"
    """
    chosen = _chosen(options)
    _require_one_way(identity, chosen)
    change = _Change("dead", "messages set aside", checked_reason(reason), wait)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        _change(conn, change, identity, chosen, as_json=as_json)


class _Change(NamedTuple):
    """What is done to one message, or to all messages that fail or have expired."""

    action: str
    what: str
    reason: str
    wait: float
    waiting: str = "failed"


def _change(
    conn: psycopg.Connection[Any],
    change: _Change,
    identity: str | None,
    chosen: HoldFilter,
    *,
    as_json: bool,
) -> None:
    """Do it; exit with 1 when a message was refused."""
    action, _, reason, wait, waiting = change
    if identity is not None:
        report(dead_letters.act(conn, action, filters.identity(identity), reason, wait), as_json=as_json)
        return
    what = f"{waiting} {change.what}"
    done, refused = gather(dead_letters.act_on_all(conn, action, chosen, reason, wait, waiting=waiting), what)
    if action != "skip in doubt" and dead_letters.has_more_in_doubt(conn, chosen, waiting=waiting):
        click.echo(
            "messages in doubt are left as they are, because Kafka may have them: give them up with "
            "outbox holds skip --may-be-published",
            err=True,
        )
    elif not done and not refused:
        names.require_known(conn, topic=chosen.topic)
        if holds_operation.everything(conn, chosen, 1, of=["topics"]):
            click.echo(
                "what waits for a whole topic or partition is given up by ID, one message at a time: outbox holds ls",
                err=True,
            )
    report_all(done, refused, what, as_json=as_json)
