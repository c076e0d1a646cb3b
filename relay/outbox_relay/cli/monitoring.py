"""The option `--http` of commands that run for long."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

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


def http_option(*, required: bool = False) -> Callable[[F], F]:
    """Add `--http`: where monitoring systems read."""
    return click.option(
        "--http",
        type=Address(),
        required=required,
        envvar="OUTBOX_HTTP",
        show_envvar=True,
        metavar="[HOST:]PORT",
        help=f"Serve /livez, /readyz and /metrics here; without HOST on {LOOPBACK} only.",
    )
