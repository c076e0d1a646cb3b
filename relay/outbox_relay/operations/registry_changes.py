"""Reads which relays publish by the newest change of topics: a partition count, a selector, a pause.

A relay states the registry's generation in its lease once it publishes by it, with the topics of which something that
it published by an older one is unacknowledged: a topic that cannot move delays no command of another one. A relay that
joins later reads the registry first, and states it within a third of its lease. Nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements

STATEMENTS = Statements("outbox_relay/operations/registry_changes.sql")


@dataclass(frozen=True)
class RelayProgress:
    """A relay, and whether it publishes by a change, with nothing unacknowledged by an older one."""

    owner: str
    epoch: int
    lanes: list[int]
    lease_seconds: float
    """How much longer its lease lasts; negative: so long ago it ended, and no other relay took its lanes."""
    has_applied: bool


def generation(conn: psycopg.Connection[Any]) -> int:
    """Return the number of the newest change of topics: what a relay states that has seen all of them."""
    row = conn.execute(STATEMENTS["generation"]).fetchone()
    assert row is not None  # noqa: S101  (the table has one row)
    return int(row[0])


def relays(conn: psycopg.Connection[Any], number: int, topic: str) -> list[RelayProgress]:
    """Return the relays that may publish, and which of them have stated the change of this number for a topic."""
    with conn.cursor(row_factory=class_row(RelayProgress)) as cursor:
        return cursor.execute(STATEMENTS["relays"], {"generation": number, "topic": topic}).fetchall()
