"""`outbox dlq`: dead letters of consumer groups, by failure or one by one; try them again, discard them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from outbox_relay.cli import output
from outbox_relay.cli.dlq import acting, render
from outbox_relay.cli.options import CommandGroup, add_options, dsn_option, json_option, limit_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumers, filters, names
from outbox_relay.operations import dlq as letters
from outbox_relay.operations.dlq import DeadLetterFilter
from outbox_relay.text import formatting
from outbox_relay.text.errors import OperatorError

F = TypeVar("F", bound=Callable[..., Any])

_FILTERS = (
    click.option("--group", metavar="NAME", help="The consumer group."),
    click.option("--topic", metavar="NAME", help="The topic."),
    click.option(
        "--failure", metavar="TEXT", help="A part of the failure, as `outbox dlq summary` lists it."
    ),
    click.option("--since", metavar="TIME", help="Failed at or after: 30s, 10m, 2h, 3d ago, or an ISO time."),
    click.option("--until", metavar="TIME", help="Failed before; as --since."),
)
_CHOICE = (
    click.argument("ids", metavar="[ID…]", nargs=-1, type=click.IntRange(1, filters.LARGEST_ID)),
    *_FILTERS,
    click.option("--all", "everything", is_flag=True, help="All dead letters of all groups."),
    click.option("--yes", is_flag=True, help="Do not ask before acting on more than one."),
)


def _filter_options(command: F) -> F:
    return add_options(command, _FILTERS)


def _choice_options(command: F) -> F:
    return add_options(command, _CHOICE)


@click.group(cls=CommandGroup)
def dlq() -> None:
    """Dead letters of consumer groups: messages whose listener failed until their retries were used up.

    They are rows in the consumer's database; nothing of their effect is there, unless their listener committed its
    transaction. In an orderly group the later messages of the key wait behind a dead letter, in order, until it is
    tried again or discarded. Messages that the relay cannot publish are another thing: outbox holds ls.
    """


@dlq.command("ls")
@_filter_options
@click.option(
    "--retrying", is_flag=True, help="Messages that failed and are tried again, the next try first, instead."
)
@limit_option
@dsn_option
@json_option
def ls(*, retrying: bool, limit: int, dsn: str, as_json: bool, **options: Any) -> None:
    """List dead letters, the oldest first; all filters must fit. Or list what may become one, with --retrying.

    \b
      outbox dlq ls --group points
      outbox dlq ls --failure ValueError --since 2h
      outbox dlq ls --retrying --group points
    """
    count = 0
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        chosen = _filter(options)
        if retrying:
            found = letters.retrying(conn, chosen, limit)
        else:
            found = [row for page in letters.pages(conn, chosen, limit) for row in page]
            count = _retrying(conn, chosen.group, chosen.topic)
        if not found:
            names.require_known(conn, consumer_group=chosen.group, topic=chosen.topic)
    if as_json:
        output.emit_json(found)
    elif found:
        render.messages(found)
    else:
        click.echo("no message is tried again" if retrying else "no dead letters")
    if count and not as_json:
        click.echo(
            f"{formatting.many(count, 'message')} failed and will be tried again: outbox dlq ls --retrying",
            err=True,
        )


@dlq.command()
@click.option("--group", metavar="NAME", help="The consumer group.")
@dsn_option
@json_option
def summary(*, group: str | None, dsn: str, as_json: bool) -> None:
    """Count dead letters by group and failure: the exception, its place in the listener, and its text.

    \b
      outbox dlq summary
      outbox dlq redrive --group points --failure "KeyError at points:add"
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        found = letters.summary(conn, group)
        if not found:
            names.require_known(conn, consumer_group=group)
    if as_json:
        output.emit_json(found)
    elif not found:
        click.echo("no dead letters")
    else:
        output.table(
            ["group", "messages", "first", "last", "topics", "example", "failure"],
            [
                (
                    row["consumer_group"],
                    row["messages"],
                    row["first_at"],
                    row["last_at"],
                    ", ".join(row["topics"]),
                    row["example"],
                    formatting.printable(row["failure"] or ""),
                )
                for row in found
            ],
            right=("messages", "example"),
            keep=("group", "messages", "example", "failure"),
            text=("topics", "failure"),
        )


