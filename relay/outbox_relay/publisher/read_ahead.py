"""Reading ahead: the next page of a backlog is read while the present one is being produced.

PostgreSQL then works at the same time as the relay. The read-ahead has a connection of its own, made when the
first large backlog needs it. It only ever reads rows by id that were found before, so its snapshot does not
matter; a page that is read and then not needed is forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from outbox_relay.publisher.finder import PAGE_BYTES, Finder, Part, prepare_session
from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.text.logs import inherit


class ReadAhead:
    """One page in advance, on one thread."""

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], page: int, page_bytes: int = PAGE_BYTES
    ) -> None:
        self._connect = connect
        self._page = page
        self._page_bytes = page_bytes
        self._finder: Finder | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead", initializer=inherit())
        self._next: tuple[array[int], Future[Part]] | None = None

    def start(self, ids: array[int], current: Snapshot) -> None:
        """Begin to read these rows, listed from the snapshot `current`."""
        self._next = (ids, self._pool.submit(self._read, ids, current))

    def take(self, ids: array[int]) -> Part | None:
        """Return the part if exactly these were begun, else None.

        Raises:
            psycopg.OperationalError: the connection of the read-ahead is gone.
        """
        if self._next is None:
            return None
        begun, part = self._next
        self._next = None
        return part.result() if begun == ids else None

    def _read(self, ids: array[int], current: Snapshot) -> Part:
        if self._finder is None:
            conn = self._connect()
            prepare_session(conn)
            self._finder = Finder(conn, page=self._page, page_bytes=self._page_bytes)
        return self._finder.page(ids, current)

    def close(self) -> None:
        """Wait for what was begun, and close the connection."""
        self._pool.shutdown(wait=True)
        if self._finder is not None:
            self._finder.conn.close()
