"""`outbox history`: what of the history may go, and letting it go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from outbox_relay import durations, formatting
from outbox_relay.cli import output
from outbox_relay.cli.options import Group, dsn_option, json_option
from outbox_relay.database import connections, schema
from outbox_relay.retention.removal import prepare
from outbox_relay.retention.run import Outcome, Retention, Wish

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def history() -> None:
    """See which partitions may be dropped, and drop them.

    A partition goes when it is complete (no transaction can still insert into it), final (nothing in it is undecided,
    dead, waiting or unpublished), exported and verified (`outbox etl reconcile` certifies that), and old enough.
    """


def _options(command: F) -> F:
    for option in (
        click.option(
            "--target",
            metavar="NAME",
            help="The warehouse whose certificates count, by the name that `outbox etl` prints. [default: each that "
            "has any must have certified it]",
        ),
        click.option(
            "--wait",
            metavar="DURATION",
            default="30s",
            show_default=True,
            help="How long to wait for a transaction or a lock in the way; other sessions are not blocked.",
        ),
    ):
        command = option(command)
    return command


@history.command()
@click.option(
    "--older-than",
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="The retention: nothing in it changed for so long, such as 30d.",
)
@_options
@dsn_option
@json_option
def ls(*, older_than: str, target: str | None, wait: str, dsn: str, as_json: bool) -> None:
    """List the partitions and what keeps each from being dropped.

    Reads every partition that is full, which takes seconds per million messages. Changes nothing, and needs no more
    than to read.
    """
    with connections.connect(dsn) as conn:
        schema.require_current(conn)
        run = Retention(conn, _wish(older_than, target, wait))
        found = list(run.look())
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
@_options
@dsn_option
@json_option
def drop(*, older_than: str, dry_run: bool, target: str | None, wait: str, dsn: str, as_json: bool) -> None:
    """Drop the partitions that may go; exit with 1 when one that is old enough has to stay.

    Messages, publications and events of one range of ids leave together. Producers and the relay go on meanwhile. It
    may be killed at any time: the next run finishes, or takes back, what was begun. Needs the owner of the tables.

    \b
      outbox history drop --older-than 30d --dry-run
      outbox history drop --older-than 30d
      outbox history drop --older-than 30d --target /data/warehouse
    """
    wish = _wish(older_than, target, wait)
    found: list[Outcome] = []
    tidied = (0, 0)
    with connections.connect(dsn, application_name="outbox history") as conn:
        schema.require_current(conn)
        if not dry_run:
            prepare(conn)
        run = Retention(conn, wish)
        for outcome in run.look() if dry_run else run.drop():
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
                "older_than": wish.older_than.total_seconds(),
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


def _wish(older_than: str, target: str | None, wait: str) -> Wish:
    return Wish(
        older_than=durations.duration("--older-than", older_than),
        target=target,
        wait=durations.duration("--wait", wait).total_seconds(),
    )


def _counting(run: Retention) -> str:
    names = ", ".join(formatting.printable(target) for target in run.targets)
    return f"certificates that count: {names or 'there are none'}"


def _fields(outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "name": verdict.range.name,
        "lower": verdict.range.lower,
        "upper": verdict.range.upper,
        "outcome": outcome.outcome,
        "restored": outcome.restored,
        "reasons": [asdict(reason) for reason in verdict.reasons],
        "messages": verdict.messages,
        "changed_at": verdict.changed_at,
        "size": verdict.range.size,
        "tables": verdict.range.states,
    }


def _why(outcome: Outcome) -> str:
    reasons = "; ".join(f"{reason.name}: {reason.detail}" for reason in outcome.verdict.reasons)
    return formatting.printable(f"{reasons} (put back)" if outcome.restored else reasons)


def _line(outcome: Outcome) -> str:
    verdict = outcome.verdict
    ids = f"ids {formatting.count(verdict.range.lower)} to {formatting.count(verdict.range.upper - 1)}"
    if verdict.reasons:
        return f"{outcome.outcome:9}  {verdict.range.name}  {ids}  {_why(outcome)}"
    rows = f"{formatting.many(verdict.messages or 0, 'message')}, {formatting.size(verdict.range.size)}"
    return f"{outcome.outcome:9}  {verdict.range.name}  {ids}  {rows}"


def _table(found: list[Outcome]) -> None:
    output.table(
        ["partition", "from id", "to id", "messages", "size", "changed", "outcome", "why"],
        [
            (
                outcome.verdict.range.name,
                formatting.count(outcome.verdict.range.lower),
                formatting.count(outcome.verdict.range.upper - 1),
                formatting.count(outcome.verdict.messages),
                formatting.size(outcome.verdict.range.size),
                outcome.verdict.changed_at,
                outcome.outcome,
                _why(outcome) or None,
            )
            for outcome in found
        ],
        right=("from id", "to id", "messages", "size"),
    )


def _summary(found: list[Outcome], tidied: tuple[int, int], *, dry_run: bool) -> None:
    def number(name: str) -> str:
        return formatting.count(sum(1 for outcome in found if outcome.outcome == name))

    gone = f"{number('droppable')} would be dropped" if dry_run else f"{number('dropped')} dropped"
    click.echo(f"{gone}, {number('refused')} refused, {number('kept')} kept")
    keys, checks = tidied
    if keys or checks:
        click.echo(
            f"{formatting.count(keys)} idempotency keys and {formatting.count(checks)} left-over checks deleted"
        )
