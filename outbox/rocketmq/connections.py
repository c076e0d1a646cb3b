"""Where a producer's connections come from: a pool of the application's, or a few kept from a DSN or a callable.

A connection is in use for one local transaction, from before its half message to after its decision. So their
number bounds how many run at a time; the others wait.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from typing import Any, NamedTuple

from psycopg.pq import TransactionStatus

from outbox.errors import ConfigurationError
from outbox.rocketmq.errors import NoConnectionError
from outbox.sessions import connect_for_listeners, connect_for_listeners_async

ALLOWED = "a DSN, a callable that returns a new connection, or a pool with `.connection()`"


class Lease(NamedTuple):
    """A connection in use, and the pool's context manager that takes it back (None: it is one of ours)."""

    conn: Any
    context: Any = None


class _Source:
    """What both kinds share: how `connect` is read, and which connections are worth keeping."""

    def __init__(self, connect: Any, most: int, timeout: float) -> None:
        if not (
            isinstance(connect, str) or callable(getattr(connect, "connection", None)) or callable(connect)
        ):
            raise ConfigurationError(f"connect: is {type(connect).__name__}; allowed: {ALLOWED}")
        if type(most) is not int or most < 1:
            raise ConfigurationError(f"connections: {most!r}; allowed: a whole number from 1")
        self._connect, self._most, self._timeout = connect, most, timeout
        self._idle: deque[Any] = deque()
        self._closed = False

    @property
    def _pooled(self) -> bool:
        return hasattr(self._connect, "connection")

    def reopen(self) -> None:
        """Keep connections again, after `close`."""
        self._closed = False

    def _idle_one(self) -> Any:
        """The connection used last, that is not known to be broken."""
        while self._idle:
            conn = self._idle.pop()
            if not conn.closed:
                return conn
        return None

    def _worth_keeping(self, conn: Any) -> bool:
        return not (self._closed or conn.closed or _is_inside(conn))

    def _none_free(self) -> NoConnectionError:
        return NoConnectionError(
            f"connections: all {self._most} were in use for {self._timeout:g} s; allowed: shorter local transactions, "
            "more connections=…, or a pool of your own"
        )


def _is_inside(conn: Any) -> bool:
    """Whether a transaction is open on the connection, or nobody knows."""
    return bool(conn.info.transaction_status != TransactionStatus.IDLE)


class Connections(_Source):
    """Connections for threads."""

    def __init__(self, connect: Any, most: int, timeout: float) -> None:
        """Read `connect`; nothing is opened yet.

        Args:
            connect: See `ALLOWED`.
            most: Connections open at a time, where they are ours.
            timeout: Seconds to wait for one.

        Raises:
            ConfigurationError: naming the argument.
        """
        super().__init__(connect, most, timeout)
        self._free = threading.Semaphore(most)

    def take(self, *, fresh: bool = False) -> Lease:
        """Take a connection out of any transaction; `fresh` asks for a new one, after one was lost.

        Raises:
            NoConnectionError: none became free in time.
        """
        if self._pooled:
            context = self._connect.connection()
            return Lease(context.__enter__(), context)
        if not self._free.acquire(timeout=self._timeout):
            raise self._none_free()
        try:
            conn = None if fresh else self._idle_one()
            return Lease(self._new() if conn is None else conn)
        except BaseException:
            self._free.release()
            raise

    def _new(self) -> Any:
        if isinstance(self._connect, str):
            return connect_for_listeners(self._connect, "outbox producer")
        return self._connect()

    def give(self, lease: Lease) -> None:
        """Give a connection back; one that is broken or inside a transaction is closed."""
        if lease.context is not None:
            if _is_inside(lease.conn):
                lease.conn.close()  # a pool would commit what it finds open
            lease.context.__exit__(None, None, None)
            return
        try:
            if self._worth_keeping(lease.conn):
                self._idle.append(lease.conn)
            else:
                lease.conn.close()
        finally:
            self._free.release()

    def close(self) -> None:
        """Close what is idle, and from now on what is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class AsyncConnections(_Source):
    """Connections for tasks of one event loop; see `Connections`."""

    def __init__(self, connect: Any, most: int, timeout: float) -> None:
        """See `Connections`."""
        super().__init__(connect, most, timeout)
        self._free = asyncio.Semaphore(most)

    async def take(self, *, fresh: bool = False) -> Lease:
        """See `Connections.take`."""
        if self._pooled:
            context = self._connect.connection()
            return Lease(await context.__aenter__(), context)
        try:
            async with asyncio.timeout(self._timeout):
                await self._free.acquire()
        except TimeoutError:
            raise self._none_free() from None
        try:
            conn = None if fresh else self._idle_one()
            return Lease(await self._new() if conn is None else conn)
        except BaseException:
            self._free.release()
            raise

    async def _new(self) -> Any:
        if isinstance(self._connect, str):
            return await connect_for_listeners_async(self._connect, "outbox producer")
        made = self._connect()
        return await made if inspect.isawaitable(made) else made

    async def give(self, lease: Lease) -> None:
        """See `Connections.give`."""
        if lease.context is not None:
            if _is_inside(lease.conn):
                await lease.conn.close()
            await lease.context.__aexit__(None, None, None)
            return
        try:
            if self._worth_keeping(lease.conn):
                self._idle.append(lease.conn)
            else:
                await lease.conn.close()
        finally:
            self._free.release()

    async def close(self) -> None:
        """See `Connections.close`."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
