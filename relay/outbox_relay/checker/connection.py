"""A connection to the outbox's database that is kept, and opened again when it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from outbox_relay.database.connections import connect


class KeptConnection:
    """Opens when it is first used; for one thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: psycopg.Connection[Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next use opens nothing."""
        return self._conn is not None and not self._conn.closed

    @contextmanager
    def use(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield the connection, in autocommit, for a few statements.

        After an error it is not kept: the server may have become a standby, and the address may lead to another.

        Raises:
            DatabaseUnreachableError: it could not be opened.
        """
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._dsn, application_name="outbox checker")
        try:
            yield self._conn
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it; the next use opens another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(psycopg.Error):
                conn.close()
