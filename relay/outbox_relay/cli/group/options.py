"""The options of `outbox group set`: durations, the policy, and how a group is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from outbox.durations import LONGEST
from outbox.errors import InvalidGroupError
from outbox.operations.groups import require_name
from outbox_relay.checker.callback import validate_callback
from outbox_relay.text import durations

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[timedelta]):
    """A span such as 30s or 10min, ten years at most."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Read it."""
        if isinstance(value, timedelta):
            return value
        seconds = durations.read_seconds(value)
        if seconds is None or timedelta(seconds=seconds) > LONGEST:
            self.fail(f"{value!r} is not a duration; expected {durations.ALLOWED}; 3650d at most", param, ctx)
        return timedelta(seconds=seconds)


def duration_option(name: str, text: str) -> Callable[[F], F]:
    """Add an option that takes a duration."""
    return click.option(name, type=Duration(), metavar="DURATION", help=text)


def group_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Check the library's rule for names of groups."""
    try:
        return require_name("name", value)
    except InvalidGroupError as error:
        raise click.BadParameter(str(error), ctx, param) from None


group_argument = click.argument("name", callback=group_name)


def callback_of(
    url: str | None, query: str | None, dsn_env: str | None, role: str | None, *, none: bool
) -> dict[str, Any]:
    """Read the callback's options into a change of the group: empty when none was given.

    Raises:
        click.UsageError: they contradict one another.
        click.UsageError: the callback cannot be used; names each problem.
    """
    chosen = [
        option
        for option, given in (("--callback-url", url), ("--callback-sql", query), ("--no-callback", none))
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} contradict each other: give one of them")
    if query is None and (dsn_env or role):
        raise click.UsageError("--callback-dsn-env and --callback-role belong to --callback-sql")
    if none:
        return {"callback": None}
    if not chosen:
        return {}
    callback: dict[str, Any] = (
        {"kind": "http", "url": url}
        if query is None
        else {"kind": "sql", "query": query}
        | ({"dsn_env": dsn_env} if dsn_env else {})
        | ({"role": role} if role else {})
    )
    problems = validate_callback(callback)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise click.UsageError(f"{chosen[0]} cannot be used:{listed}")
    return {"callback": callback}
