"""`outbox message`: send a message, find messages, show one's whole life, cancel a delayed one."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import click

from outbox_relay.cli import output
from outbox_relay.cli.message import outcome as message_outcome
from outbox_relay.cli.message import render
from outbox_relay.cli.message.send import send
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option, limit_option
from outbox_relay.cli.tx.options import reason_option, wait_option
from outbox_relay.cli.types import Choice
from outbox_relay.console import life as life_page
from outbox_relay.database import connections, schema
from outbox_relay.operations import archive, consumers, filters, message_story, messages, names
from outbox_relay.operations import cancel as cancel_operation
from outbox_relay.operations.decide import checked_reason
from outbox_relay.text import former_names
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import printable


class Searching:
    """Reports at a terminal how far back a long search has come."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def note(self, id_: int) -> None:
        """Report once a second at most."""
        if sys.stderr.isatty() and time.monotonic() - self._said > 1:
            click.echo(f"searched back to id {id_:,} …", err=True)
            self._said = time.monotonic()


@click.group(cls=CommandGroup, absent=former_names.absent("message"))
def message() -> None:
    """Send, find, explain and cancel messages.

    Bodies and headers are shown by `outbox message show --body` alone; everything else needs no more than the
    role outbox_reader.
    """


message.add_command(send)


@message.command("ls")
@click.option(
    "--id",
    "id_",
    type=click.IntRange(1, filters.LARGEST_ID),
    metavar="N",
    help="The message's id (a number).",
)
@click.option("--message-id", metavar="UUID", help="The message id, as in the record header outbox-id.")
@click.option("--topic", help="The topic.")
@click.option("--key", metavar="TEXT", help="The record's key: UTF-8, or base64:… for bytes.")
@click.option("--index-key", metavar="TEXT", help="One of its index keys.")
@click.option("--tag", help="One of its tags.")
@click.option(
    "--status",
    type=Choice(filters.STATUSES),
    metavar="STATUS",
    help=f"One of {', '.join(filters.STATUSES)}. COMMITTED: not yet published; UNKNOWN: an undecided half "
    "message.",
)
@click.option("--group", "producer_group", metavar="NAME", help="The producer group.")
@click.option("--transaction-id", metavar="TEXT", help="The application's name for its transaction.")
@click.option("--checker", metavar="NAME", help="The checker that a half message names.")
@click.option("--biz-type", metavar="TEXT", help="What kind of business it is about.")
@click.option("--biz-id", metavar="TEXT", help="Which piece of business it is about.")
@click.option("--since", metavar="TIME", help="Born at or after: 30s, 10m, 2h, 3d ago, or an ISO time.")
@click.option("--until", metavar="TIME", help="Born before; as --since.")
@limit_option
@dsn_option
@json_option
def ls(
    *,
    id_: int | None,
    message_id: str | None,
    topic: str | None,
    key: str | None,
    index_key: str | None,
    tag: str | None,
    status: str | None,
    producer_group: str | None,
    transaction_id: str | None,
    checker: str | None,
    biz_type: str | None,
    biz_id: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    dsn: str,
    as_json: bool,
) -> None:
    """List messages, the newest first; all filters must fit.

    \b
      outbox message ls --status UNKNOWN
      outbox message ls --topic orders --key o-17
      outbox message ls --index-key order-17 --since 2h
      outbox message ls --status COMMITTED          committed, and not yet published
    """
    uuid = None
    if message_id is not None:
        number, uuid = filters.identity(message_id)
        if number is not None:
            raise filters.FilterError(
                f"--message-id {message_id!r} is not a UUID; for a number use --id {number}"
            )
    begin, end = filters.period(since, until)
    wanted = filters.Filters(
        id=id_,
        message_id=uuid,
        topic=topic,
        key=None if key is None else filters.key(key),
        index_key=index_key,
        tag=tag,
        status=None if status is None else status.upper(),
        producer_group=producer_group,
        transaction_id=transaction_id,
        checker=checker,
        biz_type=biz_type,
        biz_id=biz_id,
        since=begin,
        until=end,
    )
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        # One more than asked for tells whether there are more.
        rows = messages.search(conn, wanted, limit + 1, Searching().note)
        if not rows:
            names.require_known(conn, topic=topic, producer_group=producer_group)
    more = len(rows) > limit
    rows = rows[:limit]
    if as_json:
        output.emit_json([render.as_document(row) for row in rows])
    elif rows:
        render.show_list(rows, limit, more)
    else:
        click.echo("no message fits", err=True)


