"""`outbox consumers replay`: old messages for one group, shown first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import psycopg

from outbox_relay.cli import output
from outbox_relay.cli.options import Command, dsn_option, json_option
from outbox_relay.cli.types import Number
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumers, filters, replay_plan, replays
from outbox_relay.operations.replay_file import ExportedMessages
from outbox_relay.operations.replay_plan import MEANINGS, Preview
from outbox_relay.operations.replay_source import Chosen, History, ReplaySource, Selection
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import cell, many


@click.command(cls=Command)
@click.argument("group")
@click.option("--topic", help="The topic of the messages.")
@click.option("--key", metavar="TEXT", help="Those of this record key: UTF-8, or base64:… for bytes.")
@click.option(
    "--from", "since", metavar="TIME", help="Those sent at or after this time (2h ago, or an ISO time)."
)
@click.option("--to", "until", metavar="TIME", help="Those sent before this time.")
@click.option(
    "--id", "ids", metavar="ID", multiple=True, help="This message, by id or message id; repeatable."
)
@click.option(
    "--again", is_flag=True, help="Also messages that the group has applied: they are applied once more."
)
@click.option(
    "--source",
    metavar="DSN",
    envvar="OUTBOX_SOURCE",
    help="The database of the messages. [default: that of the group]",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of messages as JSON lines, such as a query of the warehouse writes, instead of a database.",
)
@click.option("--rate", type=Number(0.1, 100_000), metavar="N", help="At most so many messages a second.")
@click.option("--resume", is_flag=True, help="Go on with the replay of the group that was interrupted.")
@click.option("--cancel", is_flag=True, help="End the replay of the group that was interrupted, where it is.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and end.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dsn_option
@json_option
def replay(*, group: str, dsn: str, as_json: bool, **options: Any) -> None:
    """Give old messages to one group, from the history or from a file; nothing is published.

    No other group sees them. Shows what would be done, and asks. The messages become parked messages of the group, and
    its members run them like retries: in the order of their keys if the group is orderly; newer messages of a key wait
    behind them. Left out, and counted, is what the group has applied (unless you give --again), what is parked, and
    what it has not read in Kafka yet. What fails goes on as after each failure: outbox dlq.

    A replay that was interrupted goes on with --resume; no message is given twice.

    Needs the role outbox_consumer, and in the database of the messages outbox_etl, because it reads bodies.

    \b
    Examples:
      outbox consumers replay points --topic orders --from 2026-11-20T08:00Z --to 2026-11-20T10:00Z
      outbox consumers replay points --topic orders --key c-17 --again --yes
      outbox consumers replay points --resume --rate 100
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        consumers.apply_policies(conn)
        if options["cancel"]:
            _cancel(conn, group, as_json=as_json)
            return
        with _source(conn, options["source"], options["file"]) as source:
            if options["resume"]:
                _resume(conn, group, source, options, as_json=as_json)
            else:
                _begin(conn, group, source, options, as_json=as_json)


@contextmanager
def _source(conn: psycopg.Connection[Any], dsn: str | None, file: Path | None) -> Iterator[ReplaySource]:
    if file is not None:
        if dsn is not None:
            raise click.UsageError("messages come from one place: --source or --file")
        yield ExportedMessages(file)
        return
    if dsn is None:
        yield History(conn)
        return
    with connections.connect(dsn) as other:
        schema.require_current(other)
        yield History(other)


