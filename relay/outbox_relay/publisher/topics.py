"""Reads known topics again, on a thread.

Publishing waits for a topic only when it appears for the first time. After that a thread reads all known topics again
before they are stale, and what is known stays in use until the answer is there, however long that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.topic import Topic
from outbox_relay.text.logs import inherit

Found = Mapping[str, Topic | Unpublishable]
Read = Callable[[psycopg.Connection[Any], Iterable[str]], Found]


class Refresher:
    """Reads topics on one thread, with a database connection of its own that is opened when it is first needed."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], read: Read) -> None:
        self._connect = connect
        self._read = read
        self._conn: psycopg.Connection[Any] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def start(self, names: Iterable[str]) -> Future[Found]:
        """Begin to read these topics."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="topics", initializer=inherit())
        return self._pool.submit(self._run, list(names))

    def _run(self, names: list[str]) -> Found:
        if self._conn is None or self._conn.closed:
            self._conn = self._connect()
        return self._read(self._conn, names)

    def close(self) -> None:
        """Wait for what was begun, and let go of thread and connection until the next start."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._conn is not None:
            self._conn.close()
