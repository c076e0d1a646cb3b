"""Decides many half messages of one producer group, page by page, each page in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from outbox.operations.decide import DecidedState
from outbox_relay.operations.decide import STATEMENTS, deciding
from outbox_relay.operations.half_messages import HalfMessageFilter

BULK_PAGE = 500
"""Half messages decided per transaction: some 50 ms of locks, and little is done again after an interruption."""


@dataclass(frozen=True)
class Many:
    """What a bulk decision is about, as counted when the operator was asked."""

    messages: int
    oldest: datetime | None
    newest: datetime | None
    last: int | None
    moment: datetime


@dataclass
class Done:
    """What became of a bulk decision; held are the ids that a local transaction (or another decider) has."""

    decided: int = 0
    held: list[int] = field(default_factory=list)


def count_chosen(conn: psycopg.Connection[Any], chosen: HalfMessageFilter) -> Many:
    """Count what fits, before an operator is asked.

    Args:
        conn: an autocommit connection that is in no transaction.
        chosen: the filters, with a producer group.
    """
    conditions, values = chosen.conditions()
    statement = sql.SQL(STATEMENTS["count"]).format(conditions=conditions)
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute(STATEMENTS["settings"])
        row = cursor.execute(statement, values | {"group": chosen.producer_group}).fetchone()
    return Many(**(row or {}))


def decide(
    conn: psycopg.Connection[Any],
    chosen: HalfMessageFilter,
    many: Many,
    verdict: DecidedState,
    reason: str,
    *,
    on_progress: Callable[[Done], None] = lambda done: None,
) -> Done:
    """Decide all that was counted; what came later is left alone, what is locked is passed over.

    Interrupted, the pages so far are decided; the same again goes on with the rest.

    Args:
        conn: an autocommit connection that is in no transaction.
        chosen: the filters, as counted.
        many: the count that the operator agreed to.
        verdict: what to decide.
        reason: why.
        on_progress: called after each page.
    """
    conditions, values = chosen.conditions()
    statement = sql.SQL(STATEMENTS["decide_page"]).format(conditions=conditions)
    values |= {
        "group": chosen.producer_group,
        "verdict": str(verdict),
        "reason": reason,
        "last": many.last,
        "moment": many.moment,
        "limit": BULK_PAGE,
        "beyond": 0,
    }
    done = Done()
    while True:
        with deciding(conn, 1.0):
            conn.execute(STATEMENTS["settings"])
            looked, decided = conn.execute(statement, values).fetchone() or ([], [])
        done.decided += len(decided)
        done.held += sorted(set(looked) - set(decided))
        on_progress(done)
        if len(looked) < BULK_PAGE:
            return done
        values["beyond"] = looked[-1]
