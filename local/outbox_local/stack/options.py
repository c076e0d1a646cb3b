"""The options of commands that use a local stack: where it is kept, and where its servers may come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from outbox_local.stack.choice import AllowedOrigins

F = TypeVar("F", bound=Callable[..., Any])


def state_option(text: str) -> Callable[[F], F]:
    """Add `--state`, with this help."""
    return click.option(
        "--state",
        envvar="OUTBOX_STATE",
        default=".outbox",
        show_default=True,
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        help=text,
    )


def from_option(text: str) -> Callable[[F], F]:
    """Add `--from`, with this help; the command is given the value of an `AllowedOrigins`."""
    return click.option(
        "--from",
        "origins",
        envvar="OUTBOX_STACK_FROM",
        show_envvar=True,
        type=click.Choice([each.value for each in AllowedOrigins]),
        default=AllowedOrigins.AUTO.value,
        show_default=True,
        help=text,
    )


def given_servers_options(postgres: str, kafka: str = "Use this Kafka.") -> Callable[[F], F]:
    """Add `--dsn` and `--bootstrap-servers`, with these helps: servers that are used instead of any of a stack."""

    def add(command: F) -> F:
        for option in (
            click.option(
                "--bootstrap-servers",
                envvar="OUTBOX_BOOTSTRAP_SERVERS",
                show_envvar=True,
                default="",
                metavar="HOST:PORT,…",
                help=kafka,
            ),
            click.option(
                "--dsn", envvar="OUTBOX_DSN", show_envvar=True, default="", metavar="DSN", help=postgres
            ),
        ):
            command = option(command)
        return command

    return add
