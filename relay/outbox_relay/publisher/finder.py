"""The finder: reads what became COMMITTED since a snapshot, in position order, page by page.

A row passes the difference of two snapshots exactly once, whatever order transactions commit in, and however
long other transactions stay open. A scan by status would find it too, but reads all dead rows under a held
snapshot; a cursor over positions or xids loses or reorders rows that commit late.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from outbox import wire
from outbox.statements import Statements, array_text
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.polls import Listing, Poll, Polls
from outbox_relay.publisher.prepared import INT2, INT8, TEXT, Numbered, PreparedStatements, Rider
from outbox_relay.publisher.records import LONGEST_KEY, LONGEST_TOPIC, ROW_BYTES
from outbox_relay.publisher.snapshot import BEGINNING, Difference, Snapshot

STATEMENTS = Statements("outbox_relay/publisher/finder.sql")

PAGE = 5_000
"""Messages per page. Larger pages drain a backlog a little faster and cost memory and latency."""
PAGE_BYTES = 16 << 20
"""Bytes of rows per page, all their fields counted; a single larger row is still a page of its own."""
BETWEEN_RANGES = 7
"""Hashes of topics that the index leaves out; with each a poll has another search in each partition (0.3 ms)."""
LOWEST_HASH, HIGHEST_HASH = -(2**31), 2**31 - 1
"""Of a topic: PostgreSQL's hashtext."""
DENSE = 2
"""A page whose ids span no more than this many times their number is read as a range."""
FIELDS = (
    "position", "id", "lane", "topic", "key", "body", "order_key", "queue", "selector", "message_id", "born_at",
    "deliver_at", "headers", "tags", "index_keys", "producer_group", *(column for column, _ in wire.TEXT_HEADERS),
    "waiting", "expired", "withheld", "fills_page",
)  # fmt: skip
"""One message as the finder reads it; see `columns` in finder.sql.

`withheld` is the size of a row of more than `ROW_BYTES`: its fields from `topic` to the last text header are None,
except `queue`, `message_id`, `born_at`, `deliver_at`, and, where they are not long (see `is_named` in finder.sql),
`topic` and the order key. `fills_page` is True in the row that fills the bytes of a page.
"""
(
    POSITION, ID, LANE, TOPIC, KEY, BODY, ORDER_KEY, QUEUE, SELECTOR, MESSAGE_ID, BORN_AT, DELIVER_AT,
    HEADERS, TAGS, INDEX_KEYS, PRODUCER_GROUP,
) = range(16)  # fmt: skip
WAITING, EXPIRED, WITHHELD, FILLS_PAGE = range(len(FIELDS) - 4, len(FIELDS))

RawRow = tuple[Any, ...]
"""The values of `FIELDS` in this order, as the driver gives them: the hot path makes no object of its own."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Which messages a poll or a list reads: of these lanes, of one topic, or of all but some (by their hashes)."""

    lanes: frozenset[int]
    topic: int | None = None
    without: frozenset[int] = frozenset()

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of neighbouring lanes, each with its first and its last."""
        return neighbours(self.lanes)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges of hashes; none: all topics. Each is a search of the index: only a few hashes lie between them."""
        if self.topic is not None:
            return [(self.topic, self.topic)]
        if not self.without:
            return []
        bounds = [LOWEST_HASH - 1, *sorted(self.without)[:BETWEEN_RANGES], HIGHEST_HASH + 1]
        return [(low + 1, high - 1) for low, high in pairwise(bounds) if low + 1 < high]

    @property
    def others(self) -> list[int]:
        """The hashes to leave out that lie within the ranges: each new row of them is read, once."""
        return sorted(self.without)[BETWEEN_RANGES:]

    @property
    def conditions(self) -> list[sql.Composable]:
        """The condition of each branch: a run of lanes with a range of hashes; with no range, all topics."""
        lanes, topics = sql.SQL(STATEMENTS["lanes"]), sql.SQL(" AND " + STATEMENTS["topics"])
        others = sql.SQL(" AND " + STATEMENTS["others"] if self.others else "")
        of_topics: list[sql.Composable] = [
            topics.format(low=sql.Placeholder(f"low{number}"), high=sql.Placeholder(f"high{number}")) + others
            for number in range(len(self.ranges))
        ]
        return [
            lanes.format(first=sql.Placeholder(f"first{run}"), last=sql.Placeholder(f"last{run}")) + each
            for run in range(len(self.runs))
            for each in of_topics or [sql.SQL("")]
        ]

    @property
    def values(self) -> dict[str, Any]:
        """What the statements bind for it."""
        values: dict[str, Any] = {}
        for number, (first, last) in enumerate(self.runs):
            values |= {f"first{number}": first, f"last{number}": last}
        for number, (low, high) in enumerate(self.ranges):
            values |= {f"low{number}": low, f"high{number}": high}
        if self.others:
            values["others"] = array_text(self.others)
        return values


