"""Days of the inbox, as tables, lines and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from outbox_relay.cli import output
from outbox_relay.operations.inbox_drop import DayResult
from outbox_relay.text import formatting


def fields(result: DayResult) -> dict[str, Any]:
    """Return what is known of a day, for machines."""
    decision = result.decision
    facts = decision.facts
    return {
        "table": decision.day.table,
        "day": None if decision.day.day is None else decision.day.day.isoformat(),
        "outcome": result.outcome,
        "reasons": [asdict(reason) for reason in decision.reasons],
        "rows": None if facts is None else facts.rows,
        "rows_estimated": decision.day.rows,
        "groups": None if facts is None else len(facts.groups),
        "handled_at": None if facts is None else facts.handled_at,
        "size": decision.day.size,
    }


def table(found: Sequence[DayResult]) -> None:
    """Print a row for each day."""
    output.table(
        ["day", "messages", "groups", "size", "outcome", "why"],
        [
            (
                _name(result),
                formatting.count(_rows(result)),
                None if result.decision.facts is None else len(result.decision.facts.groups),
                formatting.size(result.decision.day.size),
                result.outcome,
                _why(result) or None,
            )
            for result in found
        ],
        right=("messages", "groups", "size"),
        keep=("day", "messages", "outcome", "why"),
        text=("why",),
    )


def line(result: DayResult) -> str:
    """Return one line about a day that was dropped, or has to stay."""
    text = f"{result.outcome:9}  {_name(result)}"
    if result.decision.reasons:
        return f"{text}  {_why(result)}"
    rows = f"{formatting.many(_rows(result), 'message')}, {formatting.size(result.decision.day.size)}"
    if result.outcome == "emptied":
        rows += "; the inbox was in use all the time: the next run removes the empty table"
    return f"{text}  {rows}"


def summary(found: Sequence[DayResult]) -> str:
    """Return how many days had each outcome."""
    counts = Counter(result.outcome for result in found)
    names = ["dropped", "emptied", "droppable", "refused", "kept"]
    return ", ".join(
        f"{counts[name]} {name}" for name in names if counts[name] or name in {"dropped", "refused"}
    )


def _name(result: DayResult) -> str:
    day = result.decision.day.day
    return "default" if day is None else day.isoformat()


def _rows(result: DayResult) -> int:
    facts = result.decision.facts
    return result.decision.day.rows if facts is None else facts.rows


def _why(result: DayResult) -> str:
    return formatting.printable(
        "; ".join(f"{reason.name}: {reason.detail}" for reason in result.decision.reasons)
    )
