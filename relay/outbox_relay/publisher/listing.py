"""A list of a large difference, made once and taken in parts.

PostgreSQL keeps the ids in position order in a cursor WITH HOLD: it reads the difference once, when the list is
opened, writes the ids to a temporary file, some 30 bytes each, and holds neither a snapshot nor a lock afterwards. So
the work for a backlog is linear in its size, and the relay's memory does not depend on it. (The sort takes a temporary
file of about twice that, until the list is open.)

Schedules. The connection is lost: the list goes with it and with the session; the next one opens another from the
progress that is recorded, for what is left. A partition is dropped after the list was made: its ids are no longer
found, as those of messages that were cancelled. While it is made: DROP waits for the statement. A listed message is
released, retried or repaired: it has a new xid and belongs to a later difference; the page leaves it out. Its group
stops or is put together again: the session closes the list (`Reader.close_lists`).
"""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements

STATEMENTS = Statements("outbox_relay/publisher/finder.sql")

AT_ONCE = 50_000
"""Ids that are taken from the list together: 400 kB, and ten times that while they arrive."""

_numbers = itertools.count(1)


class Listing:
    """Ids of a difference in position order, beyond what was taken."""

    def __init__(
        self, cursor: psycopg.Cursor[Any], statement: sql.SQL, values: dict[str, Any], **parts: Any
    ) -> None:
        """Open the list: run a statement of finder.sql that declares the cursor `{name}`.

        Raises:
            psycopg.errors.UndefinedTable: a partition that is named has been dropped.
        """
        self._cursor = cursor
        self._name = sql.Identifier(f"outbox_backlog_{next(_numbers)}")
        self.is_open = False
        cursor.execute(statement.format(name=self._name, **parts), values, prepare=False)
        self.is_open = True

    def take(self) -> array[int]:
        """Return the next ids; the list closes when these are the last."""
        fetch = sql.SQL(STATEMENTS["next_of_list"]).format(name=self._name, count=sql.Literal(AT_ONCE))
        ids = array("q", (row[0] for row in self._cursor.execute(fetch, prepare=False)))
        if len(ids) < AT_ONCE:
            self.close()
        return ids

    def close(self) -> None:
        """Give the list up; once is enough."""
        if self.is_open:
            self.is_open = False
            self._cursor.execute(sql.SQL(STATEMENTS["close_list"]).format(name=self._name), prepare=False)