class Part(NamedTuple):
    """The answer for a list of ids: rows in position order, and how many ids from the first on it settles.

    A settled id is among the rows, or is not to be published any more by this difference.
    """

    rows: list[RawRow]
    settled: int


def _of_text_headers(name: str, between: str) -> sql.Composed:
    part = sql.SQL(STATEMENTS[name])
    return sql.SQL(between).join(
        part.format(column=sql.Identifier(column), name=sql.Identifier(column))
        for column, _ in wire.TEXT_HEADERS
    )


_TEXT_BYTES = {"text_bytes": _of_text_headers("text_bytes", " + ")}
COLUMNS = sql.SQL(STATEMENTS["columns"]).format(
    headers=sql.SQL(STATEMENTS["headers"]).format(),
    text_headers=_of_text_headers("text_header", ", "),
    is_named=sql.SQL(STATEMENTS["is_named"]).format(
        longest_topic=sql.Literal(LONGEST_TOPIC), longest_key=sql.Literal(LONGEST_KEY)
    ),
)
"""The columns of `FIELDS`, of a table with `withheld`, `bytes` and the columns of outbox.message."""
_FRAGMENTS = {
    "columns": COLUMNS,
    "no_text_headers": _of_text_headers("no_text_header", ", "),
    "weight": sql.SQL(STATEMENTS["weight"]).format(**_TEXT_BYTES),
    "withheld": sql.SQL(STATEMENTS["withheld"]).format(**_TEXT_BYTES),
}
_ASKED = {"written": sql.SQL(STATEMENTS["written"]), "secured": sql.SQL(STATEMENTS["secured"])}
_NOT_ASKED = {
    "written": sql.SQL(STATEMENTS["nothing_written"]),
    "secured": sql.SQL(STATEMENTS["not_secured"]),
}

_ALL, _UNPUBLISHED = sql.SQL(""), sql.SQL(STATEMENTS["no_publication"])


def prepare_session(conn: psycopg.Connection[Any], lease: float = 10.0) -> None:
    """Apply the session settings that the finder's plans need; a transaction left open ends after `lease` seconds."""
    conn.execute(STATEMENTS["settings"], {"lease_ms": str(round(lease * 1000))})