def _begin(
    conn: psycopg.Connection[Any],
    group: str,
    source: ReplaySource,
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    selection = _selection(options)
    target = replay_plan.target(conn, group, selection.topic)
    origin = source.origin()
    chosen = source.choose(selection, origin.now)
    preview = replay_plan.plan(conn, target, chosen, again=options["again"])
    if not as_json:
        _show(preview)
    if options["dry_run"] or not preview.applied:
        _report(as_json, preview, parked=0)
        return
    if not options["yes"]:
        question = f"{many(preview.applied, 'message')} will be given to group {group}. Go on?"
        click.confirm(question, abort=True, err=True)
    begun = replays.begin(conn, target, selection, origin, again=options["again"])
    _run(conn, source, begun, chosen, rate=options["rate"], preview=preview, as_json=as_json)


def _resume(
    conn: psycopg.Connection[Any],
    group: str,
    source: ReplaySource,
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    if any(options[name] for name in ("topic", "key", "since", "until", "ids", "again")):
        raise click.UsageError(
            "--resume takes the messages of the replay as it was begun: leave the other options out"
        )
    found = replays.find_open(conn, group)
    origin = source.origin()
    if origin.name != found.source:
        raise OperatorError(
            f"the replay was begun with the messages of {found.source}, and this is {origin.name}: give the same "
            "--source or --file"
        )
    selection = Selection.of(found.selection)
    target = replay_plan.target(conn, group, selection.topic)
    chosen = source.choose(selection, found.published_before)
    _run(conn, source, found.go_on(target), chosen, rate=options["rate"], preview=None, as_json=as_json)


def _cancel(conn: psycopg.Connection[Any], group: str, *, as_json: bool) -> None:
    found = replays.find_open(conn, group)
    target = replay_plan.target(conn, group, Selection.of(found.selection).topic)
    parked = replays.Replaying(conn, History(conn), found.go_on(target), waiting=_waiting()).cancel()
    if as_json:
        output.emit_json({"parked": parked})
    else:
        click.echo(
            f"the replay is ended; {many(parked, 'message')} of it were given to the group before that"
        )


def _run(
    conn: psycopg.Connection[Any],
    source: ReplaySource,
    begun: replays.Replay,
    chosen: list[Chosen],
    *,
    rate: float | None,
    preview: Preview | None,
    as_json: bool,
) -> None:
    group = begun.target.group
    running = replays.Replaying(conn, source, begun, rate=rate, waiting=_waiting())
    try:
        parked = running.run(chosen)
    except KeyboardInterrupt:
        click.echo(f"go on with it: outbox consumers replay {group} --resume", err=True)
        raise click.Abort from None
    _report(as_json, preview, parked=parked)
    if not as_json:
        click.echo(
            f"{many(parked, 'message')} were given to the group; what is left of them: outbox consumers ls"
        )


def _selection(options: dict[str, Any]) -> Selection:
    topic, key, ids = options["topic"], options["key"], options["ids"]
    since, until = options["since"], options["until"]
    if topic is None:
        raise click.UsageError("name the topic: --topic")
    if key is None and since is None and not ids:
        raise click.UsageError("choose messages: --key, --from (with --to), or --id")
    now = datetime.now(UTC)
    begin = None if since is None else filters.at(filters.read_moment("--from", since), now)
    end = None if until is None else filters.at(filters.read_moment("--to", until), now)
    if begin is not None and end is not None and begin >= end:
        raise click.UsageError(f"--from {since} is not before --to {until}: nothing can be between them")
    named = [id_ or message_id for id_, message_id in map(filters.identity, ids)]
    return Selection(topic, None if key is None else filters.key(key), begin, end, tuple(map(str, named)))


def _show(preview: Preview) -> None:
    rows = [(count, MEANINGS[name]) for name in MEANINGS if (count := preview.counts.get(name))]
    output.table(
        ["messages", "what becomes of them"],
        rows or [(0, "fit")],
        right={"messages"},
        text=("what becomes of them",),
    )
    if preview.first is not None and preview.last is not None:
        first, last = (
            datetime.fromtimestamp(each.born / 1000, UTC) for each in (preview.first, preview.last)
        )
        click.echo(f"sent from {cell(first)} to {cell(last)}")
    if preview.held_keys:
        click.echo(
            f"{many(preview.held_keys, 'key')} of them are held by a message that failed, and these wait behind it: "
            "outbox dlq ls"
        )


def _report(as_json: bool, preview: Preview | None, *, parked: int) -> None:
    if not as_json:
        return
    counts = {} if preview is None else preview.counts
    output.emit_json({"messages": {name: counts.get(name, 0) for name in MEANINGS}, "parked": parked})


def _waiting() -> Any:
    seen: set[str] = set()

    def report(what: str) -> None:
        if what not in seen:
            seen.add(what)
            click.echo(f"waiting for {what}", err=True)

    return report
