"""`outbox checker`: runs the service that asks about undecided half messages."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

import click

from outbox_relay.calls.allow_list import AllowList
from outbox_relay.checker.askers.registered import Askers, trust
from outbox_relay.checker.inspect import Finding, inspect
from outbox_relay.checker.service import Checker, CheckerOptions
from outbox_relay.cli import output
from outbox_relay.cli.monitoring import http_options, serve
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option, log_options
from outbox_relay.cli.types import Number
from outbox_relay.database.connections import connect, name
from outbox_relay.database.schema import require_current
from outbox_relay.monitoring.checkers import observe_checker
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.operations.names import require_known
from outbox_relay.text import logs

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def checker() -> None:
    """Ask the producers of undecided half messages."""


def callback_options(command: F) -> F:
    """Add what the operator permits callbacks: a login for queries, hosts, networks, certificate authorities."""
    command = click.option(
        "--callback-dsn",
        envvar="OUTBOX_CALLBACK_DSN",
        show_envvar=True,
        metavar="DSN",
        help="Login by which registered queries run, of a user that may read just what they need: never the checker's "
        "own, which may read messages. Without it queries are refused.",
    )(command)
    command = click.option(
        "--callback-ca",
        type=click.Path(exists=True, dir_okay=False),
        envvar="OUTBOX_CALLBACK_CA",
        show_envvar=True,
        metavar="FILE",
        help="Certificates (PEM) of authorities to trust in addition to the system's.",
    )(command)
    command = click.option(
        "--allow-network",
        "networks",
        multiple=True,
        envvar="OUTBOX_ALLOW_NETWORK",
        show_envvar=True,
        metavar="CIDR",
        help="Network of addresses that are not public and may be called all the same, such as 10.20.0.0/16; "
        "repeatable (in the environment: separated by spaces).",
    )(command)
    return click.option(
        "--allow-callback",
        "hosts",
        multiple=True,
        envvar="OUTBOX_ALLOW_CALLBACK",
        show_envvar=True,
        metavar="HOST[:PORT]",
        help="Host that may be called; without PORT only at its scheme's own. Repeatable (in the environment: "
        "separated by spaces).",
    )(command)


def group_option(command: F) -> F:
    """Add `--group`: only these."""
    return click.option(
        "--group",
        "groups",
        multiple=True,
        envvar="OUTBOX_CHECKER_GROUP",
        show_envvar=True,
        metavar="NAME",
        help="Serve this producer group only; repeatable. Without it: all.",
    )(command)


def _askers(
    callback_dsn: str | None, hosts: tuple[str, ...], networks: tuple[str, ...], callback_ca: str | None
) -> Askers:
    try:
        allowed = AllowList.read(hosts, networks)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        tls = trust(callback_ca)
    except OSError as error:
        raise click.UsageError(f"--callback-ca {callback_ca}: no usable certificates: {error}") from error
    return Askers(callback_dsn, allowed, os.environ, tls)


@checker.command()
@dsn_option
@callback_options
@group_option
@click.option(
    "--connections",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    envvar="OUTBOX_CHECKER_CONNECTIONS",
    show_envvar=True,
    metavar="COUNT",
    help="Connections to PostgreSQL that groups share, in addition to the one that finds groups.",
)
@click.option(
    "--shutdown-timeout",
    type=Number(0, 3600),
    default=10.0,
    show_default=True,
    envvar="OUTBOX_SHUTDOWN_TIMEOUT",
    show_envvar=True,
    metavar="SECONDS",
    help="How long to wait for replies after SIGTERM.",
)
@http_options()
@log_options
def run(
    *,
    dsn: str,
    callback_dsn: str | None,
    hosts: tuple[str, ...],
    networks: tuple[str, ...],
    callback_ca: str | None,
    groups: tuple[str, ...],
    connections: int,
    shutdown_timeout: float,
    http: tuple[str, int] | None,
    livez: tuple[str, int] | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the checker until SIGTERM or SIGINT.

    It asks groups that have a callback (`outbox group set`), over HTTP or by a query, and applies every group's age
    limit, also of those that ask themselves in their application. It may start before PostgreSQL does and outlives
    its restarts; several may run side by side. HTTP callbacks are called only at hosts given here, with the secret in
    OUTBOX_CALLBACK_SECRET_<GROUP> or OUTBOX_CALLBACK_SECRET. Exit codes: 0 stopped, 1 failed, 2 wrong options.

    \b
    Examples:
      outbox checker run --allow-callback shop.example.com
      outbox checker run --callback-dsn postgresql://asks@db1/shop
      outbox checker run --allow-callback shop.internal:8443 --allow-network 10.20.0.0/16 --log-format json
      outbox checker run --group payments --group orders
    """
    logs.setup(log_format, log_level)
    askers = _askers(callback_dsn, hosts, networks, callback_ca)
    service = Checker(CheckerOptions(dsn, groups, connections, shutdown_timeout), askers)

    def stop(number: int, frame: FrameType | None) -> None:
        service.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    monitoring = Monitoring()
    observe_checker(monitoring, name(dsn), service)
    with ExitStack() as stack:
        serve(stack, monitoring, http, livez)
        service.run()


@checker.command()
@dsn_option
@callback_options
@group_option
@json_option
def check(
    *,
    dsn: str,
    callback_dsn: str | None,
    hosts: tuple[str, ...],
    networks: tuple[str, ...],
    callback_ca: str | None,
    groups: tuple[str, ...],
    as_json: bool,
) -> None:
    """Report whether a checker with these options could ask each registered group; call none.

    Checks the callback as it is registered, the allow-list, the addresses that the host resolves to now, and whether
    a secret or the other database's address is in the environment. Exit codes: 0 all can be asked, 1 some cannot.

    \b
    Example:
      outbox checker check --allow-callback shop.example.com
    """
    askers = _askers(callback_dsn, hosts, networks, callback_ca)
    with connect(dsn, application_name="outbox checker check") as conn:
        require_current(conn)
        for name in groups:
            require_known(conn, producer_group=name)
        findings = inspect(conn, askers, groups)
    if as_json:
        output.emit_json([finding._asdict() for finding in findings])
    elif findings:
        output.table(Finding._fields, findings, text=("problem",))
    else:
        click.echo("No group has a callback: register one with outbox group set.")
    if any(finding.problem for finding in findings):
        raise click.exceptions.Exit(1)
