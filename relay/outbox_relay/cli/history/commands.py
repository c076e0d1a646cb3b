"""`outbox history`: what of the history may go, and letting it go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import wraps
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.cli.options import CommandGroup, dsn_option, json_option
from outbox_relay.database import connections, schema
from outbox_relay.retention.removal import only_removal
from outbox_relay.retention.run import RangeResult, Retention, RetentionOptions
from outbox_relay.text import durations, formatting


@click.group(cls=CommandGroup)
def history() -> None:
    """See which partitions may be dropped, and drop them.

    A partition goes when it is complete (no transaction can still insert into it), final (nothing in it is undecided,
    dead, waiting or unpublished), exported and verified (`outbox etl reconcile` certifies that), and old enough. With
    --without-warehouse it need not be exported.
    """


def _retention_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that both share besides --older-than, and pass them on as one `chosen`."""

    @wraps(command)
    def with_chosen(
        *,
        older_than: str,
        target: str | None,
        wait: str,
        without_warehouse: bool,
        despite_certificates: bool,
        **others: Any,
    ) -> None:
        if despite_certificates and not without_warehouse:
            raise click.UsageError("--despite-certificates needs --without-warehouse")
        if without_warehouse and target is not None:
            raise click.UsageError("--target and --without-warehouse contradict each other: give one of them")
        chosen = RetentionOptions(
            older_than=durations.duration("--older-than", older_than),
            target=target,
            wait=durations.duration("--wait", wait).total_seconds(),
            without_warehouse=without_warehouse,
            despite_certificates=despite_certificates,
        )
        command(chosen=chosen, **others)

    for option in (
        click.option(
            "--target",
            metavar="NAME",
            help="The warehouse whose certificates count, by the name that `outbox etl` prints. [default: each that "
            "has any must have certified it]",
        ),
        click.option(
            "--without-warehouse",
            is_flag=True,
            help="What is dropped need not be in a warehouse. Refused where a warehouse has certificates.",
        ),
        click.option(
            "--despite-certificates",
            is_flag=True,
            help="With --without-warehouse: also where a warehouse has certificates, which then has gaps.",
        ),
        click.option(
            "--wait",
            metavar="DURATION",
            default="30s",
            show_default=True,
            help="How long to wait for a transaction or a lock in the way; other sessions are not blocked.",
        ),
    ):
        with_chosen = option(with_chosen)
    return with_chosen


@history.command()
@click.option(
    "--older-than",
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="The retention: nothing in it changed for so long, such as 30d.",
)
@_retention_options
@dsn_option
@json_option
def ls(*, chosen: RetentionOptions, dsn: str, as_json: bool) -> None:
    """List the partitions and what keeps each from being dropped.

    Reads every partition that is full, which takes seconds per million messages. Changes nothing, and needs no more
    than to read.
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        run = Retention(conn, chosen)
        found = list(run.preview())
    if as_json:
        output.emit_json({"targets": run.targets, "partitions": [_fields(outcome) for outcome in found]})
        return
    _table(found)
    click.echo(_counting(run))


@history.command()
@click.option(
    "--older-than",
    metavar="DURATION",
    required=True,
    help="The retention: only what did not change for so long, such as 30d.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be dropped; change nothing.")
@_retention_options
@dsn_option
@json_option
def drop(*, chosen: RetentionOptions, dry_run: bool, dsn: str, as_json: bool) -> None:
    """Drop the partitions that may go; exit with 1 when one that is old enough has to stay.

    Messages, publications and events of one range of ids leave together. Producers and the relay go on meanwhile. It
    may be killed at any time: the next run finishes, or takes back, what was begun. Needs the owner of the tables.

    \b
      outbox history drop --older-than 30d --dry-run
      outbox history drop --older-than 30d
      outbox history drop --older-than 30d --target /data/warehouse
      outbox history drop --older-than 30d --without-warehouse
    """
    found: list[RangeResult] = []
    tidied = (0, 0)
    with connections.connect(dsn, application_name="outbox history") as conn:
        schema.require_current(conn)
        with nullcontext() if dry_run else only_removal(conn):
            run = Retention(conn, chosen)
            for outcome in run.preview() if dry_run else run.drop():
                found.append(outcome)
                if not as_json:
                    click.echo(_line(outcome))
            if not dry_run:
                tidied = run.tidy()
    refused = sum(1 for outcome in found if outcome.outcome == "refused")
    if as_json:
        output.emit_json(
            {
                "targets": run.targets,
                "older_than": chosen.older_than.total_seconds(),
                "dry_run": dry_run,
                "refused": refused,
                "partitions": [_fields(outcome) for outcome in found],
                "idempotency_keys": tidied[0],
                "pending_checks": tidied[1],
            }
        )
    else:
        _summary(found, tidied, dry_run=dry_run)
        click.echo(_counting(run))
    sys.exit(1 if refused else 0)


def _counting(run: Retention) -> str:
    if run.targets is None:
        return "without a warehouse: no certificate is needed"
    names = ", ".join(formatting.printable(target) for target in run.targets)
    return f"certificates that count: {names or 'none'}"


def _fields(outcome: RangeResult) -> dict[str, Any]:
    decision = outcome.decision
    return {
        "name": decision.range.name,
        "lower": decision.range.lower,
        "upper": decision.range.upper,
        "outcome": outcome.outcome,
        "restored": outcome.restored,
        "reasons": [asdict(reason) for reason in decision.reasons],
        "messages": decision.messages,
        "changed_at": decision.changed_at,
        "size": decision.range.size,
        "tables": decision.range.states,
    }


def _why(outcome: RangeResult) -> str:
    reasons = "; ".join(f"{reason.name}: {reason.detail}" for reason in outcome.decision.reasons)
    return formatting.printable(f"{reasons} (put back)" if outcome.restored else reasons)


def _line(outcome: RangeResult) -> str:
    decision = outcome.decision
    ids = f"ids {formatting.count(decision.range.lower)} to {formatting.count(decision.range.upper - 1)}"
    if decision.reasons:
        return f"{outcome.outcome:9}  {decision.range.name}  {ids}  {_why(outcome)}"
    rows = f"{formatting.many(decision.messages or 0, 'message')}, {formatting.size(decision.range.size)}"
    return f"{outcome.outcome:9}  {decision.range.name}  {ids}  {rows}"


def _table(found: list[RangeResult]) -> None:
    output.table(
        ["partition", "from id", "to id", "messages", "size", "changed", "outcome", "why"],
        [
            (
                outcome.decision.range.name,
                formatting.count(outcome.decision.range.lower),
                formatting.count(outcome.decision.range.upper - 1),
                formatting.count(outcome.decision.messages),
                formatting.size(outcome.decision.range.size),
                outcome.decision.changed_at,
                outcome.outcome,
                _why(outcome) or None,
            )
            for outcome in found
        ],
        right=("from id", "to id", "messages", "size"),
        keep=("partition", "messages", "outcome", "why"),
        text=("why",),
    )


def _summary(found: list[RangeResult], tidied: tuple[int, int], *, dry_run: bool) -> None:
    def number(name: str) -> str:
        return formatting.count(sum(1 for outcome in found if outcome.outcome == name))

    gone = f"{number('droppable')} would be dropped" if dry_run else f"{number('dropped')} dropped"
    click.echo(f"{gone}, {number('refused')} refused, {number('kept')} kept")
    keys, checks = tidied
    if keys or checks:
        click.echo(
            f"{formatting.count(keys)} idempotency keys and {formatting.count(checks)} left-over checks deleted"
        )
