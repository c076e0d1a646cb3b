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
