"""`outbox status`: backlog, oldest age and rates, per topic and lane."""

from __future__ import annotations

import json
import sys
import time

import click
import psycopg

from outbox_relay import output, schema, settings
from outbox_relay.commands.options import Command, dsn_option, explain, json_option
from outbox_relay.commands.types import Number
from outbox_relay.inspect import status as inspect_status
from outbox_relay.inspect import status_view


@click.command(cls=Command)
@dsn_option
@json_option
@click.option(
    "--watch",
    type=Number(0.1, 3600),
    metavar="SECONDS",
    help="Look again every so many seconds, until interrupted; with --json one line each time.",
)
@click.option(
    "--window",
    type=Number(1, 60),
    default=inspect_status.WINDOW_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds over which rates are taken.",
)
def status(*, dsn: str, as_json: bool, watch: float | None, window: float) -> None:
    """Show backlog, oldest age and rates, per topic and lane.

    \b
    backlog      messages that are committed and not recorded as published
    oldest       age of the oldest: since it was inserted, decided or fell due
    published/s  over the last 10 s; ~ is from a sample of 2,000 messages
    lease        how long the lane stays its owner's if that should die

    The cost does not grow with the number of published messages. Needs no more than the role outbox_reader.
    """
    if watch is None:
        with settings.connect(dsn) as conn:
            schema.require_current(conn)
            found = inspect_status.look(conn, window)
        if as_json:
            output.emit_json(status_view.as_document(found))
        else:
            status_view.show(found, settings.place(dsn))
        return
    try:
        _watch(dsn, as_json, watch, window)
    except KeyboardInterrupt:
        sys.exit(0)


def _watch(dsn: str, as_json: bool, pause: float, window: float) -> None:
    """Look again and again; a server that is away for a while is said, not fatal."""
    conn: settings.Connection | None = None
    while True:
        try:
            if conn is None or conn.closed:
                conn = settings.connect(dsn)
                schema.require_current(conn)
            found = inspect_status.look(conn, window)
        except (settings.DatabaseUnreachableError, psycopg.OperationalError) as error:
            click.echo(explain(error), err=True)
            if conn is not None:
                conn.close()
            conn = None
        else:
            if as_json:
                document = status_view.as_document(found)
                click.echo(json.dumps(document, ensure_ascii=False, default=str))
            else:
                if sys.stdout.isatty():
                    click.clear()
                status_view.show(found, settings.place(dsn))
        sys.stdout.flush()
        time.sleep(pause)
