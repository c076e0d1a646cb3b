"""Reading ahead: the next page of a backlog is read while the present one is being produced.

PostgreSQL then works at the same time as the relay. The read-ahead has a connection of its own, made when the first
backlog needs it. It only ever reads rows by id that were found before, so its snapshot does not matter.

The list of what is read apart is made, taken and closed here, too: for a million messages it takes a second or more, in
which the session goes on with the other topics. It is made from what two snapshots of the session see, by xid,
so it does not matter that it is made later: a message that has another xid by then belongs to a later difference.
Schedules: the connection is lost: the session finds out when it takes the next page, ends, and starts over from what is
recorded. A partition is dropped before the list is made: it is made again without it. The relay stops while a list is
made: the statement is cancelled.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg

from outbox_relay.publisher.finder import PAGE_BYTES, Finder, RawRow, Slice, prepare_session
from outbox_relay.publisher.polls import Listing
from outbox_relay.publisher.snapshot import Difference
from outbox_relay.text.logs import inherit

QUANTUM = 1_000
"""Messages of a topic that is read apart between two pages of the others."""
QUANTUM_BYTES = 1 << 20
"""Their bytes, all fields counted; a single larger row is still a page of its own."""


class ReadAhead:
    """Makes lists and reads their pages, on one thread."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], page: int, page_bytes: int = PAGE_BYTES
    ) -> None:
        self._connect = connect
        self._page = page
        self._page_bytes = page_bytes
        self._conn: psycopg.Connection[Any] | None = None
        self._finder: Finder | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead", initializer=inherit())

    def list(self, difference: Difference, scope: Slice) -> ListAhead:
        """Return a list of an open difference, which is made when its first page is taken."""
        return ListAhead(self._pool, self.finder, difference, scope)

    def finder(self, page_bytes: int) -> Finder:
        """Return the finder of this thread, for pages of so many bytes."""
        if self._finder is None:
            conn = self._conn = self._connect()
            prepare_session(conn)
            self._finder = Finder(conn, page=self._page)
        self._finder.page_bytes = min(page_bytes, self._page_bytes)
        return self._finder

    def close(self) -> None:
        """Cancel what is under way, and close the connection."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._conn is not None:
            with suppress(psycopg.Error):
                self._conn.cancel()
        self._pool.shutdown(wait=True)
        if self._conn is not None:
            self._conn.close()


class ListAhead:
    """The messages of a topic that is read apart: listed, and read a page in advance."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        finder: Callable[[int], Finder],
        difference: Difference,
        scope: Slice,
    ) -> None:
        self.tables: tuple[str, ...] = ()
        """The partitions that the page under way, or the last one, was begun with."""
        self._pool = pool
        self._finder = finder
        self._difference = difference
        self._scope = scope
        self._listing: Listing | None = None
        self._ids = array("q")
        self._next: Future[tuple[list[RawRow], bool]] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the next page is read."""
        return self._next is not None and self._next.done()

    def begin(self, tables: tuple[str, ...], size: int) -> None:
        """Begin to read a page of `size` messages, unless one is read already.

        Args:
            tables: the partitions that can hold its messages.
            size: messages of a page; up to `QUANTUM` its bytes are limited to `QUANTUM_BYTES`.
        """
        if self._next is None:
            self.tables = tables
            self._next = self._pool.submit(self._read, tables, size)

    def take(self) -> tuple[list[RawRow], bool]:
        """Wait for the next page; return its rows, and whether it is the last.

        Raises:
            psycopg.errors.UndefinedTable: a partition has been dropped before the list was made; begin again.
            psycopg.OperationalError: the connection of the read-ahead is gone.
        """
        assert self._next is not None  # noqa: S101  (begin comes first)
        page, self._next = self._next, None
        return page.result()

    def close(self) -> None:
        """Give the list up, unless nothing of it is left to close."""
        if self._next is not None or (self._listing is not None and self._listing.is_open):
            self._pool.submit(self._close)

    def _read(self, tables: tuple[str, ...], size: int) -> tuple[list[RawRow], bool]:
        finder = self._finder(QUANTUM_BYTES if size <= QUANTUM else PAGE_BYTES)
        if self._listing is None:
            finder.name_partitions(tables)
            self._listing = finder.backlog(self._difference, self._scope)
        while True:
            if not self._ids and self._listing.is_open:
                self._ids = self._listing.take()
            if not self._ids:
                return [], True
            rows, settled = finder.page(self._ids[:size], self._difference.current)
            del self._ids[:settled]
            is_last = not self._ids and not self._listing.is_open
            if rows or is_last:
                return rows, is_last

    def _close(self) -> None:
        if self._listing is not None:
            self._listing.close()
