"""`outbox dev`: PostgreSQL, Kafka, schema, relay and checker in one terminal."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from outbox_local.dev.run import ENDING, Session, run_session
from outbox_local.dev.screen import Screen
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.options import from_option, given_servers_options, state_option
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.state import state_directory
from outbox_relay.cli.options import Command, json_option
from outbox_relay.cli.topic.options import legal_name

PORT = click.IntRange(1_024, 65_535)
"""PostgreSQL does not run as root, so it could not bind a port below."""


def _legal_names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(legal_name(ctx, param, value) for value in values)


@click.command(cls=Command)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    callback=_legal_names,
    help="Create and register this topic unless it is there; repeatable.",
)
@click.option("--fresh", is_flag=True, help="Begin without the data of the last time.")
@click.option(
    "--allow-callback",
    "callbacks",
    multiple=True,
    envvar="OUTBOX_ALLOW_CALLBACK",
    show_envvar=True,
    metavar="HOST[:PORT]",
    help="Host that the checker may call, on this machine too, such as localhost:8000; repeatable.",
)
@click.option(
    "--postgres-port",
    type=PORT,
    metavar="PORT",
    help="Port of PostgreSQL.  [default: that of the last time, at first any]",
)
@click.option(
    "--kafka-port",
    type=PORT,
    metavar="PORT",
    help="Port of Kafka.  [default: that of the last time, at first any]",
)
@given_servers_options("Use this PostgreSQL.")
@from_option("Where servers may come from, as for `outbox up`.")
@state_option("Directory of the stack: data, logs and state file.")
@json_option
@click.pass_context
def dev(
    ctx: click.Context,
    *,
    topics: tuple[str, ...],
    fresh: bool,
    callbacks: tuple[str, ...],
    postgres_port: int | None,
    kafka_port: int | None,
    dsn: str,
    bootstrap_servers: str,
    origins: str,
    state: Path,
    as_json: bool,
) -> None:
    """Run all that a service needs, in this terminal, until Ctrl-C.

    It starts PostgreSQL and Kafka as `outbox up` does, or uses those that `outbox up` started here; upgrades the
    schema; runs a relay, a checker and the console, and prints the lines of all, with the console's address. The
    exports that it prints point your service and every command at them.

    Ctrl-C stops relay, checker and console, and then the servers that it started. Their data stays. A relay or
    checker that you kill is started again; one that fails ends everything. Their options come from the
    environment and from `outbox --config FILE`. With --json each line is an object that names its process.
    Exit codes: 0 stopped, or it runs here already; 1 refused or failed; 2 wrong options.

    \b
    Examples:
      outbox dev --topic orders
      outbox dev --postgres-port 5432 --kafka-port 9092
      outbox dev --allow-callback localhost:8000
      outbox dev --fresh
    """
    for number in ENDING:  # until the processes run: what was started is ended
        signal.signal(number, signal.default_int_handler)
    session = Session(
        directory=state_directory(state),
        options=StackOptions(
            dsn, bootstrap_servers, AllowedOrigins(origins), postgres_port or 0, kafka_port or 0, fresh
        ),
        topics=topics,
        callbacks=callbacks,
        config=ctx.find_root().params.get("config"),
    )
    run_session(session, Screen(as_json=as_json))