class Finder:
    """Runs the finder's statements over the given live partitions on one connection."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        *,
        page: int = PAGE,
        page_bytes: int = PAGE_BYTES,
        row_bytes: int = ROW_BYTES,
        statements: PreparedStatements | None = None,
        lease: Lease | None = None,
    ) -> None:
        """Let polls ask whether what they find needs a barrier, where a lease is given."""
        self.conn = conn
        self._lease = lease
        self.page_size = page
        self.page_bytes = page_bytes
        self.row_bytes = row_bytes
        self._cursor = conn.cursor(binary=True)
        self._tables: tuple[str, ...] = ()
        self.statements = PreparedStatements(conn) if statements is None else statements
        self._polls = Polls(conn, self.statements)
        self._page, self._dense_page = (
            sql.SQL(STATEMENTS["page"]).format(listed=listed, **_FRAGMENTS)
            for listed in (sql.SQL(STATEMENTS["listed"]), _ALL)
        )

    def name_partitions(self, tables: tuple[str, ...]) -> None:
        """Put the statements together for these partitions (tables of schema `outbox`)."""
        if tables != self._tables:
            self._tables = tables
            self._polls.forget()

    def poll_statement(self, scope: Slice) -> sql.Composed:
        """Return the statement of a poll over the named partitions."""
        asked = _NOT_ASKED if self._lease is None else _ASKED
        branches = self.branches("branch", scope)
        return sql.SQL(STATEMENTS["poll"]).format(branches=branches, **asked, **_FRAGMENTS)

    def poll_values(self, previous: Snapshot, scope: Slice) -> dict[str, Any]:
        """Return what `poll_statement` binds."""
        values = {
            "xmax": str(previous.xmax),
            "xip": previous.xip_array,
            "page": self.page_size,
            "bytes": self.page_bytes,
            "row_bytes": self.row_bytes,
            **scope.values,
        }
        if self._lease is not None:
            values |= self._lease.ownership(scope.lanes)
        return values

    def _new_poll(self, scope: Slice) -> tuple[Numbered, dict[str, Any]]:
        types = dict.fromkeys(("page", "bytes", "row_bytes", "epoch"), INT8) | {"owner": TEXT}
        types |= {f"{bound}{run}": INT2 for run in range(len(scope.runs)) for bound in ("first", "last")}
        text = self.poll_statement(scope).as_string(self.conn)
        return Numbered.of(text, types), self.poll_values(BEGINNING, scope)

    def branches(self, name: str, scope: Slice) -> sql.Composed:
        """Return the branches of a statement, over the named partitions, for a scope."""
        branch = sql.SQL(STATEMENTS[name])
        return sql.SQL("\nUNION ALL\n").join(
            branch.format(partition=sql.Identifier("outbox", table), scope=condition)
            for condition in scope.conditions
            for table in self._tables
        )

    def poll(self, previous: Snapshot, scope: Slice, rider: Rider | None = None) -> Poll:
        """Read what is visible now and was not visible in `previous`: all of it, or counts of how it begins.

        Args:
            previous: what the last poll saw.
            scope: what to read.
            rider: a statement that is executed behind the poll in the same round trip, unless it has been before.
        """
        assert self._tables  # noqa: S101  (name_partitions comes first)
        kind = (scope, self.page_size, self.page_bytes, self.row_bytes)
        if kind not in self._polls:
            self._polls.add(kind, *self._new_poll(scope))
        return self._polls.run(kind, previous, rider)

    def backlog(self, difference: Difference, scope: Slice) -> Listing:
        """List the ids of a difference; of a partial one, those without a publication."""
        base, current, is_partial = difference
        if base == BEGINNING and scope.topic is None and not scope.without:
            bounds = {"lanes": array_text(scope.lanes), **_bounds(current)}
            return Listing(self._cursor, sql.SQL(STATEMENTS["unpublished"]), bounds)
        statement, bounds = sql.SQL(STATEMENTS["backlog"]), _difference(base, current, scope)
        parts = {"branches": self.branches("backlog_branch", scope), "unpublished": _ALL}
        if not is_partial:
            return Listing(self._cursor, statement, bounds, **parts)
        with self._no_nested_loops():
            return Listing(self._cursor, statement, bounds, **{**parts, "unpublished": _UNPUBLISHED})

    def unpublished_by_topic(self, floor: Snapshot, current: Snapshot, scope: Slice) -> dict[int, int]:
        """Count, by hash of the topic, what a large difference begins with, without what has a publication."""
        statement = sql.SQL(STATEMENTS["unpublished_by_topic"])
        branches = self.branches("backlog_branch", scope)
        values = {"page": self.page_size, **_difference(floor, current, scope)}
        with self._no_nested_loops():
            composed = statement.format(branches=branches, unpublished=_UNPUBLISHED)
            return dict(self._cursor.execute(composed, values, prepare=False).fetchall())

    @contextmanager
    def _no_nested_loops(self) -> Iterator[None]:
        self._cursor.execute(STATEMENTS["nested_loops"], {"on": "off"})
        try:
            yield
        finally:
            self._cursor.execute(STATEMENTS["nested_loops"], {"on": "on"})

    def published(self, rows: list[RawRow]) -> set[int]:
        """Return the positions of these rows, in their order, that have a publication."""
        values = {
            "positions": array_text(row[POSITION] for row in rows),
            "lowest": rows[0][POSITION],
            "highest": rows[-1][POSITION],
        }
        found = self._cursor.execute(STATEMENTS["published"], values, prepare=True).fetchall()
        return {position for (position,) in found}

    def page(self, ids: array[int], current: Snapshot) -> Part:
        """Read the rows of a backlog that are COMMITTED as `current` saw them, in position order.

        Args:
            ids: of the backlog's next rows, in position order, at least one.
            current: the snapshot that the ids were listed from.
        """
        lowest, highest = min(ids), max(ids)
        span = highest - lowest + 1
        bounds = {
            "lowest": lowest,
            "highest": highest,
            "bytes": self.page_bytes,
            "row_bytes": self.row_bytes,
            **_bounds(current),
        }
        if span <= DENSE * len(ids):
            rows = self._cursor.execute(self._dense_page, bounds, prepare=True).fetchall()
            full = _fills_page(rows)
            if span != len(ids):
                wanted = set(ids)
                rows = [row for row in rows if row[ID] in wanted]
            if rows or not full:
                return _part(ids, rows, full=full)
            # The bytes of rows that are not wanted have filled the page: nothing is known of those that are.
        bounds["ids"] = array_text(ids)
        rows = self._cursor.execute(self._page, bounds, prepare=True).fetchall()
        return _part(ids, rows, full=_fills_page(rows))

    def beyond_all_running(self) -> Snapshot:
        """Return a snapshot whose xmax is above every xid that was given out before the call."""
        self._cursor.execute(STATEMENTS["take_xid"], prepare=True)
        return self.here()[0]

    def here(self) -> tuple[Snapshot, int]:
        """Return a snapshot and the newest position given out."""
        row = self._cursor.execute(STATEMENTS["here"], prepare=True).fetchone()
        assert row is not None  # noqa: S101  (a SELECT without FROM has a row)
        return Snapshot.parse(row[0]), row[1]


def _bounds(current: Snapshot) -> dict[str, Any]:
    return {"cur_xmax": str(current.xmax), "cur_xip": current.xip_array}


def _difference(base: Snapshot, current: Snapshot, scope: Slice) -> dict[str, Any]:
    # What still runs is not searched; see "poll".
    ended = array_text(xid for xid in base.xip if current.has_ended(xid))
    bounds = {"xmax": str(base.xmax), "xip": ended, "since": str(base.xmin), **_bounds(current)}
    return bounds | scope.values


def born(row: RawRow) -> float | None:
    """Return when a message was inserted, in seconds since 1970, if it has waited to be published since then.

    A half message, a delayed one and one that was retried got another position when they became publishable.
    """
    return int(row[BORN_AT]) / 1000 if row[POSITION] == row[ID] and row[BORN_AT] is not None else None


def neighbours(lanes: Collection[int]) -> list[tuple[int, int]]:
    """Return the runs of neighbouring lanes, each with its first and its last."""
    runs: list[tuple[int, int]] = []
    for lane in sorted(lanes):
        first = runs.pop()[0] if runs and runs[-1][1] == lane - 1 else lane
        runs.append((first, lane))
    return runs


def _fills_page(rows: list[RawRow]) -> bool:
    return bool(rows) and rows[-1][FILLS_PAGE] is not None


def _part(ids: array[int], rows: list[RawRow], *, full: bool) -> Part:
    return Part(rows, ids.index(rows[-1][ID]) + 1 if full else len(ids))
