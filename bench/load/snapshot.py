"""A long transaction that has read: no dead row is removed while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from outbox.statements import Statements

TAKE = Statements("bench/sql/held.sql")["look"]


@contextmanager
def held_snapshot(dsn: str) -> Iterator[None]:
    """Hold a snapshot of a database open, as a report or `pg_dump` does."""
    with psycopg.connect(dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute(TAKE)
        yield
