"""What holds for an outbox on SQLAlchemy: order under an ORM, a receipt and a row or neither.

Each test runs for `Session`, `scoped_session` and `Connection`, and for their asynchronous counterparts. Each call of
these runs to its end on a loop of the test, so that each test is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, String, create_engine, event, select, text
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox import Message
from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox, SQLAlchemyOutbox
from outbox.errors import DecidedOtherwiseError, InvalidConnectionError, NoTransactionError
from tests.support.plain_inserts import Connection

pytestmark = pytest.mark.feature("H-17")


class Base(DeclarativeBase):  # type: ignore[misc]
    """Of the tables of these tests."""


class Order(Base):
    """The row that serialises a key."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(String, primary_key=True)
    state: Mapped[str] = mapped_column(String)


class Caller:
    """A session or connection with its outbox; each call runs to its end."""

    def __init__(self, url: str, kind: str, **engine: Any) -> None:
        self.is_async = kind.startswith("async")
        self._runner = asyncio.Runner() if self.is_async else None
        made: Any
        if self.is_async:
            self.engine: Any = create_async_engine(url, **engine)
            self.outbox: Any = AsyncSQLAlchemyOutbox(producer_group="orders")
            made = {
                "async session": lambda: AsyncSession(self.engine),
                "async scoped": lambda: async_scoped_session(async_sessionmaker(self.engine), lambda: 1),
                "async connection": lambda: AsyncConnection(self.engine),
            }[kind]
        else:
            self.engine = create_engine(url, **engine)
            self.outbox = SQLAlchemyOutbox(producer_group="orders")
            made = {
                "session": lambda: Session(self.engine),
                "scoped": lambda: scoped_session(sessionmaker(self.engine)),
                "connection": self.engine.connect,
            }[kind]
        self.target = made()
        if kind == "async connection":
            self._wait(self.target.start())

    def _wait(self, done: Any) -> Any:
        if self._runner is None or not asyncio.iscoroutine(done):
            return done

        async def wait() -> Any:
            return await done

        return self._runner.run(wait())

    def do(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the session or connection."""
        return self._wait(getattr(self.target, name)(*args, **options))

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the outbox with it."""
        return self._wait(getattr(self.outbox, name)(self.target, *args, **options))

    def send(self, key: str = "o-1", body: str = "b") -> Any:
        return self.call("send", Message("orders", key=key, body=body))

    def nested(self, work: Callable[[], None]) -> None:
        """Run work in a savepoint that is rolled back."""
        savepoint = self.target.begin_nested()
        if self.is_async:

            async def begin() -> Any:
                return await savepoint

            assert self._runner is not None
            savepoint = self._runner.run(begin())
        work()
        self._wait(savepoint.rollback())

    def close(self) -> None:
        self.do("close")
        self._wait(self.engine.dispose())
        if self._runner is not None:
            self._runner.close()


KINDS = ("session", "scoped", "connection", "async session", "async scoped", "async connection")
ORM = [kind for kind in KINDS if not kind.endswith("connection")]
MakeCaller = Callable[..., Caller]


@pytest.fixture
def url(database: str, conn: Connection) -> str:
    conn.execute("CREATE TABLE orders (id text PRIMARY KEY, state text)")
    conn.execute("INSERT INTO orders VALUES ('o-1', 'new')")
    return database.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture(params=KINDS)
def make_caller(request: pytest.FixtureRequest, url: str) -> Iterator[MakeCaller]:
    made: list[Caller] = []

    def make(**engine: Any) -> Caller:
        made.append(Caller(url, request.param, **engine))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


def bodies(conn: Connection) -> list[str]:
    rows = conn.execute(
        "SELECT convert_from(body, 'UTF8') FROM outbox.message WHERE state = 'COMMITTED' ORDER BY position"
    )
    return [body for (body,) in rows.fetchall()]


def test_a_message_is_there_if_and_only_if_the_transaction_committed(
    make_caller: MakeCaller, conn: Connection
) -> None:
    caller = make_caller()
    caller.send(body="lost")
    caller.do("rollback")
    caller.send(body="kept")
    assert bodies(conn) == []
    caller.do("commit")
    assert bodies(conn) == ["kept"]


def test_a_receipt_without_a_commit_stands_for_no_row(make_caller: MakeCaller, conn: Connection) -> None:
    caller = make_caller()
    receipt = caller.send()
    caller.do("close")
    assert receipt.message_id is not None
    assert bodies(conn) == []


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(
    make_caller: MakeCaller, conn: Connection
) -> None:
    caller = make_caller()
    caller.send(body="outside")
    caller.nested(lambda: caller.send(body="inside"))
    caller.do("commit")
    assert bodies(conn) == ["outside"]


def test_autocommit_is_refused(make_caller: MakeCaller, conn: Connection) -> None:
    caller = make_caller(isolation_level="AUTOCOMMIT")
    with pytest.raises(NoTransactionError):
        caller.send()
    assert bodies(conn) == []


def test_a_half_message_is_decided_by_another_session(make_caller: MakeCaller, conn: Connection) -> None:
    caller, other = make_caller(), make_caller()
    half = caller.call("prepare", Message("orders", key="o-1", body="half", checker="c", biz_id="1"))
    caller.do("commit")
    other.call("commit", half)
    other.do("commit")
    assert bodies(conn) == ["half"]
    with pytest.raises(DecidedOtherwiseError):
        caller.call("rollback", half)
    caller.do("rollback")


def test_an_error_of_the_database_is_psycopgs_own(make_caller: MakeCaller, conn: Connection) -> None:
    caller = make_caller()
    caller.do("execute", text("SELECT set_config('statement_timeout', '200', true)"))
    conn.execute("BEGIN")
    conn.execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(psycopg.errors.QueryCanceled):
        caller.send()
    conn.execute("ROLLBACK")
    caller.do("rollback")
    caller.send(body="after")
    caller.do("commit")
    assert bodies(conn) == ["after"]


@pytest.mark.parametrize("make_caller", ORM, indirect=True)
def test_messages_of_a_key_are_in_the_order_in_which_its_row_was_written(
    make_caller: MakeCaller, url: str, conn: Connection
) -> None:
    """Without a flush both would be sent before either has the lock of the row, in any order."""
    first = make_caller()
    engine: Engine = create_engine(url)
    order = first.do("get", Order, "o-1")
    order.state = "paid"
    first.send(body="paid")
    with Session(engine) as second:
        row = second.execute(select(Order).where(Order.id == "o-1")).scalar_one()
        second.execute(text("SELECT set_config('lock_timeout', '200ms', true)"))
        row.state = "sent"
        with pytest.raises(Exception, match="lock timeout"):
            SQLAlchemyOutbox().send(second, Message("orders", key="o-1", body="sent"))
        second.rollback()
        first.do("commit")
        row = second.execute(select(Order).where(Order.id == "o-1")).scalar_one()
        row.state = "sent"
        SQLAlchemyOutbox().send(second, Message("orders", key="o-1", body="sent"))
        second.commit()
    engine.dispose()
    assert bodies(conn) == ["paid", "sent"]


def test_a_session_that_is_flushing_is_refused_with_the_way_out(url: str) -> None:
    engine = create_engine(url)
    with Session(engine) as session:

        @event.listens_for(session, "after_flush")
        def send(session: Session, context: object) -> None:
            SQLAlchemyOutbox().send(session, Message("orders", key="k", body="b"))

        session.add(Order(id="o-9", state="new"))
        with pytest.raises(InvalidConnectionError, match="before_commit"):
            session.commit()
    engine.dispose()


def test_sending_before_the_commit_is_fine(url: str, conn: Connection) -> None:
    engine = create_engine(url)
    with Session(engine) as session:

        @event.listens_for(session, "before_commit")
        def send(session: Session) -> None:
            SQLAlchemyOutbox().send(session, Message("orders", key="k", body="at the end"))

        session.add(Order(id="o-9", state="new"))
        session.commit()
    engine.dispose()
    assert bodies(conn) == ["at the end"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (lambda: create_engine("sqlite://").connect(), r"is of sqlite\+pysqlite; allowed here: an engine of"),
        (Session, "of several engines, or of none"),
        (object, r"is builtins.object; allowed here: sqlalchemy.orm.session.Session, "),
        (lambda: Session(create_async_engine("postgresql+psycopg://").sync_engine), r"psycopg \(async\)"),
    ],
)
def test_what_cannot_carry_a_message_is_refused_by_name(target: Callable[[], Any], expected: str) -> None:
    with pytest.raises(InvalidConnectionError, match=expected):
        SQLAlchemyOutbox().send(target(), Message("orders", body="b"))


def test_another_kind_is_refused_by_an_asynchronous_outbox() -> None:
    with pytest.raises(InvalidConnectionError, match=r"allowed here: sqlalchemy\.ext\.asyncio"):
        asyncio.run(AsyncSQLAlchemyOutbox().send(Session(), Message("orders", body="b")))
