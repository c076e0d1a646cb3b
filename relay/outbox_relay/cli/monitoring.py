"""The options `--http` and `--livez` of commands that run for long."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import click

from outbox_relay.monitoring.server import Monitoring, MonitoringServer

F = TypeVar("F", bound=Callable[..., Any])

LOOPBACK = "127.0.0.1"
MOST = 65_535
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):)?(?P<port>[0-9]{1,5})", re.ASCII)


class Address(click.ParamType[Any]):
    """Where to listen: a port of loopback, or an address and a port."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Read it.

        Raises:
            click.BadParameter: it is not of that form.
        """
        if isinstance(value, tuple):
            return value
        found = _ADDRESS.fullmatch(value)
        if found is None or int(found["port"]) > MOST:
            self.fail(
                f"{value!r} is not an address; expected PORT (on {LOOPBACK} only), or HOST:PORT, such as 0.0.0.0:9464 "
                "for all addresses of this machine",
                param,
                ctx,
            )
        return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


def http_options(*, required: bool = False) -> Callable[[F], F]:
    """Add `--http`, where monitoring systems read, and `--livez`, where an orchestrator asks."""

    def add(command: F) -> F:
        command = click.option(
            "--livez",
            type=Address(),
            envvar="OUTBOX_LIVEZ",
            show_envvar=True,
            metavar="[HOST:]PORT",
            help="With --http: serve /livez here too, by a listener of its own, which no other client reaches.",
        )(command)
        return click.option(
            "--http",
            type=Address(),
            required=required,
            envvar="OUTBOX_HTTP",
            show_envvar=True,
            metavar="[HOST:]PORT",
            help=f"Serve /livez, /readyz and /metrics here; without HOST on {LOOPBACK} only.",
        )(command)

    return add


def serve(
    stack: ExitStack, monitoring: Monitoring, http: tuple[str, int] | None, livez: tuple[str, int] | None
) -> None:
    """Serve what the options ask for, until the stack is closed.

    Raises:
        click.UsageError: `--livez` without `--http`.
        AddressError: an address is taken, or not of this machine.
    """
    if http is not None:
        stack.enter_context(MonitoringServer(*http, monitoring, livez=livez))
    elif livez is not None:
        raise click.UsageError("--livez is a second listener; it needs --http, where the other pages are")
