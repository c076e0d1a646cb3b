"""What `outbox dlq redrive` and `discard` share: which dead letters, the question, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import psycopg

from outbox_relay.cli import output
from outbox_relay.database import connections, schema
from outbox_relay.operations import dlq as letters
from outbox_relay.operations.dlq import DeadLetterFilter, ListedLetter
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError

MAY_BE_APPLIED = (
    "may_be_applied",
    (
        "a part of their effect may exist, or their id was used before; read their errors (outbox dlq show ID), "
        "and name them by id"
    ),
)
CHANGED = (
    "changed",
    "they were redriven, have failed again or are gone since they were listed; list them again: outbox dlq ls",
)
"""Why letters are left out: for machines, and for people."""


@dataclass(frozen=True)
class Action:
    """What is done with dead letters."""

    done: str
    meaning: str
    run: Callable[[psycopg.Connection[Any], Sequence[ListedLetter]], list[int]]
    takes: Callable[[Row], bool] = lambda row: True
    """Which of those that filters found."""


REDRIVE = Action(
    "redriven",
    "tried again as soon as a member of the group runs",
    letters.redrive,
    lambda row: not letters.may_be_applied(row),
)
DISCARD = Action("discarded", "deleted; what waited behind them goes on", letters.discard)


def act(action: Action, options: dict[str, Any], which: DeadLetterFilter) -> None:
    """Do something with the dead letters that are chosen by ids, filters or `--all`, page by page.

    Args:
        action: what to do.
        options: of the command.
        which: its filters.

    Raises:
        OperatorError: A named id is not that of a dead letter.
        UsageError: The choice is unclear.
    """
    ids, everything = options["ids"], options["everything"]
    if ids:
        if everything or not which.is_empty:
            raise click.UsageError("name dead letters by their ids or by filters, not by both")
        which = replace(which, ids=ids)
    elif which.is_empty is not everything:
        raise click.UsageError("name dead letters by ids or filters, or give --all")
    with connections.connect(options["dsn"]) as conn:
        schema.require_current(conn)
        found = [row for page in letters.pages(conn, which) for row in page]
        chosen = [ListedLetter(row["id"], row["failed_at"]) for row in found if ids or action.takes(row)]
        taken = {letter.id for letter in chosen}
        left_out = [_left_out(row["id"], MAY_BE_APPLIED) for row in found if row["id"] not in taken]
        _report_left_out(len(left_out), MAY_BE_APPLIED)
        missing = sorted(set(ids) - taken)
        if missing:
            raise OperatorError(
                f"no dead letter has the id {', '.join(map(str, missing))}; nothing was changed\n"
                "list them: outbox dlq ls"
            )
        if len(chosen) > 1 and not options["yes"]:
            click.confirm(f"{len(chosen)} dead letters will be {action.done}. Go on?", abort=True, err=True)
        done: list[int] = []
        for begin in range(0, len(chosen), letters.LETTERS_AT_ONCE):
            done += action.run(conn, chosen[begin : begin + letters.LETTERS_AT_ONCE])
    changed = [_left_out(id_, CHANGED) for id_ in sorted(taken - set(done))]
    _report_left_out(len(changed), CHANGED)
    if options["as_json"]:
        output.emit_json({action.done: done, "left_out": left_out + changed})
    elif done:
        click.echo(f"{len(done)} dead letter{'s' if len(done) > 1 else ''} {action.meaning}")
    elif not changed:
        click.echo("no dead letters fit")


def _left_out(id_: int, reason: tuple[str, str]) -> Row:
    return {"id": id_, "reason": reason[0]}


def _report_left_out(count: int, reason: tuple[str, str]) -> None:
    if count:
        click.echo(f"{count} dead letters are left out: {reason[1]}", err=True)
