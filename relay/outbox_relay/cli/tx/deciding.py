"""What `outbox tx commit` and `rollback` share: ids or a whole selection, asking first, reporting afterwards."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from outbox.operations.decide import DecidedState
from outbox_relay.cli import output
from outbox_relay.cli.tx import report
from outbox_relay.cli.tx.options import given, read_filter
from outbox_relay.database import connections, schema
from outbox_relay.operations import (
    bulk_decisions,
    decide,
    filters,
    half_message_life,
    half_messages,
    messages,
    names,
)
from outbox_relay.operations.decide import WORDS
from outbox_relay.operations.half_messages import HalfMessageFilter
from outbox_relay.operations.messages import Row
from outbox_relay.text import formatting

OWN = frozenset({"identities", "reason", "everything", "wait", "yes", "dsn", "as_json"})
MOST_SHOWN = 20


def run(verdict: DecidedState, options: dict[str, Any]) -> None:
    """Decide what the options name; exit code 1 when something was not decided so."""
    reason = decide.checked_reason(options["reason"])
    chosen = {name: value for name, value in options.items() if name not in OWN}
    identities: tuple[str, ...] = options["identities"]
    if identities and (options["everything"] or given(chosen)):
        extra = ", ".join(["--all"] * options["everything"] + given(chosen))
        raise click.UsageError(f"give IDs, or --all with filters, not both ({extra})")
    if not identities and not options["everything"]:
        raise click.UsageError("nothing to decide: give IDs, or --all --group NAME --state STATE")
    if options["everything"] and (options["producer_group"] is None or options["state"] is None):
        raise click.UsageError(
            "--all needs --group NAME and --state UNKNOWN or EXHAUSTED, so that nothing else is decided"
        )
    named = [filters.identity(text) for text in identities]
    selection = read_filter(chosen)
    with connections.connect(options["dsn"]) as conn:
        schema.require_current(conn)
        if options["everything"]:
            _selection(conn, verdict, reason, selection, options)
            return
        halves = list({half["id"]: half for half in (half_messages.get(conn, one) for one in named)}.values())
        for half in halves:
            half_message_life.require_half(half, messages.events(conn, half))
        if len(halves) > 1:
            _ask(f"{len(halves)} half messages: {_few(halves)}", verdict, yes=options["yes"])
        outcomes = []
        for half in halves:
            outcome = decide.decide(conn, half, verdict, reason, options["wait"])
            outcomes.append(outcome)
            if not options["as_json"]:
                report.decided(outcome)
    if options["as_json"]:
        output.emit_json([outcome.document() for outcome in outcomes])
    failed = sum(outcome.failed for outcome in outcomes)
    if len(outcomes) > 1 and not options["as_json"]:
        click.echo(f"{len(outcomes) - failed} {WORDS[verdict]}, {failed} not")
    if failed:
        raise click.exceptions.Exit(1)


def _few(halves: list[Row]) -> str:
    shown = ", ".join(str(half["id"]) for half in halves[:MOST_SHOWN])
    return f"{shown}, …" if len(halves) > MOST_SHOWN else shown


def _ask(what: str, verdict: DecidedState, *, yes: bool) -> None:
    if yes:
        return
    question = f"{what}\nShall they be {WORDS[verdict]}? A decision is final."
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{what}\nthere is no terminal to confirm that they are to be {WORDS[verdict]}; give --yes"
        )
    click.confirm(question, abort=True, err=True)


def _selection(
    conn: connections.Connection,
    verdict: DecidedState,
    reason: str,
    chosen: HalfMessageFilter,
    options: dict[str, Any],
) -> None:
    many = bulk_decisions.count_chosen(conn, chosen)
    if not many.messages:
        names.require_known(conn, producer_group=chosen.producer_group, topic=chosen.topic)
        if options["as_json"]:
            output.emit_json({"decided": 0, "held": []})
        else:
            click.echo("no half message fits", err=True)
        return
    what = (
        f"{formatting.many(many.messages, 'half message')} of group {chosen.producer_group!r}, state "
        f"{chosen.states[0]}, born {formatting.cell(many.oldest)} to {formatting.cell(many.newest)}"
    )
    _ask(what, verdict, yes=options["yes"])
    progress = _Progress(many.messages)
    done = bulk_decisions.decide(conn, chosen, many, verdict, reason, on_progress=progress.note)
    if options["as_json"]:
        output.emit_json({"decided": done.decided, "held": done.held})
    else:
        click.echo(f"{formatting.count(done.decided)} {WORDS[verdict]}")
        if done.held:
            click.secho(
                f"{formatting.count(len(done.held))} passed over, locked or decided by somebody else meanwhile: "
                f"{', '.join(map(str, done.held[:MOST_SHOWN]))}{', …' if len(done.held) > MOST_SHOWN else ''}; "
                "run it again for these",
                err=True,
                fg="red",
            )
    if done.held:
        raise click.exceptions.Exit(1)


class _Progress:
    """Says at a terminal how many are done."""

    def __init__(self, total: int) -> None:
        self._total, self._said = total, time.monotonic()

    def note(self, done: bulk_decisions.Done) -> None:
        """Say so once a second at most."""
        if sys.stderr.isatty() and time.monotonic() - self._said > 1:
            click.echo(f"{done.decided:,} of {self._total:,} …", err=True)
            self._said = time.monotonic()