@dlq.command()
@click.argument("id_", metavar="ID", type=click.IntRange(1, filters.LARGEST_ID))
@click.option("--body", is_flag=True, help="Also its headers and body; needs the role outbox_consumer.")
@dsn_option
@json_option
def show(*, id_: int, body: bool, dsn: str, as_json: bool) -> None:
    """Show one dead letter, or a message that waits for its retry, with its error."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        row = letters.show(conn, id_)
        if row is None:
            raise OperatorError(f"no parked message has the id {id_}; list them: outbox dlq ls")
        if body:
            row.update(letters.contents(conn, [id_]).get(id_, {}))
    if as_json:
        output.emit_json(row)
        return
    for name, value in row.items():
        if name not in {"error", "headers", "body"}:
            click.echo(f"{name.replace('_', ' '):<15} {formatting.cell(value)}")
    for name, value in row.get("headers", []):
        click.echo(f"header          {formatting.printable(name)}: {formatting.cell(value)}")
    if body:
        click.echo(f"body            {formatting.cell(row.get('body'))}")
    for line in (row["error"] or "").splitlines():
        click.echo(f"  {formatting.printable(line)}")


@dlq.command()
@_filter_options
@dsn_option
def export(*, dsn: str, **options: Any) -> None:
    """Write dead letters with headers and bodies, a line of JSON each; needs the role outbox_consumer.

    \b
      outbox dlq export --group points > points.jsonl
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        chosen, count = _filter(options), 0
        for page in letters.pages(conn, chosen):
            found = letters.contents(conn, [row["id"] for row in page])
            count += len(page)
            for row in page:
                if row["id"] in found:
                    output.emit_json_line({**row, **found[row["id"]]})
        if not count:
            names.require_known(conn, consumer_group=chosen.group, topic=chosen.topic)


@dlq.command()
@_choice_options
@dsn_option
@json_option
def redrive(**options: Any) -> None:
    """Let the group try dead letters again now, with all their attempts before them.

    Order is kept: the later messages of a held key stay behind its dead letter until it has succeeded. A dead letter
    whose listener had committed its transaction, or that is too old to prove that it was not applied, is tried again
    only if it is named by its id: its effect, or a part of it, may exist. One that has failed again since it was listed
    for the question is left out.

    \b
      outbox dlq redrive 17
      outbox dlq redrive --group points --failure TimeoutError --yes
    """
    acting.act(acting.REDRIVE, options, _filter(options))


@dlq.command()
@_choice_options
@dsn_option
@json_option
def discard(**options: Any) -> None:
    """Delete dead letters for good: their effect will never exist, and the messages behind them go on.

    Keep a copy first: outbox dlq export. One that has failed again since it was listed for the question is left out.

    \b
      outbox dlq discard 17
      outbox dlq discard --group points --failure "KeyError at points:add" --yes
    """
    acting.act(acting.DISCARD, options, _filter(options))


@dlq.command()
@dsn_option
@json_option
def hold(*, dsn: str, as_json: bool) -> None:
    """Hold order keys again whose row in outbox.inbox_held_key was deleted by hand while a message of them is parked.

    Without that row the next message of the key that fails cannot be parked, and its partition waits. What of the key
    was applied in the meantime came before the parked message. If all parked messages of a key wait, and nothing is
    tried that they wait for, the first of them is tried now.
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        found = letters.hold(conn)
    if as_json:
        output.emit_json(found)
    elif not found:
        click.echo("no parked message lacks its held key")
    else:
        columns = ["consumer_group", "topic", "key"]
        output.table(["group", "topic", "key"], [[row[name] for name in columns] for row in found])


def _retrying(conn: connections.Connection, group: str | None, topic: str | None) -> int:
    """Count messages that failed and are tried again."""
    return sum(
        row["retries_failed"]
        for row in consumers.groups(conn)
        if group in (None, row["consumer_group"]) and topic in (None, row["topic"])
    )


def _filter(options: dict[str, Any]) -> DeadLetterFilter:
    """Read the filters.

    Raises:
        FilterError: a time cannot be read.
    """
    begin, end = filters.period(options["since"], options["until"])
    now = datetime.now(UTC)
    return DeadLetterFilter(
        group=options["group"],
        topic=options["topic"],
        failure=options["failure"],
        since=None if begin is None else filters.at(begin, now),
        until=None if end is None else filters.at(end, now),
    )
