"""What became of messages that an operator decided about: one, or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


def report_all(
    outcomes: Iterable[DecisionResult], what: str, *, as_json: bool, at_end: Callable[[int], None]
) -> None:
    """Print how many messages were changed, and each that was refused; exit with 1 when one was.

    Args:
        outcomes: of each message.
        what: what was done to them.
        as_json: print one document.
        at_end: is called with how many there were: what was asked for may not exist, or be left.
    """
    done, refused = 0, []
    try:
        for outcome in outcomes:
            done += not outcome.failed
            refused += [outcome] if outcome.failed else []
    except BaseException:  # also Ctrl-C: what is done is done
        click.echo(f"{what} before it ended: {done:,}", err=True)
        raise
    at_end(done + len(refused))
    if as_json:
        output.emit_json({"done": done, "failed": [one.document() for one in refused]})
    else:
        click.echo(f"{what}: {done:,}")
        for one in refused:
            click.secho(f"message {one.half['id']} {one.text}", err=True, fg="red")
    if refused:
        raise click.exceptions.Exit(1)
