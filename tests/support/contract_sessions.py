"""One way to use the library for the contract: a session is a connection with its outbox, sync or async.

Every test of the contract runs once per driver. An asynchronous session runs each call to its end on an event loop
of its own, so that the tests themselves are written once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, LiteralString, Protocol, TypeVar

import psycopg

from outbox import AsyncOutbox, Decision, HalfMessage, Message, Outbox, ProducerGroup, Receipt, Topic

T = TypeVar("T")
WAIT = 20.0
"""Seconds after which a condition that should come true has failed."""


class Session(Protocol):
    """A connection, and an outbox that sends on it."""

    conn: Any
    pid: int

    def execute(self, query: LiteralString, params: Sequence[Any] | None = None) -> list[Any]: ...
    def send(self, message: Message, **options: Any) -> Receipt: ...
    def send_many(self, messages: Iterable[Message], **options: Any) -> list[Receipt]: ...
    def register_topic(self, name: str, partitions: int, **options: Any) -> Topic: ...
    def register_group(self, name: str, **options: Any) -> ProducerGroup: ...
    def prepare(self, message: Message, **options: Any) -> HalfMessage: ...
    def commit_half(self, half: Any, **options: Any) -> Decision: ...
    def roll_back_half(self, half: Any, **options: Any) -> Decision: ...
    def join(self, half: Any) -> None: ...
    def cancel(self, message_id: Any, **options: Any) -> Decision: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def in_transaction(self, work: Callable[[], T]) -> T: ...
    def in_pipeline(self, work: Callable[[], T]) -> T: ...
    def set_autocommit(self) -> None: ...
    def close(self) -> None: ...


class SyncSession:
    """`Outbox` on a `psycopg.Connection`."""

    def __init__(self, dsn: str, outbox: dict[str, Any], connect: dict[str, Any]) -> None:
        self.outbox, self.conn = Outbox(**outbox), psycopg.connect(dsn, **connect)
        self.pid = self.conn.info.backend_pid

    def execute(self, query: LiteralString, params: Sequence[Any] | None = None) -> list[Any]:
        cursor = self.conn.execute(query, params)
        return cursor.fetchall() if cursor.description else []

    def send(self, message: Message, **options: Any) -> Receipt:
        return self.outbox.send(self.conn, message, **options)

    def send_many(self, messages: Iterable[Message], **options: Any) -> list[Receipt]:
        return self.outbox.send_many(self.conn, messages, **options)

    def register_topic(self, name: str, partitions: int, **options: Any) -> Topic:
        return self.outbox.register_topic(self.conn, name, partitions, **options)

    def register_group(self, name: str, **options: Any) -> ProducerGroup:
        return self.outbox.register_group(self.conn, name, **options)

    def prepare(self, message: Message, **options: Any) -> HalfMessage:
        return self.outbox.prepare(self.conn, message, **options)

    def commit_half(self, half: Any, **options: Any) -> Decision:
        return self.outbox.commit(self.conn, half, **options)

    def roll_back_half(self, half: Any, **options: Any) -> Decision:
        return self.outbox.rollback(self.conn, half, **options)

    def join(self, half: Any) -> None:
        self.outbox.join(self.conn, half)

    def cancel(self, message_id: Any, **options: Any) -> Decision:
        return self.outbox.cancel(self.conn, message_id, **options)

    def commit(self) -> None:
        self.conn.commit()

    def rollback(self) -> None:
        self.conn.rollback()

    def in_transaction(self, work: Callable[[], T]) -> T:
        with self.conn.transaction():
            return work()

    def in_pipeline(self, work: Callable[[], T]) -> T:
        with self.conn.pipeline():
            return work()

    def set_autocommit(self) -> None:
        self.conn.autocommit = True

    def close(self) -> None:
        self.conn.close()


class AsyncSession:
    """`AsyncOutbox` on a `psycopg.AsyncConnection`."""

    def __init__(self, dsn: str, outbox: dict[str, Any], connect: dict[str, Any]) -> None:
        self._runner = asyncio.Runner()
        self.outbox = AsyncOutbox(**outbox)
        self.conn: psycopg.AsyncConnection[Any] = self._run(psycopg.AsyncConnection.connect(dsn, **connect))
        self.pid = self.conn.info.backend_pid

    def _run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self._runner.run(wait())

    def execute(self, query: LiteralString, params: Sequence[Any] | None = None) -> list[Any]:
        async def wait() -> list[Any]:
            cursor = await self.conn.execute(query, params)
            return await cursor.fetchall() if cursor.description else []

        return self._run(wait())

    def send(self, message: Message, **options: Any) -> Receipt:
        return self._run(self.outbox.send(self.conn, message, **options))

    def send_many(self, messages: Iterable[Message], **options: Any) -> list[Receipt]:
        return self._run(self.outbox.send_many(self.conn, messages, **options))

    def register_topic(self, name: str, partitions: int, **options: Any) -> Topic:
        return self._run(self.outbox.register_topic(self.conn, name, partitions, **options))

    def register_group(self, name: str, **options: Any) -> ProducerGroup:
        return self._run(self.outbox.register_group(self.conn, name, **options))

    def prepare(self, message: Message, **options: Any) -> HalfMessage:
        return self._run(self.outbox.prepare(self.conn, message, **options))

    def commit_half(self, half: Any, **options: Any) -> Decision:
        return self._run(self.outbox.commit(self.conn, half, **options))

    def roll_back_half(self, half: Any, **options: Any) -> Decision:
        return self._run(self.outbox.rollback(self.conn, half, **options))

    def join(self, half: Any) -> None:
        self._run(self.outbox.join(self.conn, half))

    def cancel(self, message_id: Any, **options: Any) -> Decision:
        return self._run(self.outbox.cancel(self.conn, message_id, **options))

    def commit(self) -> None:
        self._run(self.conn.commit())

    def rollback(self) -> None:
        self._run(self.conn.rollback())

    def in_transaction(self, work: Callable[[], T]) -> T:
        return self._within(self.conn.transaction(), work)

    def in_pipeline(self, work: Callable[[], T]) -> T:
        return self._within(self.conn.pipeline(), work)

    def _within(self, manager: Any, work: Callable[[], T]) -> T:
        """Enter and leave an asynchronous context around work that itself runs calls of this session."""
        self._run(manager.__aenter__())
        try:
            result = work()
        except BaseException:
            self._run(manager.__aexit__(*sys.exc_info()))
            raise
        self._run(manager.__aexit__(None, None, None))
        return result

    def set_autocommit(self) -> None:
        self._run(self.conn.set_autocommit(True))

    def close(self) -> None:
        self._run(self.conn.close())
        self._runner.close()


DRIVERS: dict[str, type[SyncSession] | type[AsyncSession]] = {"sync": SyncSession, "async": AsyncSession}


def count(session: Session) -> int:
    """The messages that this session can see."""
    number: int = session.execute("SELECT count(*) FROM outbox.message")[0][0]
    return number


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition is true; fail when it does not become so."""
    pause, deadline = threading.Event(), time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"after {WAIT:.0f} s still not: {what}"
        pause.wait(0.01)


def is_blocked(observer: Session, pid: int) -> bool:
    """Whether the backend waits for a lock that another one holds."""
    return bool(
        observer.execute("SELECT pg_catalog.cardinality(pg_blocking_pids(%s)) > 0 AS blocked", [pid])[0][0]
    )
