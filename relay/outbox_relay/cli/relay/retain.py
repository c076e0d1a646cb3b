"""The options of `outbox relay run` by which it drops history."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import click

from outbox_relay.cli.options import add_options
from outbox_relay.retention.run import RetentionOptions
from outbox_relay.retention.service import RetentionService
from outbox_relay.text import durations

F = TypeVar("F", bound=Callable[..., Any])

WAIT_S = 10.0
"""Seconds for which each step tries again for a lock; the next run goes on."""

_OPTIONS = (
    click.option(
        "--retain",
        metavar="DURATION",
        envvar="OUTBOX_RETAIN",
        show_envvar=True,
        help="Drop history in which nothing changed for so long, such as 30d, as `outbox history drop` does. "
        "[default: never]",
    ),
    click.option(
        "--retain-without-warehouse",
        is_flag=True,
        envvar="OUTBOX_RETAIN_WITHOUT_WAREHOUSE",
        show_envvar=True,
        help="What --retain drops need not be in a warehouse.",
    ),
    click.option(
        "--retain-despite-certificates",
        is_flag=True,
        envvar="OUTBOX_RETAIN_DESPITE_CERTIFICATES",
        show_envvar=True,
        help="With --retain-without-warehouse: also where a warehouse has certificates.",
    ),
    click.option(
        "--retain-every",
        metavar="DURATION",
        default="1h",
        show_default=True,
        envvar="OUTBOX_RETAIN_EVERY",
        show_envvar=True,
        help="How often to try.",
    ),
    click.option(
        "--retain-dsn",
        metavar="DSN",
        envvar="OUTBOX_RETAIN_DSN",
        show_envvar=True,
        help="PostgreSQL as the owner of the tables, who alone may drop them. [default: as --dsn]",
    ),
)


def retain_options(command: F) -> F:
    """Add `--retain` and what belongs to it."""
    return add_options(command, _OPTIONS)


def retention(dsn: str, options: dict[str, Any]) -> AbstractContextManager[object]:
    """Return what drops history while the relay runs; nothing does without `--retain`.

    Raises:
        click.UsageError: the other options are given without `--retain`.
        DurationError: a duration cannot be read.
    """
    if options["retain"] is None:
        if options["retain_without_warehouse"] or options["retain_despite_certificates"]:
            raise click.UsageError(
                "--retain-without-warehouse and --retain-despite-certificates need --retain"
            )
        return nullcontext()
    every = durations.duration("--retain-every", options["retain_every"]).total_seconds()
    if every < 1:
        raise click.UsageError("--retain-every: expected 1s or more")
    chosen = RetentionOptions(
        older_than=durations.duration("--retain", options["retain"]),
        target=None,
        wait=WAIT_S,
        without_warehouse=options["retain_without_warehouse"],
        despite_certificates=options["retain_despite_certificates"],
    )
    return RetentionService(options["retain_dsn"] or dsn, chosen, every=every)
