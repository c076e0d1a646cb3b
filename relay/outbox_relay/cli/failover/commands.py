"""`outbox failover`: which servers took over, and which published messages their database does not have."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime

import click
import psycopg

from outbox_relay.cli import output
from outbox_relay.cli.failover import render
from outbox_relay.cli.options import (
    CommandGroup,
    bootstrap_servers_option,
    dsn_option,
    json_option,
    kafka_config_option,
)
from outbox_relay.database import connections, schema
from outbox_relay.operations import failovers, filters, lost_messages
from outbox_relay.operations.failovers import Failover
from outbox_relay.operations.lost_messages import LostMessage, Scan
from outbox_relay.text import durations, formatting
from outbox_relay.text.errors import OperatorError

PROGRESS_EVERY_S = 2.0


@click.group(cls=CommandGroup)
def failover() -> None:
    """After a fail-over or a restore: what Kafka has and the database lost.

    A standby that lagged, or a backup, lacks the newest transactions. What the relay had published of them is in Kafka
    only, and no tool can bring the transactions back. The relay notices the change of servers by itself; everything
    that is still in the database is published, in order.
    """


@failover.command("ls")
@dsn_option
@json_option
def ls(dsn: str, as_json: bool) -> None:
    """List the servers that took over, the newest first, and what a scan found after each."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = failovers.everything(conn)
    if as_json:
        output.emit_json([asdict(one) for one in found])
    elif found:
        render.servers(found)
    else:
        click.echo("no other server took over")


@failover.command()
@click.option(
    "--since",
    metavar="TIME",
    help="Read records that are younger than this, such as 2026-11-20T08:00Z. [default: what the last server that took "
    "over may lack]",
)
@click.option(
    "--margin",
    metavar="DURATION",
    default="10min",
    show_default=True,
    help="Begin so much earlier: the most by which the clocks of the lost server and its relay may have differed.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME",
    multiple=True,
    help="Read this topic only; repeatable. [default: registered topics, and those of the newest messages]",
)
@dsn_option
@bootstrap_servers_option
@kafka_config_option
@json_option
def scan(
    *,
    since: str | None,
    margin: str,
    topics: tuple[str, ...],
    dsn: str,
    bootstrap_servers: str,
    kafka: dict[str, str],
    as_json: bool,
) -> None:
    """List messages that are in Kafka and whose transactions were lost, by id; exit with 1 when there are any.

    Reads the topics from the last publication that the database has, and finds the row of every message id. Stop the
    lost server first: what a relay that is still connected to it publishes later is not seen. Read only topics that
    this outbox alone publishes to. A scan of all topics states its result in `outbox failover ls`, and `outbox status`
    is content; that needs the role outbox_operator.

    \b
    Examples:
      outbox failover scan
      outbox failover scan --json | jq -r '.lost[].message_id'
      outbox failover scan --since 2026-11-20T08:00Z --topic orders
    """
    allowance = durations.duration("--margin", margin)
    wanted, _ = filters.period(since, None)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = failovers.everything(conn)
        if wanted is None:
            begin = failovers.scan_from(conn, _open(found)[-1], allowance)
        else:
            begin = filters.at(wanted, datetime.now(UTC))
        if begin is None:
            raise OperatorError(
                "the database holds no publication of the lost server, so it is not known where to begin\n"
                "name a time before the loss: outbox failover scan --since TIME"
            )
        names = topics or lost_messages.topics(conn)
        run = Scan(conn, bootstrap_servers, kafka, names, begin, are_named=bool(topics))
        lost = _run(run, as_json=as_json)
        for one in [] if topics or not found else _open(found):
            first = failovers.scan_from(conn, one, allowance)
            if first is None or begin <= first:
                _note(conn, one, run.counts.lost)
    if as_json:
        output.emit_json(
            {
                "since": begin,
                "topics": list(run.topics),
                **asdict(run.counts),
                "lost": [render.document(one) for one in lost],
            }
        )
    else:
        click.echo(render.summary(run.counts))
        for line in render.remarks(run.counts):
            click.echo(line, err=True)
    sys.exit(1 if lost else 0)


def _open(found: list[Failover]) -> list[Failover]:
    """Return the servers after which nothing was scanned, the newest first; or else the newest, to scan it again."""
    if not found:
        raise OperatorError(
            "no relay noticed that another server took over\n"
            "start one (outbox relay run), or name a time before the loss: outbox failover scan --since TIME"
        )
    return [one for one in found if one.scanned_at is None] or found[:1]


def _run(run: Scan, *, as_json: bool) -> list[LostMessage]:
    """Scan, and show what is lost as it is found; progress on standard error while it takes long."""
    if not as_json:
        names = ", ".join(map(formatting.printable, run.topics))
        click.echo(f"reading {names or 'no topic'} from {formatting.cell(run.since)}", err=True)
    found, shown = [], time.monotonic()
    for page in run.run():
        found += page
        if as_json:
            continue
        for one in page:
            click.echo(render.line(one))
        if time.monotonic() - shown > PROGRESS_EVERY_S:
            shown, counts = time.monotonic(), run.counts
            click.echo(
                f"{formatting.many(counts.records, 'record')} read, {counts.partitions_read} of "
                f"{formatting.many(counts.partitions, 'partition')} done",
                err=True,
            )
    return found


def _note(conn: psycopg.Connection, failover: Failover, lost: int) -> None:
    try:
        failovers.note(conn, failover, lost)
    except psycopg.errors.InsufficientPrivilege:
        click.echo("the result is not stated: that needs the role outbox_operator", err=True)
