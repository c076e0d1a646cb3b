"""Dead letters of consumer groups: try them again, discard them; one, or the first thousand of a cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psycopg

from outbox_relay.console.acts import act
from outbox_relay.database import connections
from outbox_relay.operations import dlq, half_messages
from outbox_relay.operations.dlq import DeadLetterFilter, ListedLetter
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.formatting import cell, many, printable


def _line(verb: str) -> Callable[[act.Params, str], Sequence[str]]:
    def line(params: act.Params, reason: str) -> Sequence[str]:
        if "ids" in params:
            return ["dlq", verb, params["ids"]]
        return [
            "dlq",
            verb,
            "--group",
            act.text(params, "group"),
            "--failure",
            act.text(params, "failure"),
            "--yes",
        ]

    return line


def _listed(conn: connections.Connection, params: act.Params) -> list[Row]:
    """List the letters that are meant: one, or the first thousand of a cause, as they were when the form was shown."""
    if "ids" in params:
        which = DeadLetterFilter(ids=[act.number(params, "ids")])
    else:
        until = act.read_time(params, "until")
        which = DeadLetterFilter(
            group=act.text(params, "group"), failure=act.text(params, "failure"), until=until
        )
    return [row for page in dlq.pages(conn, which, dlq.LETTERS_AT_ONCE) for row in page]


def _told(meaning: str) -> Callable[[connections.Connection, act.Params], act.ActPreview]:
    def tell(conn: connections.Connection, params: act.Params) -> act.ActPreview:
        found = _listed(conn, params)
        if not found:
            raise OperatorError("no dead letter fits any more: it was redriven or discarded meanwhile")
        first = found[0]
        behind = sum(row["waiting"] for row in found)
        about = (
            f"{_at_most(len(found), 'dead letter')} of consumer group {printable(first['consumer_group'])}, "
            f"topic {printable(first['topic'])}: {printable(first['failure'] or 'no error is noted')}"
        )
        lines = [about, meaning]
        if len(found) == 1:
            lines.insert(
                1,
                f"Key {cell(first['key'])}, failed {many(first['attempts'], 'time')}, last at "
                f"{cell(first['failed_at'])}; {many(behind, 'message')} of its key behind it.",
            )
            failed_at = first["failed_at"]
            return act.ActPreview(lines, {} if failed_at is None else {"failed_at": failed_at.isoformat()})
        return act.ActPreview(lines, {"until": half_messages.now(conn).isoformat()})

    return tell


def _at_most(count: int, noun: str) -> str:
    """Count what is listed; where the list was cut, it is the first thousand."""
    return f"The first {many(count, noun)}" if count == dlq.LETTERS_AT_ONCE else many(count, noun)


def _run(
    change: Callable[[connections.Connection, Sequence[ListedLetter]], dlq.Changes],
    done: str,
    *,
    spares: bool,
) -> Callable[[connections.Connection, act.Params, str], act.Outcome]:
    def run(conn: connections.Connection, params: act.Params, reason: str) -> act.Outcome:
        found = _listed(conn, params)
        shown = act.read_time(params, "failed_at")
        chosen = [
            ListedLetter(row["id"], shown if shown is not None else row["failed_at"])
            for row in found
            if "ids" in params or not spares or not dlq.may_be_applied(row)
        ]
        changes = change(conn, chosen)
        if isinstance(changes.error, psycopg.errors.InsufficientPrivilege):
            raise changes.error
        lines = [f"{many(len(changes.done), 'dead letter')} {done}."]
        if not found or changes.changed:
            lines.append(
                f"{many(max(len(changes.changed), 1), 'dead letter')} left alone: redriven, discarded or failed again "
                "since the form was shown, by another operator or a member of the group."
            )
        if len(chosen) < len(found):
            lines.append(
                f"{many(len(found) - len(chosen), 'dead letter')} left alone: the effect, or a part of it, may exist. "
                "Read the error, and try it again by its id."
            )
        if changes.error is not None:
            lines.append(
                f"Then PostgreSQL refused: {changes.error}; {len(changes.unchanged)} are as they were."
            )
        return act.Outcome(bool(changes.done) and changes.error is None, lines)

    return run


LETTERS: Mapping[str, act.Act] = {
    "redrive": act.Act(
        "Try dead letters again",
        "Try again",
        ("ids", "failed_at", "group", "failure", "until"),
        _line("redrive"),
        _told(
            "The group tries them now, with all their attempts before them, and keeps the order of each key."
        ),
        _run(dlq.redrive, "tried again as soon as a member of the group runs", spares=True),
        keeps_reason=False,
    ),
    "discard": act.Act(
        "Discard dead letters",
        "Discard",
        ("ids", "failed_at", "group", "failure", "until"),
        _line("discard"),
        _told(
            "They are deleted for good: their effect will never exist, and the messages behind them go on."
        ),
        _run(dlq.discard, "discarded; what waited behind goes on", spares=False),
        keeps_reason=False,
    ),
}
