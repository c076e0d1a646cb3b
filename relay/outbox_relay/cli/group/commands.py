"""`outbox group`: producer groups, how their half messages are asked about, and what checkers report of them."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from outbox.operations.groups import MOST_CHECKS, MOST_WORKERS
from outbox_relay.checker.askers.sql import DSN, SqlAsker
from outbox_relay.checker.callback import CallbackError, SqlCallback, read_callback
from outbox_relay.cli import output
from outbox_relay.cli.group import render
from outbox_relay.cli.group.options import callback_of, duration_option, group_argument
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option
from outbox_relay.cli.types import Choice
from outbox_relay.database import connections, schema
from outbox_relay.operations import groups as registry
from outbox_relay.operations import names
from outbox_relay.operations.groups import POLICIES, TYPES, HalfMessageCounts, ProducerGroup, RegisteredGroup

PLANNED_WITHIN_S = 5.0


@click.group(cls=CommandGroup, first=("set",))
def group() -> None:
    """Producer groups: how their half messages are asked about.

    A half message carries the name of its producer group, and the group can report what became of the local
    transaction: by an application that runs the group's checker, or by the callback that is registered here. A group
    that is not registered has the defaults.
    """


@group.command("ls")
@dsn_option
@json_option
def ls(dsn: str, as_json: bool) -> None:
    """List the groups: registered ones, and those with half messages to decide, with their alarms."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        registered = {one.name: one for one in registry.everything(conn)}
        counts = registry.half_message_counts(conn)
        alarms = registry.alarms(conn)
    names = sorted({*registered, *counts, *(one.producer_group for one in alarms)})
    groups = [registered.get(name, RegisteredGroup(ProducerGroup(name))) for name in names]
    if as_json:
        output.emit_json(
            [
                render.document(
                    one,
                    [alarm for alarm in alarms if alarm.producer_group == one.name],
                    counts.get(one.name, HalfMessageCounts(one.name)),
                )
                for one in groups
            ]
        )
    else:
        render.show_list(groups, alarms, counts)


@group.command()
@group_argument
@dsn_option
@json_option
def show(name: str, dsn: str, as_json: bool) -> None:
    """Show one group: settings, alarms, and how much of it is undecided."""
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found = registry.find(conn, name)
        if not found.registered:
            names.require_known(conn, producer_group=name)
        _show(conn, found, as_json)


def _show(conn: connections.Connection, found: RegisteredGroup, as_json: bool, said: str = "") -> None:
    alarms = registry.alarms(conn, found.name)
    counts = registry.half_message_counts(conn, found.name).get(found.name, HalfMessageCounts(found.name))
    if as_json:
        output.emit_json(render.document(found, alarms, counts))
    else:
        render.one(found, alarms, counts, said)


def _warn_of_query(found: RegisteredGroup, dsn: str) -> None:
    """Warn when the registered query cannot run, by planning it as a checker would."""
    try:
        callback = None if found.callback is None else read_callback(found.callback)
    except CallbackError:  # written by hand; `outbox checker check` names what is wrong
        return
    if not isinstance(callback, SqlCallback) or (callback.dsn_env and callback.dsn_env not in os.environ):
        return
    asker = SqlAsker(callback, os.environ.get(DSN) or dsn, os.environ, connections=1)
    try:
        problem = asker.problem(time.monotonic() + PLANNED_WITHIN_S)
    finally:
        asker.close()
    if problem is not None:
        click.echo(
            f"warning: {problem}\nuntil that is repaired every check of group {found.name} fails; "
            "see: outbox checker check",
            err=True,
        )


@group.command("set")
@group_argument
@click.option(
    "--type",
    "message_type",
    type=Choice(TYPES),
    metavar="TYPE",
    help="What its producers send: NORMAL, TRANSACTION (half messages), MIXED (both). Set once: it never changes. "
    "[default for a new group: MIXED]",
)
@duration_option("--check-after", "When a half message is first asked about, unless it has its own delay.")
@duration_option("--check-interval", "Then every so often, doubling up to --max-check-interval.")
@duration_option("--max-check-interval", "Longest time between two checks.")
@duration_option("--check-timeout", "How long an answer may take; longer is UNKNOWN.")
@click.option(
    "--max-checks",
    type=click.IntRange(1, MOST_CHECKS),
    metavar="N",
    help="Checks that count, then the policy decides.",
)
@duration_option("--max-age", "Age at which the policy decides, whatever the checks.")
@click.option(
    "--policy",
    type=Choice(POLICIES),
    metavar="POLICY",
    help="What becomes of undecided ones: ROLLBACK, or EXHAUSTED (left to an operator).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, MOST_WORKERS),
    metavar="N",
    help=f"Checks of this group at the same time, 1 to {MOST_WORKERS}.",
)
@click.option("--callback-url", metavar="URL", help="Ask by a signed HTTP request to this URL.")
@click.option(
    "--callback-sql",
    metavar="QUERY",
    help="Ask by a read-only query; it may name %(biz_id)s, %(transaction_id)s, …",
)
@click.option(
    "--callback-dsn-env",
    metavar="NAME",
    help="Variable in the checker's environment, whose name begins with OUTBOX_CALLBACK_DSN and an underscore, that "
    "holds the connection string of the query. [default: its --callback-dsn]",
)
@click.option("--callback-role", metavar="NAME", help="Database role that the query runs as.")
@click.option(
    "--role",
    metavar="NAME",
    help="Only members of this database role may decide and cancel the group's messages (checkers and operators always "
    "may). An empty NAME: everybody with the role outbox_producer.",
)
@click.option(
    "--no-callback", is_flag=True, help="Asked in process only: an application runs the group's checker."
)
@dsn_option
@json_option
def set_(
    *,
    name: str,
    callback_url: str | None,
    callback_sql: str | None,
    callback_dsn_env: str | None,
    callback_role: str | None,
    no_callback: bool,
    dsn: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Register a group, or change what is given of a registered one.

    \b
      outbox group set payments --type TRANSACTION --policy EXHAUSTED
      outbox group set payments --check-after 1min --max-age 12h
      outbox group set payments --callback-url https://pay.internal/outbox/check
      outbox group set orders --callback-sql \\
          "SELECT answer FROM order_outcome WHERE id = %(biz_id)s"

    Checkers notice within their next turn. Secrets are never stored: what signs requests, and connection strings,
    are in the checker's environment, and so is the list of hosts that it may call. Needs the schema's owner, or a role
    that may update outbox.producer_group.
    """
    changes = {
        name_: value.upper() if isinstance(value, str) else value
        for name_, value in options.items()
        if value is not None
    }
    if "role" in changes:
        changes["role"] = options["role"] or None
    changes |= callback_of(callback_url, callback_sql, callback_dsn_env, callback_role, none=no_callback)
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        found, new = registry.change(conn, name, changes)
        _warn_of_query(found, dsn)
        said = f"registered group {name}" if new else f"changed group {name}"
        _show(conn, found, as_json, said if new or changes else f"group {name} is unchanged")
