"""Finds messages, and lists everything that happened to one."""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import RowMaker, dict_row

from outbox.statements import Statements
from outbox_relay.operations import holds
from outbox_relay.operations.filters import Filters, at
from outbox_relay.publisher.lease import read_floors
from outbox_relay.publisher.snapshot import Floor

STATEMENTS = Statements("outbox_relay/operations/messages.sql")
SETTINGS = Statements("outbox_relay/operations/status.sql")

FIRST_WINDOW = 2_000
LARGE_WINDOW, LARGEST_WINDOW = 1_000_000, 5_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Life:
    """One message: its row as in outbox.message_status, how it is routed, and what happened to it."""

    message: Row
    routing: Row
    events: list[Row]
    publications: list[Row]
    content: Row | None
    hold: holds.HoldView | None = None
    """What it waits for, if it fails or is held."""


def search(
    conn: psycopg.Connection[Any],
    filters: Filters,
    limit: int,
    on_progress: Callable[[int], None] = lambda id: None,
) -> list[Row]:
    """Find the newest messages that fit, newest first; needs no more than the role outbox_reader.

    What no single index finds is searched in windows of ids, from the newest backwards (see `Windows`): a frequent
    match ends the search early, a rare one is left to the indexes.

    Args:
        conn: an autocommit connection that is in no transaction.
        filters: what to find.
        limit: how many at most.
        on_progress: called with the id down to which everything has been searched.
    """
    statement, values = compose(filters)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.read_only = True
    found: list[Row] = []
    with conn.transaction(), conn.cursor(row_factory=_status_row) as cursor:
        cursor.execute(SETTINGS["settings"])
        if filters.statement != "search":
            values |= bind_floors(read_floors(conn))
        if not filters.windowed:
            cursor.execute(SETTINGS["prefer_indexes"])
            return cursor.execute(statement, values | {"limit": limit}).fetchall()
        first, newest, bounds = conn.execute(STATEMENTS["span"]).fetchone() or (1, 0, [])
        windows = Windows(first, newest, bounds, limit)
        if filters.until is not None:
            windows.expect(newest_before(conn, filters.until))
        if settings := preferred(filters):  # (not before: `newest_before` needs the primary key)
            cursor.execute(SETTINGS[settings])
        while (window := windows.next(len(found))) is not None:
            below, top = window
            values |= {"below": below, "top": top, "limit": limit - len(found)}
            found += cursor.execute(statement, values, prepare=False).fetchall()
            if len(found) >= limit:
                break
            on_progress(below + 1)
    return found


def _status_row(cursor: psycopg.Cursor[Any]) -> RowMaker[Row]:
    """Make rows of outbox.message_status; what waits for a topic is held, as what waits for a key is."""
    make = dict_row(cursor)

    def row(values: Sequence[Any]) -> Row:
        made = make(values)
        return {**made, "waiting": "held"} if made.get("waiting") == "parked" else made

    return row


def preferred(filters: Filters) -> str:
    """Return the settings of the planner (a block of status.sql) for a search; empty: its own."""
    if not filters.windowed:
        return "prefer_indexes"
    wanted = (filters.key, filters.topic, filters.index_key, filters.biz_id, filters.transaction_id)
    has_index = any(value is not None for value in (*wanted, filters.since, filters.until))
    return "prefer_bitmaps" if has_index else ""


def newest_before(conn: psycopg.Connection[Any], moment: float | datetime) -> int:
    """Return about which id was the last one before a time (or so many seconds ago); 0 or so: none was."""
    row = conn.execute(STATEMENTS["born_before"], {"until": at(moment, datetime.now(UTC))}).fetchone()
    return int(row[0]) if row else 0


