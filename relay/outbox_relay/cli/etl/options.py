"""The options of `outbox etl`, made from the job's own, and what they are to the job: arguments of the same names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from outbox_etl.options import parser as job
from outbox_etl.options.option import Option
from outbox_etl.options.settings import COMMON_OPTIONS

F = TypeVar("F", bound=Callable[..., Any])


def _need_warehouse(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value and not ctx.resilient_parsing:
        raise click.UsageError(
            "no warehouse given: use --warehouse (a path will do), or set OUTBOX_WAREHOUSE", ctx
        )
    return value


def _pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if any(not text.partition("=")[0].strip() or "=" not in text for text in value):
        # Not repeated in the error: the text may be half of a password.
        raise click.BadParameter("give NAME=VALUE", ctx, param)
    return value


SHARED = {"--dsn", "--bootstrap-servers", "--kafka-config"}
"""Options that other commands have too: they are the same everywhere."""
DEFAULTS = {"--master": ("local[*]", ""), "--jars": ("", "fetched once and checked")}
"""Defaults that differ here, where there is no spark-submit, and what the help states in their place."""
CALLBACKS = {"--warehouse": _need_warehouse}


def etl_options(*options: Option) -> Callable[[F], F]:
    """Add the job's options to a command: these of its own, then those that every command has."""
    added = [option for option in (*options, *COMMON_OPTIONS) if option.name not in SHARED]

    def add(command: F) -> F:
        for option in reversed(added):
            command = _option(option)(command)
        return command

    return add


def _option(option: Option) -> Callable[[F], F]:
    """One option of the job as click has it."""
    if option.flag:
        return click.option(option.name, is_flag=True, help=option.help)
    kind = (
        click.Choice(option.choices)
        if option.choices
        else click.IntRange(*option.limits)
        if option.limits
        else str
    )
    default, text = DEFAULTS.get(option.name, (option.default, option.default_text))
    return click.option(
        option.name,
        type=kind,
        multiple=option.repeated,
        default=None if option.repeated else default,
        show_default=text or bool(default),
        envvar=option.twin or None,
        show_envvar=bool(option.twin),
        metavar=None if option.choices else option.metavar,
        callback=_pairs if "=" in option.metavar else CALLBACKS.get(option.name),
        help=option.help,
    )


def arguments(given: Mapping[str, Any]) -> list[str]:
    """Write options as the job's arguments: `--name=value`, so that a value may begin with a dash."""
    found = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found += [option] if value else []
        elif isinstance(value, (tuple, list)):
            found += [f"{option}={each}" for each in value]
        elif isinstance(value, Mapping):
            found += [f"{option}={key}={each}" for key, each in value.items()]
        elif value not in ("", None):
            found.append(f"{option}={value}")
    return found


def secrets(given: Mapping[str, Any]) -> set[str]:
    """The passwords in the options, to be removed from whatever the job or Java prints."""
    kafka = [f"{name}={value}" for name, value in given.get("kafka_config", {}).items()]
    return job.secrets(Namespace(**{**given, "kafka_config": kafka}))
