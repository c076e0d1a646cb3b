"""Applications with a producer of RocketMQ 5.x's model, for threads and for asyncio, called in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, TypeVar

import psycopg

from outbox.rocketmq import AsyncProducer, Producer

T = TypeVar("T")


class Checker:
    """RocketMQ 5.x's TransactionChecker."""

    def check(self, message_view: Any) -> Any:
        return None


class App:
    """An application with one `Producer` and a business connection, called in one way for both kinds."""

    def __init__(self, dsn: str, options: dict[str, Any]) -> None:
        self.producer: Any = self.make(options.pop("connect", dsn), **options)
        self.conn: Any = self.run(self.connect(dsn))

    make: Callable[..., Any] = Producer

    def connect(self, dsn: str) -> Any:
        return psycopg.connect(dsn)

    def run(self, done: T) -> T:
        return done

    def start(self) -> None:
        self.run(self.producer.start())

    def execute(self, sql: str) -> None:
        self.run(self.conn.execute(sql))

    def commit(self) -> None:
        self.run(self.conn.commit())

    def rollback(self) -> None:
        self.run(self.conn.rollback())

    def block(self, work: Callable[[Any], None]) -> None:
        with self.producer.begin(self.conn) as transaction:
            work(transaction)

    def close(self) -> None:
        self.run(self.producer.shutdown())
        self.run(self.conn.close())


class AsyncApp(App):
    """The same with an `AsyncProducer`; each call runs to its end on an event loop of its own."""

    make = AsyncProducer

    def __init__(self, dsn: str, options: dict[str, Any]) -> None:
        self.runner = asyncio.Runner()
        super().__init__(dsn, options)

    def connect(self, dsn: str) -> Any:
        return psycopg.AsyncConnection.connect(dsn)

    def run(self, done: Any) -> Any:
        async def wait(awaitable: Awaitable[Any]) -> Any:
            return await awaitable

        return self.runner.run(wait(done), context=copy_context()) if hasattr(done, "__await__") else done

    def block(self, work: Callable[[Any], None]) -> None:
        manager = self.producer.begin(self.conn)
        transaction = self.run(manager.__aenter__())
        try:
            work(transaction)
        except BaseException as error:
            if not self.run(manager.__aexit__(type(error), error, None)):
                raise
        else:
            self.run(manager.__aexit__(None, None, None))

    def close(self) -> None:
        super().close()
        self.runner.close()


MakeApp5x = Callable[..., App]
"""A fixture: makes applications; `start=False` leaves one unstarted, the rest goes to the producer."""