class Windows:
    """The ids from `newest` down to `first`, window by window.

    A window without a match is followed by one of ten times as many ids, and beyond a million by all of a partition:
    its block ranges are read for each window in it. One with matches is followed by twice as many ids as have probably
    the missing ones: all matches of a window are read before they are sorted.

    Args:
        first, newest: the ids there can be.
        bounds: the first id of each partition, in order.
        limit: matches to find.
    """

    def __init__(self, first: int, newest: int, bounds: Sequence[int], limit: int) -> None:
        self._first, self._bounds, self._limit = first, bounds, limit
        self._top = self._likely = newest
        self._size = self._matches = 0

    def expect(self, likely: int) -> None:
        """Take what is above an id in the largest steps: nothing fits there, probably. All ids are in a window."""
        self._likely = min(likely, self._top)

    def next(self, matches: int) -> tuple[int, int] | None:
        """Return the next window (below, top], newest first; None behind the last one.

        Args:
            matches: how many there were in all windows so far.
        """
        if self._top < self._first:
            return None
        if matches:
            self._likely = max(self._likely, self._top)  # (what fits is not where it was expected)
        if self._top > self._likely:
            least, size = max(self._likely, self._first - 1), LARGEST_WINDOW
        else:
            least, size = self._first - 1, self._size * 10
            if matches > self._matches:
                looked = self._likely - self._top
                size = min(size, 2 * (self._limit - matches) * looked // matches)
            size = max(size, FIRST_WINDOW) if size < LARGE_WINDOW else LARGEST_WINDOW
            self._size = size
        self._matches = matches
        top, self._top = self._top, max(self._below(size), least)
        return self._top, top

    def _below(self, size: int) -> int:
        """Return where a window ends; a large one where a partition does, if one ends in it."""
        below = self._top - size
        if size < LARGE_WINDOW:
            return below
        place = bisect_left(self._bounds, below + 1)
        ends_in_it = place < len(self._bounds) and self._bounds[place] <= self._top
        return self._bounds[place] - 1 if ends_in_it else below


def compose(filters: Filters) -> tuple[sql.Composed, dict[str, Any]]:
    """Put the statement of a search together, with the values it binds."""
    names, values = filters.conditions()
    blocks = [sql.SQL(STATEMENTS[name]).format() for name in names]
    conditions = sql.SQL(" AND ").join(blocks) if blocks else sql.SQL("true")
    return sql.SQL(STATEMENTS[filters.statement]).format(conditions=conditions), values


def bind_floors(lanes: dict[int, Floor]) -> dict[str, Any]:
    """Give the lanes' floors as the arrays that messages.sql takes, and the lowest xid beyond any of them."""
    floors = [floor.snapshot for floor in lanes.values()]
    return {
        "lanes": list(lanes),
        "floors": [*map(str, floors)],
        "lowest": str(min((floor.xmin for floor in floors), default=1)),
    }


def life(conn: psycopg.Connection[Any], filters: Filters, *, content: bool = False) -> Life | None:
    """Read everything about one message, or None without one.

    Args:
        conn: an autocommit connection that is in no transaction.
        filters: its id or message id.
        content: also read headers and body, which the role outbox_reader may not.
    """
    found = search(conn, filters, 1)
    if not found:
        return None
    message = found[0]
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        return Life(
            message=message,
            routing=cursor.execute(STATEMENTS["routing"], message).fetchone() or {},
            events=cursor.execute(STATEMENTS["events"], message).fetchall(),
            publications=cursor.execute(STATEMENTS["publications"], message).fetchall(),
            content=_content(cursor.execute(STATEMENTS["content"], message).fetchone()) if content else None,
            hold=holds.of_message(conn, message["id"]),
        )


def events(conn: psycopg.Connection[Any], message: Row) -> list[Row]:
    """Return the audit of one message, by its id and message id."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["events"], message).fetchall()


def _content(row: Row | None) -> Row | None:
    """Read the headers; those that got past the table's rules and cannot be read stay text."""
    if row is not None and row["headers"] is not None:
        with contextlib.suppress(ValueError, RecursionError):
            row["headers"] = json.loads(row["headers"])
    return row
