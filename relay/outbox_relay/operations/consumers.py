"""Consumer groups: their members, where they are in each partition, and what of them is parked.

Everything here is in the consumer's database. How far Kafka is ahead of it is in `consumer_lag`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row

from outbox.statements import Statements
from outbox_relay.operations.messages import Row
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/consumers.sql")


@dataclass(frozen=True)
class ConsumerTotals:
    """All consumer groups of a database: how many, their messages that failed, and members without work."""

    groups: int
    dead: int
    retries: int
    held_keys: int
    idle_members: int
    """Members that run and have read no partition for a minute."""
    idle_group: str | None
    """One of their groups."""


def groups(conn: psycopg.Connection[Any]) -> list[Row]:
    """Return a row for each group and topic, also for groups that do not run; the topic is None before the first."""
    return _rows(conn, "groups")


def positions(conn: psycopg.Connection[Any], group: str | None = None) -> list[Row]:
    """Return a row for each partition that groups, or one of them, have a position in."""
    return _rows(conn, "positions", group)


def members(conn: psycopg.Connection[Any], group: str) -> list[Row]:
    """Return the members of a group, and whether each runs."""
    return _rows(conn, "members", group)


def find(conn: psycopg.Connection[Any], group: str) -> Row:
    """Return a group.

    Raises:
        OperatorError: no group has this name; with the names that there are.
    """
    found = _rows(conn, "group", group)
    if not found:
        names = sorted({row["consumer_group"] for row in groups(conn)})
        known = f"groups: {', '.join(names)}" if names else "no consumer of this database has run yet"
        raise OperatorError(f"no consumer group has the name {group!r}; {known}")
    return found[0]


def totals(conn: psycopg.Connection[Any]) -> ConsumerTotals:
    """Count the groups of a database, their messages that failed, and members without work."""
    with conn.cursor(row_factory=class_row(ConsumerTotals)) as cursor:
        found = cursor.execute(STATEMENTS["totals"]).fetchone()
    assert found is not None  # noqa: S101  (one row, always)
    return found


def _rows(conn: psycopg.Connection[Any], name: str, group: str | None = None) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS[name], {"group": group}).fetchall()
