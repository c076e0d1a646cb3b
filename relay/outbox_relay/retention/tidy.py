"""Tidying up: idempotency keys whose retention has passed, and checks of half messages that are long decided.

Neither is history. They are deleted row by row, in short transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.retention.ranges import Range

STATEMENTS = Statements("outbox_relay/retention/tidy.sql")

PORTION = 5_000
"""Rows per transaction."""


def idempotency_keys(
    conn: psycopg.Connection[Any], age: timedelta, newest: int, ranges: Sequence[Range]
) -> int:
    """Delete keys older than `age` whose messages lie in no range that is there; return how many.

    Keys of messages beyond `newest` are left alone: their range may have been made since `ranges` were read.
    """
    return _delete(
        conn,
        "idempotency",
        {
            "age": age,
            "newest": newest,
            "lowers": [range_.lower for range_ in ranges],
            "uppers": [range_.upper for range_ in ranges],
        },
    )


def pending_checks(conn: psycopg.Connection[Any]) -> int:
    """Delete what is left of checks of decided half messages; return how many rows."""
    return _delete(conn, "pending_check", {})


def _delete(conn: psycopg.Connection[Any], name: str, values: Mapping[str, Any]) -> int:
    deleted = 0
    while True:
        portion = conn.execute(STATEMENTS[name], {**values, "most": PORTION}).rowcount
        deleted += portion
        if portion < PORTION:
            return deleted
