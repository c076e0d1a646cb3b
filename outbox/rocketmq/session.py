"""One connection for the life of one message: taken, replaced when it is lost, given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from outbox.rocketmq.connections import Lease
from outbox.rocketmq.io import IO, Flow
from outbox.statements import Plan, Rows, Statement

_STANDBY_WAIT = "SyncRepWaitForLSN"
"""The server's function that waits for a standby, and warns when it gives up: the warning has no code of its own, and
its text depends on the language. A trigger's warning at COMMIT names another function."""
_ATTEMPTS = 3
"""A pool may hold several connections that a restart of the server has broken; each costs an attempt."""


class Session:
    """A connection in use, as flows hold it. At most one at a time, or senders would wait for each other's second."""

    def __init__(self, io: IO) -> None:
        self.io = io
        self._lease: Lease | None = None

    @property
    def conn(self) -> Any:
        """The connection; None before the first transaction began."""
        return self._lease.conn if self._lease is not None else None

    @property
    def lost(self) -> bool:
        """Whether there is no connection, or it is broken."""
        return self._lease is None or self._lease.conn.closed

    def begin(self) -> Flow[Any]:
        """Begin a transaction; on a new connection, if the one at hand or the one taken turns out to be broken."""
        if self.lost:
            yield from self._take(fresh=self._lease is not None)
        try:
            return (yield partial(self.io.begin, self.conn))
        except psycopg.OperationalError:
            if not self.lost:
                raise
        yield from self._take(fresh=True)
        return (yield partial(self.io.begin, self.conn))

    def apart(self, work: Callable[[Any], Flow[Any]]) -> Flow[Any]:
        """Do work in a transaction of its own, again where the connection is lost: work must bear being repeated."""
        for attempt in range(_ATTEMPTS):
            try:
                transaction = yield from self.begin()
                try:
                    result = yield from work(self.conn)
                except BaseException:
                    yield partial(self.io.rollback, transaction)
                    raise
                yield partial(self.io.commit, transaction)
            except psycopg.OperationalError:
                if not self.lost or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return result
        raise AssertionError("unreachable")

    def close(self) -> Flow[None]:
        """Give the connection back."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            yield partial(self.io.close, lease)

    def _take(self, *, fresh: bool) -> Flow[None]:
        yield from self.close()
        self._lease = yield partial(self.io.open, fresh=fresh)


@contextmanager
def standby_warnings(conn: Any) -> Iterator[list[str]]:
    """Collect the server's warnings that a commit has not reached its standby."""
    warned: list[str] = []

    def notice(diagnostic: Any) -> None:
        if diagnostic.source_function == _STANDBY_WAIT:
            warned.append(diagnostic.message_primary)

    conn.add_notice_handler(notice)
    try:
        yield warned
    finally:
        conn.remove_notice_handler(notice)


def one(text: str, *params: str) -> Plan[Rows]:
    """A plan of one statement."""
    return (yield Statement(text, params))
