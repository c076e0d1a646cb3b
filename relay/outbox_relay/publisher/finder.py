"""The finder: reads what became COMMITTED since a snapshot, in position order, page by page.

A row passes the difference of two snapshots exactly once, whatever order transactions commit in, and however
long other transactions stay open. A scan by status would find it too, but walks all dead rows under a held
snapshot; a cursor over positions or xids loses or reorders rows that commit late.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from outbox.statements import Statements
from outbox_relay.publisher.listing import Listing
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot

STATEMENTS = Statements("outbox_relay/publisher/finder.sql")

PAGE = 5_000
"""Messages per page. Larger pages drain a backlog a little faster and cost memory and latency."""
PAGE_BYTES = 16 << 20
"""Bytes of rows per page, all their fields counted; a single larger row is still a page of its own."""
ROW_BYTES = 64 << 20
"""A larger row comes without its fields: one PostgreSQL message holds a gigabyte, and no topic takes as much."""
DENSE = 2
"""A page whose ids span no more than this many times their number is read as a range."""


class Row(NamedTuple):
    """One message as the finder reads it; see `columns` in finder.sql.

    `withheld` is the size of a row of more than `ROW_BYTES`: its fields from `topic` to `traceparent` are None, except
    `queue`, `message_id` and `born_at`. `fills_page` is True in the row that fills the bytes of a page.
    """

    position: int
    id: int
    lane: int
    topic: str
    key: bytes | None
    body: bytes | None
    order_key: bytes | None
    queue: int | None
    selector: str | None
    message_id: str
    born_at: str
    headers: str | None
    tags: str | None
    index_keys: str | None
    producer_group: str | None
    transaction_id: str | None
    traceparent: str | None
    waiting: str | None
    withheld: int | None
    fills_page: bool | None


(
    POSITION, ID, LANE, TOPIC, KEY, BODY, ORDER_KEY, QUEUE, SELECTOR, MESSAGE_ID, BORN_AT, HEADERS, TAGS,
    INDEX_KEYS, PRODUCER_GROUP, TRANSACTION_ID, TRACEPARENT, WAITING, WITHHELD, FILLS_PAGE,
) = range(len(Row._fields))  # fmt: skip

RawRow = tuple[Any, ...]
"""The same fields in the same order, as the driver gives them: the hot path makes no object of its own."""


@dataclass(slots=True)
class Poll:
    """The answer of one poll: the new snapshot, the first page of the difference, and whether there is more."""

    snapshot: Snapshot
    newest: int
    rows: list[RawRow]
    more: bool


class Part(NamedTuple):
    """The answer for a list of ids: rows in position order, and how many ids from the first on it settles.

    A settled id is among the rows, or is not to be published any more by this difference.
    """

    rows: list[RawRow]
    settled: int


COLUMNS = sql.SQL(STATEMENTS["columns"]).format(headers=sql.SQL(STATEMENTS["headers"]).format())
"""The columns of a `Row`, of a table with `withheld` and `bytes` beside the columns of outbox.message."""
_FRAGMENTS = {
    "columns": COLUMNS,
    "weight": sql.SQL(STATEMENTS["weight"]).format(),
    "withheld": sql.SQL(STATEMENTS["withheld"]).format(),
}


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
    ) -> None:
        self.conn = conn
        self.page_size = page
        self.page_bytes = page_bytes
        self.row_bytes = row_bytes
        self._cursor = conn.cursor(binary=True)
        self._tables: tuple[str, ...] = ()
        self._poll: sql.Composed | None = None
        self._page = sql.SQL(STATEMENTS["page"]).format(**_FRAGMENTS)
        self._dense_page = sql.SQL(STATEMENTS["dense_page"]).format(**_FRAGMENTS)

    def name_partitions(self, tables: tuple[str, ...]) -> None:
        """Put the statements together for these partitions (tables of schema `outbox`)."""
        if tables == self._tables:
            return
        self._tables = tables
        self._poll = sql.SQL(STATEMENTS["poll"]).format(branches=self._branches("branch"), **_FRAGMENTS)

    def _branches(self, name: str) -> sql.Composed:
        branch = sql.SQL(STATEMENTS[name])
        return sql.SQL("\nUNION ALL\n").join(
            branch.format(partition=sql.Identifier("outbox", table)) for table in self._tables
        )

    def poll(self, previous: Snapshot, lanes: Collection[int]) -> Poll:
        """Read the first page of what is visible now and was not visible in `previous`."""
        assert self._poll is not None  # noqa: S101  (name_partitions comes first)
        cursor = self._cursor
        cursor.execute(
            self._poll,
            {
                "lanes": array_text(lanes),
                "xmax": str(previous.xmax),
                "xip": previous.xip_array,
                "page": self.page_size,
                "bytes": self.page_bytes,
                "row_bytes": self.row_bytes,
            },
            prepare=True,
        )
        rows = cursor.fetchall()
        count, newest, _, snapshot, *_ = rows[0]
        del rows[0]
        more = count > len(rows) or count > self.page_size
        if len(rows) > self.page_size:
            rows.pop()
        return Poll(Snapshot.parse(snapshot), newest, rows, more)

    def backlog(self, previous: Snapshot, current: Snapshot, lanes: Collection[int], after: int) -> Listing:
        """List the ids of what `current` sees and `previous` does not, beyond a position."""
        bounds = {
            "lanes": array_text(lanes),
            "cur_xmax": str(current.xmax),
            "cur_xip": current.xip_array,
            "after": after,
        }
        if previous == BEGINNING:
            return Listing(self._cursor, sql.SQL(STATEMENTS["unpublished"]), bounds)
        bounds |= {"xmax": str(previous.xmax), "xip": previous.xip_array}
        return Listing(
            self._cursor, sql.SQL(STATEMENTS["backlog"]), bounds, branches=self._branches("backlog_branch")
        )

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
            "cur_xmax": str(current.xmax),
            "cur_xip": current.xip_array,
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


def array_text(values: Iterable[int]) -> str:
    """Write numbers as PostgreSQL's text of an array, which is bound several times faster than a list."""
    return f"{{{','.join(map(str, values))}}}"


def _fills_page(rows: list[RawRow]) -> bool:
    return bool(rows) and rows[-1][FILLS_PAGE] is not None


def _part(ids: array[int], rows: list[RawRow], *, full: bool) -> Part:
    return Part(rows, ids.index(rows[-1][ID]) + 1 if full else len(ids))
