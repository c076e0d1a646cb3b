"""Makes a half message due now, so that the next turn of a checker asks about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements
from outbox_relay.operations.messages import Row

STATEMENTS = Statements("outbox_relay/operations/check_now.sql")


@dataclass(frozen=True)
class Due:
    """When a half message is asked about, how often it was, and who is asking at this moment."""

    due_at: datetime
    checks: int
    being_asked_by: str | None


def due_now(conn: psycopg.Connection[Any], half: Row) -> Due | None:
    """Make an undecided half message due, by the database's clock; None when it is not undecided.

    It does not ask: checkers do, with whatever their group has registered. The check counts as any other.

    Args:
        conn: an autocommit connection that is in no transaction.
        half: its id and message_id.
    """
    with conn.cursor(row_factory=class_row(Due)) as cursor:
        return cursor.execute(STATEMENTS["due_now"], half).fetchone()
