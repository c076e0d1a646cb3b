"""What became of messages that an operator decided about: one, or many."""

from __future__ import annotations

from collections.abc import Iterable

import click

from outbox_relay.cli import output
from outbox_relay.operations.decide import DecisionResult


def report(outcome: DecisionResult, *, as_json: bool) -> None:
    """Print what became of one message; exit with 1 when it was refused."""
    if as_json:
        output.emit_json(outcome.document())
    else:
        click.secho(
            f"message {outcome.half['id']} {outcome.text}",
            err=outcome.failed,
            fg="red" if outcome.failed else None,
        )
    if outcome.failed:
        raise click.exceptions.Exit(1)


def gather(outcomes: Iterable[DecisionResult], what: str) -> tuple[int, list[DecisionResult]]:
    """Return how many messages were changed, and those that were refused; `what`: was done to them."""
    done, refused = 0, []
    try:
        for outcome in outcomes:
            done += not outcome.failed
            refused += [outcome] if outcome.failed else []
    except BaseException:  # also Ctrl-C: what is done is done
        click.echo(f"{what} before it ended: {done:,}", err=True)
        raise
    return done, refused


def report_all(done: int, refused: list[DecisionResult], what: str, *, as_json: bool) -> None:
    """Print how many messages were changed, and each that was refused; exit with 1 when one was."""
    if as_json:
        output.emit_json({"done": done, "failed": [one.document() for one in refused]})
    else:
        click.echo(f"{what}: {done:,}")
        for one in refused:
            click.secho(f"message {one.half['id']} {one.text}", err=True, fg="red")
    if refused:
        raise click.exceptions.Exit(1)
