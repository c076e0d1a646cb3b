"""What tests of RocketMQ's programming models share: a business table, a truth to read, scripted listeners, cuts.

Each producer comes in two kinds, for threads and for asyncio. An `App` has one of them and calls it in one way, so
that the tests are written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from outbox import Message
from outbox.rocketmq import AsyncTransactionMQProducer, TransactionMQProducer, TransactionSendResult

T = TypeVar("T")


class Truth:
    """What is committed in the outbox's database, with a business table beside the outbox."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute("CREATE TABLE IF NOT EXISTS business (what text)")

    def rows(self) -> list[str]:
        """The business rows."""
        return [row[0] for row in self.conn.execute("SELECT what FROM business ORDER BY what")]

    def states(self) -> list[str]:
        """The state of every message, in order."""
        return [row[0] for row in self.conn.execute("SELECT state FROM outbox.message ORDER BY id")]

    def message(self, message_id: UUID) -> tuple[str, str | None]:
        """State and remark of one message."""
        found = self.conn.execute(
            "SELECT state, remark FROM outbox.message WHERE message_id = %s", [message_id]
        ).fetchone()
        assert found is not None
        return found[0], found[1]

    def decide(self, state: str, remark: str) -> None:
        """Decide every half message, as a checker or an operator would."""
        self.conn.execute(
            "UPDATE outbox.message SET state = %s, remark = %s WHERE state = 'UNKNOWN'", [state, remark]
        )

    def lockable(self) -> int:
        """The messages that no transaction has locked."""
        found = self.conn.execute(
            "SELECT count(*) FROM (SELECT FROM outbox.message FOR UPDATE SKIP LOCKED) free"
        ).fetchone()
        assert found is not None
        return int(found[0])

    def kill(self, pid: int) -> None:
        """End a server process, as a lost connection would, and wait until it is gone."""
        self.conn.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def close(self) -> None:
        """Disconnect."""
        self.conn.close()


@dataclass
class Script:
    """What a listener does: writes a business row, then something, then answers or raises."""

    answer: Any = True
    writes: str | None = "row"
    then: Callable[[Any], Any] | None = None
    sql: str | None = None
    """Run on `msg.connection`; what it raises is swallowed."""
    calls: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    check: Callable[[Any], Any] = lambda view: None

    def _begin(self, msg: Any, arg: Any) -> None:
        self.calls.append((msg, arg))

    def _end(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def check_local_transaction(self, view: Any) -> Any:
        """Answer a check."""
        self.asked.append(view)
        return self.check(view)


class Listener(Script):
    """The script for threads."""

    def execute_local_transaction(self, msg: Any, arg: Any) -> Any:
        self._begin(msg, arg)
        if self.writes is not None:
            msg.connection.execute("INSERT INTO business VALUES (%s)", [self.writes])
        if self.sql is not None:
            with suppress(psycopg.Error):
                msg.connection.execute(self.sql)
        if self.then is not None:
            self.then(msg)
        return self._end()


class AsyncListener(Script):
    """The script for asyncio."""

    async def execute_local_transaction(self, msg: Any, arg: Any) -> Any:
        self._begin(msg, arg)
        if self.writes is not None:
            await msg.connection.execute("INSERT INTO business VALUES (%s)", [self.writes])
        if self.sql is not None:
            with suppress(psycopg.Error):
                await msg.connection.execute(self.sql)
        if self.then is not None:
            done = self.then(msg)
            if isawaitable(done):
                await done
        return self._end()


class App:
    """An application with one `TransactionMQProducer`."""

    producer: TransactionMQProducer

    def __init__(self, dsn: str, script: dict[str, Any], options: dict[str, Any]) -> None:
        self.listener: Script = Listener(**script)
        if "listeners" not in options:
            options["listener"] = self.listener
        self.producer = TransactionMQProducer(
            "orders", options.pop("connect", dsn), **{"check": False, **options}
        )

    def start(self) -> None:
        self.producer.start()

    def send(self, message: Message, arg: Any = None, **options: Any) -> TransactionSendResult:
        return self.producer.send_message_in_transaction(message, arg, **options)

    def close(self) -> None:
        self.producer.shutdown()


class AsyncApp:
    """The same with an `AsyncTransactionMQProducer`, each call run to its end on an event loop of its own."""

    def __init__(self, dsn: str, script: dict[str, Any], options: dict[str, Any]) -> None:
        self.runner = asyncio.Runner()
        self.listener: Script = AsyncListener(**script)
        if "listeners" not in options:
            options["listener"] = self.listener
        self.producer = AsyncTransactionMQProducer(
            "orders", options.pop("connect", dsn), **{"check": False, **options}
        )

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.runner.run(wait(), context=copy_context())

    def start(self) -> None:
        self.run(self.producer.start())

    def send(self, message: Message, arg: Any = None, **options: Any) -> TransactionSendResult:
        return self.run(self.producer.send_message_in_transaction(message, arg, **options))

    def close(self) -> None:
        self.run(self.producer.shutdown())
        self.runner.close()


MakeApp = Callable[..., App | AsyncApp]
"""A fixture: makes applications; `start=False` leaves one unstarted, `options` go to the producer, the rest is the
script."""
KINDS: dict[str, type[App] | type[AsyncApp]] = {"threads": App, "asyncio": AsyncApp}


class Cut:
    """Stands in for a producer's driver and does something to the connection around the n-th step of a flow.

    Steps are what a flow asks of its driver: open, begin, verb, commit, call … A step that does not come is no error:
    `struck` tells.
    """

    def __init__(self, io: Any, at: int, *, before: Any = None, lose: bool = False) -> None:
        """Call `before(connection)` before the step, or let it happen and lose the connection and the answer."""
        self._io, self._at, self._before, self._lose = io, at, before, lose
        self._steps = 0
        self._conn: Any = None
        self.struck: str | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._io, name)
        if name not in {"open", "close", "begin", "commit", "rollback", "verb", "run", "call"}:
            return method

        def step(*args: Any, **options: Any) -> Any:
            given = args[1] if name == "verb" else args[0] if args else None
            conn = getattr(given, "conn", getattr(given, "connection", given))
            if isinstance(conn, psycopg.Connection | psycopg.AsyncConnection):
                self._conn = conn
            strikes = self._steps == self._at and self._conn is not None
            self._steps += 1
            if not strikes:
                return method(*args, **options)
            self.struck = name
            if self._before is not None:
                self._before(self._conn)
            done = method(*args, **options)
            if not self._lose:
                return done
            return self._lost_later(done) if isawaitable(done) else self._lost()

        return step

    async def _lost_later(self, done: Awaitable[Any]) -> None:
        await done
        await self._conn.close()
        raise psycopg.OperationalError("the connection was cut")

    def _lost(self) -> None:
        self._conn.close()
        raise psycopg.OperationalError("the connection was cut")
