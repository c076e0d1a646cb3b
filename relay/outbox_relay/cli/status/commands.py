"""`outbox status`: whether the outbox is healthy; backlog, oldest age and rates, per topic and lane."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

import click
import psycopg

from outbox_relay.cli import output
from outbox_relay.cli.options import (
    Command,
    advice,
    dsn_option,
    json_option,
    kafka_config_option,
    optional_bootstrap_servers_option,
)
from outbox_relay.cli.status import render
from outbox_relay.cli.types import Number
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumers, health
from outbox_relay.operations import status as inspect_status
from outbox_relay.operations.consumer_lag import KafkaOffsets, Lag, lags, total
from outbox_relay.text.errors import OperatorError


@click.command(cls=Command)
@dsn_option
@optional_bootstrap_servers_option
@kafka_config_option
@json_option
@click.option(
    "--watch",
    type=Number(0.1, 3600),
    metavar="SECONDS",
    help="Repeat every so many seconds, until interrupted; with --json one line each time.",
)
@click.option(
    "--window",
    type=Number(1, 60),
    default=inspect_status.WINDOW_S,
    show_default=True,
    metavar="SECONDS",
    help="Seconds over which rates are taken.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Print the first line only, and exit with 1 when something is wrong: for monitoring.",
)
@click.option(
    "--max-age",
    type=Number(0.1, 30 * 86_400),
    default=health.MAX_AGE_S,
    show_default=True,
    metavar="SECONDS",
    help="A message that waits for longer, although a relay runs, is a problem.",
)
def status(
    *,
    dsn: str,
    bootstrap_servers: str | None,
    kafka: dict[str, str],
    as_json: bool,
    watch: float | None,
    window: float,
    check: bool,
    max_age: float,
) -> None:
    """Show whether the outbox is healthy, and what waits.

    The first line states: healthy, or what is wrong with the command that repairs it. Then backlog, oldest age
    and rates per topic; lanes only where they differ.

    \b
    backlog      messages that are committed and not recorded as published
    oldest       age of the oldest: since it was inserted, decided or fell due
    published/s  over the last 10 s; ~ is from a sample of 2,000 messages
    lease        how long the lane stays its owner's if that should die
    lag          offsets that Kafka is ahead of the consumer groups of this database; with --bootstrap-servers

    \b
    Examples:
      outbox status
      outbox status --watch 2
      outbox status --check || page-somebody

    The cost does not grow with the number of published messages. Needs no more than the role outbox_reader.
    Exit codes: 0; 1 when the database cannot be read, and with --check when something is wrong; 2 wrong options.
    """
    offsets = KafkaOffsets(bootstrap_servers, kafka) if bootstrap_servers else None
    if watch is not None:
        if check:
            raise click.UsageError(
                "--check reads the status once and cannot repeat it; leave out --watch or --check"
            )
        try:
            _watch(dsn, offsets, as_json=as_json, pause=watch, window=window, max_age=max_age)
        except KeyboardInterrupt:
            sys.exit(0)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        seen = inspect_status.look(conn, window)
        lag = None if check and not as_json else _lag(conn, offsets, seen)
    found = health.problems(seen, max_age)
    if as_json:
        output.emit_json(render.as_document(seen, found, lag))
    elif check:
        render.show_verdict(found)
    else:
        render.show(seen, found, connections.place(dsn), lag)
    if check and found:
        sys.exit(1)


def _lag(
    conn: connections.Connection, offsets: KafkaOffsets | None, seen: inspect_status.Status
) -> Lag | None:
    """Ask Kafka how far it is ahead of the groups; None: it was not asked, or does not reply, which is reported."""
    if offsets is None or not seen.consumers.groups:
        return None
    try:
        return total(lags(offsets, consumers.positions(conn)))
    except OperatorError as error:
        click.echo(f"lag is not known: {advice(error)}", err=True)
        return None


def _watch(
    dsn: str, offsets: KafkaOffsets | None, *, as_json: bool, pause: float, window: float, max_age: float
) -> NoReturn:
    """Look again and again; report a server that is away for a while and wait for it."""
    conn: connections.Connection | None = None
    while True:
        try:
            if conn is None or conn.closed:
                conn = connections.connect(dsn)
                schema.require_current(conn)
            seen = inspect_status.look(conn, window)
            lag = _lag(conn, offsets, seen)
        except (connections.DatabaseUnreachableError, psycopg.OperationalError) as error:
            click.echo(advice(error), err=True)
            if conn is not None:
                conn.close()
            conn = None
        else:
            found = health.problems(seen, max_age)
            if as_json:
                output.emit_json_line(render.as_document(seen, found, lag))
            else:
                if sys.stdout.isatty():
                    click.clear()
                render.show(seen, found, connections.place(dsn), lag)
        sys.stdout.flush()
        time.sleep(pause)
