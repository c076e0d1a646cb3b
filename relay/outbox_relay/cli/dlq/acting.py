"""What `outbox dlq redrive` and `discard` share: which dead letters, the question, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import psycopg

from outbox_relay.cli import output
from outbox_relay.cli.options import advice
from outbox_relay.database import connections, schema
from outbox_relay.operations import consumers, names
from outbox_relay.operations import dlq as letters
from outbox_relay.operations.dlq import Changes, DeadLetterFilter, ListedLetter
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError

MAY_BE_APPLIED = (
    "may_be_applied",
    ("their effect, or a part of it, may exist; read their errors (outbox dlq show ID), and name them by id"),
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
    run: Callable[[psycopg.Connection[Any], Sequence[ListedLetter]], Changes]
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
    """Do something with the dead letters that are chosen by ids, filters or `--all`.

    Args:
        action: what to do.
        options: of the command.
        which: its filters.

    Raises:
        OperatorError: A named id is not that of a dead letter, or PostgreSQL refused in between: with what was done.
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
        consumers.apply_policies(conn)
        found = [row for page in letters.pages(conn, which) for row in page]
        if not found:
            names.require_known(conn, consumer_group=which.group, topic=which.topic)
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
        changes = action.run(conn, chosen)
    left_out += [_left_out(id_, CHANGED) for id_ in changes.changed]
    _report_left_out(len(changes.changed), CHANGED)
    if options["as_json"]:
        _emit(action, changes, left_out)
    elif changes.done:
        click.echo(f"{_letters(changes.done)} {action.meaning}")
    elif not changes.changed and changes.error is None:
        click.echo("no dead letters fit")
    if isinstance(changes.error, KeyboardInterrupt):
        click.echo(_remainder(action, changes), err=True)
        raise click.Abort
    if changes.error is not None:
        raise OperatorError(f"{advice(changes.error)}\n{_remainder(action, changes)}") from changes.error


def _emit(action: Action, changes: Changes, left_out: list[Row]) -> None:
    document: dict[str, Any] = {action.done: changes.done, "left_out": left_out}
    if changes.error is not None:
        document |= {"unchanged": changes.unchanged, "unknown": changes.unknown}
    output.emit_json(document)


def _remainder(action: Action, changes: Changes) -> str:
    """State what an error left as it was."""
    parts = [f"{_letters(changes.done)} {action.done} before that, {_letters(changes.unchanged)} unchanged"]
    if changes.unknown:
        first = changes.unknown[0]
        parts.append(
            f"of {_letters(changes.unknown)} it is not known whether they are {action.done}: outbox dlq show {first}"
        )
    parts.append("list what is left: outbox dlq ls")
    return "\n".join(parts)


def _letters(ids: Sequence[int]) -> str:
    return f"{len(ids)} dead letter{'' if len(ids) == 1 else 's'}"


def _left_out(id_: int, reason: tuple[str, str]) -> Row:
    return {"id": id_, "reason": reason[0]}


def _report_left_out(count: int, reason: tuple[str, str]) -> None:
    if count:
        click.echo(f"{count} dead letters are left out: {reason[1]}", err=True)
