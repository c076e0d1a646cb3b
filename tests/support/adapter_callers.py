"""One way to use the outbox of each adapter: an application's session with a business row, and a transaction.

Calls of asynchronous ones run to their end on a loop of the caller, so that each test of the contract is written once.
A transaction begins with the first call, in the way of the library; a caller that is `outside` has none, and commits
each statement by itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
from django.db import connections, transaction
from sqlalchemy import String, create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox import AsyncOutbox, Message, Outbox
from outbox.adapters.asyncpg import AsyncpgOutbox
from outbox.adapters.django import DjangoOutbox
from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox, SQLAlchemyOutbox
from tests.support.django_project import OrderOfDjango

TABLE = "CREATE TABLE orders (id text PRIMARY KEY, state text); INSERT INTO orders VALUES ('o-1', 'new')"
PAY = "UPDATE orders SET state = 'paid' WHERE id = 'o-1'"
ALIASES = ("default", "second", "third")
"""Of Django, all of one database: each caller has a connection of its own."""


class Base(DeclarativeBase):  # type: ignore[misc]
    """Of the tables of SQLAlchemy."""


class Order(Base):
    """The row that serialises a key."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(String, primary_key=True)
    state: Mapped[str] = mapped_column(String)


class Caller(ABC):
    """A session of an application, with its outbox."""

    outbox: Any
    target: Any

    def __init__(self, *, outside: bool) -> None:
        self.outside = outside
        self._runner = asyncio.Runner()
        self._is_closed = False

    def wait(self, done: Any) -> Any:
        """Run what is asynchronous to its end."""
        if not isinstance(done, Awaitable):
            return done

        async def run() -> Any:
            return await done

        return self._runner.run(run())

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the outbox in the transaction."""
        self.begin()
        return self.wait(getattr(self.outbox, name)(self.target, *args, **options))

    def send(self, body: str = "b") -> Any:
        return self.call("send", Message("orders", key="o-1", body=body))

    def begin(self) -> None:  # noqa: B027  (most need none)
        """Begin, where the library does not by itself."""

    @abstractmethod
    def pay(self) -> None:
        """Write the row as an application does."""

    @abstractmethod
    def execute(self, sql: str) -> None: ...

    @abstractmethod
    def savepoint(self, work: Callable[[], object]) -> None:
        """Run work in a savepoint that is rolled back."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    def close(self) -> None:
        """Leave the transaction to the library, and close; further calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._close()
            self._runner.close()

    @abstractmethod
    def _close(self) -> None: ...


class PsycopgCaller(Caller):
    """A connection of psycopg."""

    def __init__(self, dsn: str, kind: str, *, outside: bool) -> None:
        super().__init__(outside=outside)
        is_async = kind.startswith("async")
        connection: Any = psycopg.AsyncConnection if is_async else psycopg.Connection
        self.outbox = (AsyncOutbox if is_async else Outbox)(producer_group="orders")
        self.target = self.wait(connection.connect(dsn, autocommit=outside))

    def pay(self) -> None:
        self.execute(PAY)

    def execute(self, sql: str) -> None:
        self.wait(self.target.execute(sql))

    def savepoint(self, work: Callable[[], object]) -> None:
        block = self.target.transaction(force_rollback=True)
        if isinstance(self.outbox, Outbox):
            with block:
                work()
        else:
            self.wait(block.__aenter__())
            work()
            self.wait(block.__aexit__(None, None, None))

    def commit(self) -> None:
        self.wait(self.target.commit())

    def rollback(self) -> None:
        self.wait(self.target.rollback())

    def _close(self) -> None:
        self.wait(self.target.close())


class SQLAlchemyCaller(Caller):
    """A session or connection of SQLAlchemy."""

    def __init__(self, dsn: str, kind: str, *, outside: bool, **engine: Any) -> None:
        super().__init__(outside=outside)
        driver = "asyncpg" if "asyncpg" in kind else "psycopg"
        url = dsn.replace("postgresql://", f"postgresql+{driver}://", 1)
        if outside:
            engine["isolation_level"] = "AUTOCOMMIT"
        if kind.startswith("async"):
            self.engine: Any = create_async_engine(url, **engine)
            self.outbox = AsyncSQLAlchemyOutbox(producer_group="orders")
            makers: dict[str, Callable[[], Any]] = {
                "connection": lambda: AsyncConnection(self.engine),
                "scoped": lambda: async_scoped_session(async_sessionmaker(self.engine), lambda: 1),
                "session": lambda: AsyncSession(self.engine),
            }
        else:
            self.engine = create_engine(url, **engine)
            self.outbox = SQLAlchemyOutbox(producer_group="orders")
            makers = {
                "connection": self.engine.connect,
                "scoped": lambda: scoped_session(sessionmaker(self.engine)),
                "session": lambda: Session(self.engine),
            }
        self._is_orm = not kind.endswith("connection")
        self.target = makers[kind.rpartition(" ")[2]]()
        if isinstance(self.target, AsyncConnection):
            self.wait(self.target.start())

    def pay(self) -> None:
        if not self._is_orm:
            self.execute(PAY)
            return
        order = self.wait(self.target.get(Order, "o-1"))
        order.state = "paid"

    def execute(self, sql: str) -> None:
        self.wait(self.target.execute(text(sql)))

    def savepoint(self, work: Callable[[], object]) -> None:
        savepoint = self.target.begin_nested()
        if isinstance(savepoint, Awaitable):
            savepoint = self.wait(savepoint)
        work()
        self.wait(savepoint.rollback())

    def commit(self) -> None:
        self.wait(self.target.commit())

    def rollback(self) -> None:
        self.wait(self.target.rollback())

    def _close(self) -> None:
        self.wait(self.target.close())
        self.wait(self.engine.dispose())


class AsyncpgCaller(Caller):
    """A connection of asyncpg, or one of its pool."""

    def __init__(self, dsn: str, kind: str, *, outside: bool) -> None:
        super().__init__(outside=outside)
        self.outbox = AsyncpgOutbox(producer_group="orders")
        self._pool: Any = None
        self._block: Any = None
        if kind.endswith("pool"):
            self._pool = self.wait(_pool(dsn))
            self.target = self.wait(self._pool.acquire())
        else:
            self.target = self.wait(asyncpg.connect(dsn))

    def begin(self) -> None:
        if self._block is None and not self.outside:
            self._block = self.target.transaction()
            self.wait(self._block.start())

    def pay(self) -> None:
        self.execute(PAY)

    def execute(self, sql: str) -> None:
        self.begin()
        self.wait(self.target.execute(sql))

    def savepoint(self, work: Callable[[], object]) -> None:
        block = self.target.transaction()
        self.wait(block.start())
        work()
        self.wait(block.rollback())

    def commit(self) -> None:
        block, self._block = self._block, None
        self.wait(block.commit())

    def rollback(self) -> None:
        block, self._block = self._block, None
        self.wait(block.rollback())

    def _close(self) -> None:
        if self._pool is not None:
            if self._block is not None:
                self.rollback()  # a pool logs a transaction that is left open
            self.wait(self._pool.release(self.target))
            self.wait(self._pool.close())
        else:
            self.wait(self.target.close())


async def _pool(dsn: str) -> Any:
    return await asyncpg.create_pool(dsn, min_size=1, max_size=1)


class DjangoCaller(Caller):
    """An alias of Django."""

    def __init__(self, alias: str, *, outside: bool) -> None:
        super().__init__(outside=outside)
        self.outbox = DjangoOutbox(producer_group="orders")
        self.target = alias
        self._block: Any = None

    def begin(self) -> None:
        if self._block is None and not self.outside:
            self._block = transaction.atomic(using=self.target)
            self._block.__enter__()

    def pay(self) -> None:
        self.begin()
        order = OrderOfDjango.objects.using(self.target).get(pk="o-1")
        order.state = "paid"
        order.save()

    def execute(self, sql: str) -> None:
        self.begin()
        with connections[self.target].cursor() as cursor:
            cursor.execute(sql)

    def savepoint(self, work: Callable[[], object]) -> None:
        with transaction.atomic(using=self.target):
            work()
            transaction.set_rollback(True, using=self.target)

    def commit(self) -> None:
        block, self._block = self._block, None
        block.__exit__(None, None, None)

    def rollback(self) -> None:
        transaction.set_rollback(True, using=self.target)
        self.commit()

    def _close(self) -> None:
        if self._block is not None:
            self.rollback()
        connections[self.target].close()


SQLALCHEMY = (
    *("sqlalchemy session", "sqlalchemy scoped", "sqlalchemy connection"),
    *("async sqlalchemy session", "async sqlalchemy scoped", "async sqlalchemy connection"),
    *("async sqlalchemy asyncpg session", "async sqlalchemy asyncpg connection"),
)
KINDS = ("psycopg", "async psycopg", *SQLALCHEMY, "asyncpg", "asyncpg pool", "django")


def make_caller(dsn: str, kind: str, number: int, *, outside: bool = False) -> Caller:
    """Make a session of a kind, the number-th of a test; the aliases of Django are made by the test."""
    if kind == "django":
        return DjangoCaller(ALIASES[number], outside=outside)
    if "sqlalchemy" in kind:
        return SQLAlchemyCaller(dsn, kind, outside=outside)
    if "asyncpg" in kind:
        return AsyncpgCaller(dsn, kind, outside=outside)
    return PsycopgCaller(dsn, kind, outside=outside)
