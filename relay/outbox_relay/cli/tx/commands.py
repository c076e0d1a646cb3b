"""`outbox tx`: half messages for operators: list, explain, have them checked, decide by hand."""

from __future__ import annotations

from typing import Any

import click

from outbox.operations.decide import DecidedState
from outbox_relay.cli import output
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option, limit_option
from outbox_relay.cli.tx import deciding, render, report
from outbox_relay.cli.tx.options import deciding_options, filter_options, read_filter
from outbox_relay.database import connections, schema
from outbox_relay.operations import check_now, filters, half_message_life, half_messages, names


@click.group(cls=CommandGroup)
def tx() -> None:
    """List, explain, check and decide half messages.

    A half message is stored and undecided (UNKNOWN) until its producer commits it or rolls it back. If the producer
    falls silent, a checker asks its group; when checks or age are used up, the group's policy decides: rolled back,
    or EXHAUSTED and left to an operator. An EXHAUSTED message is published by nothing but `outbox tx commit`.

    \b
      outbox tx ls --state EXHAUSTED     what waits for you
      outbox tx explain 4711             what happened, and what happens next
      outbox tx commit 4711 --reason "paid, see invoice 17"

    ID is a message's id (a number) or its message id (a UUID).
    """


@tx.command("ls")
@filter_options
@limit_option
@click.option(
    "--after", type=click.IntRange(0, filters.LARGEST_ID), metavar="ID", help="Go on behind this id."
)
@dsn_option
@json_option
def ls(*, limit: int, after: int | None, dsn: str, as_json: bool, **options: Any) -> None:
    """List undecided half messages, the oldest first.

    UNKNOWN ones and EXHAUSTED ones; all filters must fit. What was decided is found by `outbox message ls`.

    \b
      outbox tx ls --overdue                   no checker comes to them
      outbox tx ls --state EXHAUSTED --group payments
      outbox tx ls --biz-type payment --biz-id p-7
      outbox tx ls --until 1h --json           older than an hour, for machines
    """
    chosen = read_filter(options, after)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        # One more than asked for tells whether there are more.
        rows = half_messages.page(conn, chosen, limit + 1)
        now = half_messages.now(conn)
        if not rows:
            names.require_known(conn, producer_group=chosen.producer_group, topic=chosen.topic)
    more = len(rows) > limit
    rows = rows[:limit]
    if as_json:
        output.emit_json([render.half_document(row, now) for row in rows])
    elif rows:
        render.show_list(rows, now)
        if more:
            rest = f"--after {rows[-1]['id']}, --limit N, or narrow the search"
            click.echo(f"the oldest {limit}; there are more: {rest}", err=True)
    else:
        click.echo("no half message fits", err=True)


@tx.command()
@click.argument("identity", metavar="ID")
@dsn_option
@json_option
def show(*, identity: str, dsn: str, as_json: bool) -> None:
    """Show one half message with all its facts, whatever became of it."""
    known = _read(dsn, identity)
    if as_json:
        output.emit_json(render.life_document(known))
    else:
        render.show_one(known)


@tx.command()
@click.argument("identity", metavar="ID")
@dsn_option
@json_option
def explain(*, identity: str, dsn: str, as_json: bool) -> None:
    """Show the life of one half message, and what happens next.

    Born when and by whom; asked when, who answered what and why; decided by whom and why; published where. If it is
    undecided: when it is asked again and by whom, which running local transaction holds it, which alarm stands.
    """
    known = _read(dsn, identity)
    if as_json:
        output.emit_json(render.life_document(known))
    else:
        render.explain(known)


def _read(dsn: str, text: str) -> half_message_life.HalfMessageLife:
    identity = filters.identity(text)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        return half_message_life.read(conn, identity)


@tx.command()
@click.argument("identities", metavar="ID…", nargs=-1, required=True)
@dsn_option
@json_option
def check(*, identities: tuple[str, ...], dsn: str, as_json: bool) -> None:
    """Make half messages due to be asked about now.

    The next turn of a checker asks; this command asks no one, and reports who will. The check counts as any other.
    """
    named = [filters.identity(text) for text in identities]
    documents = []
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        for one in named:
            half = half_messages.get(conn, one)
            due = check_now.due_now(conn, half) is not None
            text = report.due(conn, half_messages.get(conn, one))
            documents.append(
                {"id": half["id"], "message_id": str(half["message_id"]), "due": due, "text": text}
            )
            if not as_json:
                click.echo(f"half message {half['id']} {text}", err=not due)
    if as_json:
        output.emit_json(documents)
    if not all(document["due"] for document in documents):
        raise click.exceptions.Exit(1)


@tx.command()
@deciding_options
@dsn_option
@json_option
def commit(**options: Any) -> None:
    """Decide that half messages are published.

    For UNKNOWN and EXHAUSTED ones. Find out first what became of the local transaction: a decision is final.
    Repeating a decision is allowed; the opposite one is refused, with who decided, when and why. A half message that a
    running local transaction holds is waited for (--wait), then refused: it may still decide by itself.

    \b
      outbox tx commit 4711 --reason "paid, see invoice 17"
      outbox tx commit --all --group pay --state EXHAUSTED --reason "bank: paid"
    """
    deciding.run(DecidedState.COMMITTED, options)


@tx.command()
@deciding_options
@dsn_option
@json_option
def rollback(**options: Any) -> None:
    """Decide that half messages are never published.

    For UNKNOWN and EXHAUSTED ones; as `outbox tx commit` otherwise. The message stays, as history and as a fence: a
    late commit by its producer is refused.

    \b
      outbox tx rollback 4711 4712 --reason "cards were declined" --yes
    """
    deciding.run(DecidedState.ROLLED_BACK, options)
