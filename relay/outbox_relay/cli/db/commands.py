"""`outbox db`: create, upgrade and check the schema, and maintain its partitions."""

from __future__ import annotations

from dataclasses import asdict

import click

from outbox_migrations import api, sql_files
from outbox_relay.cli import output
from outbox_relay.cli.checks import show_and_exit
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option
from outbox_relay.database import connections, schema
from outbox_relay.operations import database_checks, debezium, partitions
from outbox_relay.text import formatting

DAYS = 7
ROLES = (
    "0001_roles.sql",
    "0001_inbox_roles.sql",
    "0001_subject_key_roles.sql",
    "0004_consumer_group_roles.sql",
    "0004_grants.sql",
)


@click.group(
    cls=CommandGroup,
    absent={
        "downgrade": "a schema is not taken back; check whether earlier software works with it: outbox db check"
    },
)
def db() -> None:
    """Create, upgrade and check the schema.

    Everything lives in the PostgreSQL schema "outbox", with a version table of its own there: the alembic of the
    application next to it is left alone.
    """


@db.command()
@dsn_option
@json_option
def upgrade(dsn: str, as_json: bool) -> None:
    """Bring the schema to this version, and make partitions for the coming days.

    One transaction: after a failure nothing has changed. Two upgrades at once do the work once. Run it before
    starting a new version of the relay. What belongs to others than the schema's owner is refused.

    \b
      outbox db upgrade --dsn postgresql://owner@host/shop
    """
    with connections.connect(dsn) as conn:
        _refuse_newer(conn)
    try:
        before = api.upgrade(dsn)
    except (
        api.UnsupportedServerError,
        api.UnknownRevisionError,
        api.UpgradeBlockedError,
        api.UpgradeRefusedError,
    ) as error:
        raise click.ClickException(str(error)) from None
    with connections.connect(dsn) as conn:
        added = partitions.ensure(conn, DAYS)
        found = partitions.read(conn)
        owner, roles = database_checks.owner(conn), database_checks.roles(conn, upgraded=True)
    if before.current is None:
        added = len(found.all)
    result = {
        "database": connections.place(dsn),
        "from": before.current,
        "to": max(before.head, before.current or before.head),
        "partitions_added": added,
        "partitions": len(found.all),
        "last_id": found.all[-1].upper - 1,
        "owner": owner,
        "roles": roles.found,
    }
    if as_json:
        output.emit_json(result)
        return
    click.echo(result["database"])
    if before.is_current:
        click.echo(f"schema      {before.current}, nothing to do")
    else:
        click.echo(f"schema      {before.current or 'none'} → {before.head}")
    click.echo(
        f"partitions  {len(found.all)}, {added} made now; room for {formatting.count(found.ids_left)} more messages"
    )
    click.echo(f"owner       {owner}")
    if roles.repair:
        click.echo(f"roles       {roles.found}\n{roles.repair}")


def _refuse_newer(conn: connections.Connection) -> None:
    if schema.find(conn).is_newer:
        schema.require_current(conn)


@db.command()
@dsn_option
@json_option
def check(dsn: str, as_json: bool) -> None:
    """Report whether the database is fit for the outbox; exit with 1 when it is not.

    Checks the server's version, encoding, role and settings, the schema's version and owner, functions of strangers
    that it calls, the partitions ahead and the roles. Each finding comes with the command that repairs it. A
    warning does not fail the check.
    """
    with connections.connect(dsn) as conn:
        found = database_checks.run(conn)
    show_and_exit(dsn, found, as_json=as_json)


@db.command()
@click.option("--from", "from_revision", metavar="REVISION", help="Only what is newer than this revision.")
@click.option("--roles", is_flag=True, help="Only roles and grants; may be run again at any time.")
def sql(from_revision: str | None, roles: bool) -> None:
    """Print the DDL, for people who apply it themselves.

    \b
      outbox db sql > outbox.sql
      psql -v ON_ERROR_STOP=1 -f outbox.sql "$OUTBOX_DSN"
    """
    try:
        if roles:
            click.echo(api.as_transaction(map(sql_files.text, ("settings.sql", *ROLES))), nl=False)
        else:
            click.echo(api.sql(from_revision), nl=False)
    except api.UnknownRevisionError as error:
        raise click.UsageError(f"--from: {error}") from None


@db.command("debezium")
@dsn_option
def debezium_(dsn: str) -> None:
    """Print a connector of Debezium that publishes the messages instead of the relay, as JSON for Kafka Connect.

    It reads outbox.message through the publication outbox_debezium, which docs/how-to/debezium.md creates; that page
    lists what Debezium does not publish. The file has no password: Kafka Connect reads PGPASSWORD.

    \b
      outbox db debezium > connector.json
      curl --json @connector.json http://connect:8083/connectors
    """
    output.emit_json(debezium.connector(dsn))


@db.command("partitions")
@dsn_option
@click.option(
    "--ensure",
    "days",
    type=click.IntRange(1, 60),
    metavar="DAYS",
    help="First make partitions for this many days at the present rate (relay and checker do it by themselves: 7).",
)
@json_option
def partitions_(dsn: str, days: int | None, as_json: bool) -> None:
    """List the partitions: bounds, rows, size, and how long they last.

    Rows are estimated from statistics. Sizes cover messages, publications and events with their indexes. A table
    is named after its first id: outbox.message_p000000002000001 (--json has the names).
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        added = None if days is None else partitions.ensure(conn, days)
        found = partitions.read(conn)
    if as_json:
        output.emit_json(
            {
                "added": added or 0,
                "newest_id": found.newest_id,
                "ids_per_second": found.per_second,
                "ids_left": found.ids_left,
                "seconds_left": found.seconds_until(found.newest_id + found.ids_left),
                "ahead": found.ahead,
                "partitions": [
                    {**asdict(p), "place": found.place(p), "seconds_until_full": found.seconds_until(p.upper)}
                    for p in found.all
                ],
            }
        )
        return
    if added is not None:
        click.echo(f"{formatting.many(added, 'partition')} added" if added else "nothing to add")
    output.table(
        ["place", "from id", "to id", "rows ~", "size", "full in"],
        [
            (
                found.place(p),
                formatting.count(p.lower),
                formatting.count(p.upper - 1),
                formatting.count(p.rows),
                formatting.size(p.size),
                None if found.place(p) == "full" else formatting.seconds(found.seconds_until(p.upper)),
            )
            for p in found.all
        ],
        right=("from id", "to id", "rows ~", "size", "full in"),
        keep=("place", "from id", "to id"),
    )
    if found.ahead < 1:
        click.echo("ALARM: the next partition is missing. run: outbox db partitions --ensure 7", err=True)