@message.command()
@click.argument("identity", metavar="[ID]", required=False)
@click.option(
    "--key", metavar="TEXT", help="Instead of ID: the newest of this key; UTF-8, or base64:… for bytes."
)
@click.option("--biz-id", metavar="TEXT", help="Instead of ID: the newest about this piece of business.")
@click.option("--index-key", metavar="TEXT", help="Instead of ID: the newest with this index key.")
@click.option("--body", is_flag=True, help="Also show headers and body.")
@click.option(
    "--html",
    "page_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write it as a page for a browser that needs nothing else.",
)
@dsn_option
@json_option
def show(
    *,
    identity: str | None,
    key: str | None,
    biz_id: str | None,
    index_key: str | None,
    body: bool,
    page_file: Path | None,
    dsn: str,
    as_json: bool,
) -> None:
    """Show one message's whole life: born, checked, decided, waiting, published where, applied by whom.

    ID is the message's id (a number) or its message id (a UUID, as in the record header outbox-id). Of consumer groups,
    those of the same database are shown; of warehouses, what their newest certificate proves.

    \b
      outbox message show 4711
      outbox message show --key customer-7
      outbox message show 4711 --html life.html
      outbox message show 000000001267-8a3f-9d52-0c6c5f3a8e11 --body
    """
    what, which = _one(identity, {"key": key, "biz-id": biz_id, "index-key": index_key})
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        if identity is None:
            which = _newest(conn, which, what, dsn)
        life = messages.life(conn, which, content=body)
        if life is None:
            raise _unknown(what, dsn)
        consumed = consumers.of_message(conn, life.message)
        steps = message_story.next_steps(conn, life, consumed)
        kept = archive.read(conn, life.message)
    if page_file is not None:
        place = connections.place(dsn)
        page_file.write_text(life_page.document(life, consumed, steps, kept, place), encoding="utf-8")
        click.echo(f"written to {page_file}", err=True)
    if as_json:
        output.emit_json(render.life_document(life, consumed, kept))
    elif page_file is None:
        render.show_life(life, consumed, steps, kept)


def _one(identity: str | None, by: dict[str, str | None]) -> tuple[str, filters.Filters]:
    """Return what is searched for, as people and as the search name it.

    Raises:
        click.UsageError: nothing is named, or two things are.
    """
    given = {name: text for name, text in by.items() if text is not None}
    if len(given) + (identity is not None) != 1:
        raise click.UsageError("name one message: by ID, --key, --biz-id or --index-key")
    if identity is not None:
        number, uuid = filters.identity(identity)
        return identity, filters.Filters(id=number, message_id=uuid)
    [(name, text)] = given.items()
    found = {
        "key": lambda: filters.Filters(key=filters.key(text)),
        "biz-id": lambda: filters.Filters(biz_id=text),
        "index-key": lambda: filters.Filters(index_key=text),
    }
    return f"--{name} {shlex.quote(text)}", found[name]()


def _newest(conn: connections.Connection, which: filters.Filters, what: str, dsn: str) -> filters.Filters:
    """Find the newest message that fits, and state that there are older ones.

    Raises:
        OperatorError: there is none.
    """
    found = messages.search(conn, which, 2)
    if not found:
        raise _unknown(what, dsn)
    if len(found) > 1:
        click.echo(f"the newest of several; all of them: outbox message ls {printable(what)}", err=True)
    return filters.Filters(id=found[0]["id"])


def _unknown(identity: str, dsn: str) -> OperatorError:
    return OperatorError(
        f"there is no message {printable(identity)} in {connections.place(dsn)}: it was never written, its transaction "
        "was rolled back, or its partition has been dropped\nsearch by key or time: outbox message ls --help"
    )


@message.command()
@click.argument("identity", metavar="ID")
@reason_option
@wait_option
@dsn_option
@json_option
def cancel(*, identity: str, reason: str, wait: float, dsn: str, as_json: bool) -> None:
    """Cancel a delayed message before it is delivered.

    Either it is cancelled and never published, or it is too late and the command reports that (exit code 1).
    Cancelling again is allowed. An undecided half message is rolled back instead:
    outbox tx rollback.

    \b
      outbox message cancel 4711 --reason "order withdrawn"
    """
    named = filters.identity(identity)
    checked = checked_reason(reason)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        outcome = cancel_operation.cancel(conn, named, checked, wait)
    message_outcome.report(outcome, as_json=as_json)
