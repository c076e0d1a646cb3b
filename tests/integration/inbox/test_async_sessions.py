"""Listeners with an AsyncSession of SQLAlchemy: one transaction with the inbox, which the session cannot end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AsyncOutbox, Message
from outbox.errors import ConfigurationError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from outbox.inbox.sqlalchemy import connections_of, session_listener
from tests.support.inbox_stage import InboxStage
from tests.support.waiting import wait_until

DEAD = DelaySchedule.of([])


class Base(DeclarativeBase):  # type: ignore[misc]
    """The tables of the application."""


class Visit(Base):
    """A row of the application."""

    __tablename__ = "visit"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str] = mapped_column(unique=True)


@pytest.fixture
def engine(inbox: InboxStage) -> AsyncEngine:
    """An asynchronous engine on the database of the test, with a table."""
    inbox.conn.execute("CREATE TABLE visit (id serial PRIMARY KEY, body text UNIQUE NOT NULL)")

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(inbox.dsn)

    # Its own connections are used once, to learn what the server can do; the loop of the listeners closes them.
    return create_async_engine(
        "postgresql+psycopg://", async_creator=connect, poolclass=sqlalchemy.pool.NullPool
    )


def body_of(message: ConsumedMessage) -> str:
    assert message.body is not None
    return message.body.decode()


def visits(inbox: InboxStage) -> list[str]:
    """The rows of the application."""
    return [row[0] for row in inbox.conn.execute("SELECT body FROM visit ORDER BY body").fetchall()]


async def add(session: Any, message: ConsumedMessage) -> ConsumeResult:
    session.add(Visit(body=body_of(message)))
    return ConsumeResult.SUCCESS


@pytest.mark.feature("S-90", "S-97")
def test_what_an_asynchronous_session_adds_is_committed_with_the_inbox(
    inbox: InboxStage, topic: str, engine: AsyncEngine
) -> None:
    makes = async_sessionmaker(class_=AsyncSession, expire_on_commit=False)
    backends: list[tuple[int, int]] = []

    async def listener(session: AsyncSession, message: ConsumedMessage) -> ConsumeResult:
        await add(session, message)
        await session.flush()
        row = await session.execute(text("SELECT pg_backend_pid(), count(*) FROM outbox.inbox"))
        backends.append(tuple(row.one()))
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic, session_listener(listener, engine, sessions=makes), workers=1):
        wait_until(lambda: len(visits(inbox)) == 20, "all are added")
        inbox.produce_numbered(topic, 1, start=20)
        wait_until(lambda: len(visits(inbox)) == 21, "and one more")
    assert inbox.count("outbox.inbox") == 21
    assert len({backend for backend, _ in backends}) == 1, "it is the session of the thread"
    assert [count for _, count in backends] == [*range(1, 22)], "the message is recorded in its transaction"


@pytest.mark.parametrize("result", [ConsumeResult.DISCARD, ConsumeResult.RECONSUME_LATER, ValueError("no")])
def test_an_asynchronous_session_of_a_message_that_is_not_applied_leaves_nothing(
    inbox: InboxStage, topic: str, engine: AsyncEngine, result: Any
) -> None:
    async def listener(session: AsyncSession, message: ConsumedMessage) -> ConsumeResult:
        await add(session, message)
        await session.flush()
        if body_of(message) != "0":
            return ConsumeResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    inbox.produce_numbered(topic, 3)
    with inbox.consumer(topic, session_listener(listener, engine), delays=DEAD):
        wait_until(lambda: inbox.count("outbox.inbox") == 3, "all are taken over")
        wait_until(lambda: len(visits(inbox)) == 2, "the others are added")
    assert visits(inbox) == ["1", "2"]
    assert inbox.count("outbox.inbox_parked") == (result is not ConsumeResult.DISCARD)


async def commit(session: AsyncSession) -> None:
    await session.commit()


async def begin(session: AsyncSession) -> None:
    async with session.begin():
        await session.execute(text("SELECT 1"))


@pytest.mark.parametrize("commits", [commit, begin])
def test_an_asynchronous_session_that_commits_ends_nothing(
    inbox: InboxStage, topic: str, engine: AsyncEngine, commits: Callable[[AsyncSession], Any]
) -> None:
    async def listener(session: AsyncSession, message: ConsumedMessage) -> ConsumeResult:
        if body_of(message) == "0":
            await commits(session)
        return await add(session, message)

    inbox.produce_numbered(topic, 2)
    with inbox.consumer(topic, session_listener(listener, engine), delays=DEAD):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
        wait_until(lambda: visits(inbox) == ["1"], "the other one is added")
    [(error,)] = inbox.conn.execute("SELECT error FROM outbox.inbox_parked").fetchall()
    assert "commit() of the listener's Session ended nothing" in error


def test_an_asynchronous_session_rolls_back_to_savepoints_and_itself(
    inbox: InboxStage, topic: str, engine: AsyncEngine
) -> None:
    async def listener(session: AsyncSession, message: ConsumedMessage) -> ConsumeResult:
        session.add(Visit(body="taken back"))
        await session.flush()
        await session.rollback()
        async with session.begin_nested():
            await add(session, message)
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 2)
    with inbox.consumer(topic, session_listener(listener, engine)):
        wait_until(lambda: visits(inbox) == ["0", "1"], "both are added")
    assert inbox.count("outbox.inbox") == 2


def test_an_error_of_the_last_flush_of_an_asynchronous_session_is_a_failed_attempt(
    inbox: InboxStage, topic: str, engine: AsyncEngine
) -> None:
    inbox.conn.execute("INSERT INTO visit (body) VALUES ('0')")
    inbox.produce_numbered(topic, 2)
    with inbox.consumer(topic, session_listener(add, engine), delays=DEAD):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
        wait_until(lambda: visits(inbox) == ["0", "1"], "the other one is added")


def test_an_asynchronous_session_whose_server_goes_away_costs_no_attempt(
    inbox: InboxStage, topic: str, engine: AsyncEngine
) -> None:
    seen: list[int] = []

    async def listener(session: AsyncSession, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        if len(seen) == 1:
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return await add(session, message)

    inbox.produce_numbered(topic, 2)
    with inbox.consumer(topic, session_listener(listener, engine), delays=DEAD):
        wait_until(lambda: visits(inbox) == ["0", "1"], "both are added")
    assert set(seen) == {0}
    assert len(seen) == 3


def test_a_batch_listener_may_use_an_asynchronous_session_and_the_outbox(
    inbox: InboxStage, topic: str, engine: AsyncEngine
) -> None:
    outbox = AsyncOutbox(producer_group="visits")

    async def listener(session: AsyncSession, messages: list[ConsumedMessage]) -> ConsumeResult:
        for message in messages:
            await add(session, message)
        await session.flush()
        raw = await (await session.connection()).get_raw_connection()
        conn: Any = raw.driver_connection
        await outbox.send(conn, Message("out", body=str(len(messages)).encode()))
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 10)
    with inbox.consumer(topic, session_listener(listener, engine), batch=5, linger=1.0, workers=1):
        wait_until(lambda: len(visits(inbox)) == 10, "all are added")
    bodies = inbox.conn.execute("SELECT sum(convert_from(body, 'UTF8')::int) FROM outbox.message").fetchone()
    assert bodies == (10,)


def plain(session: Any, message: ConsumedMessage) -> ConsumeResult:
    return ConsumeResult.SUCCESS


@pytest.mark.parametrize(
    ("listener", "make", "url", "allowed"),
    [
        (add, create_async_engine, "postgresql+asyncpg://", "asyncpg, cannot join the transaction"),
        (add, sqlalchemy.create_engine, "postgresql+psycopg://", "what `create_async_engine"),
        (plain, create_async_engine, "postgresql+psycopg://", "what `create_engine"),
    ],
)
def test_an_engine_that_cannot_join_the_transaction_is_refused(
    listener: Any, make: Callable[[str], Any], url: str, allowed: str
) -> None:
    with pytest.raises(ConfigurationError, match=allowed):
        session_listener(listener, make(url))
    with pytest.raises(ConfigurationError, match="create_engine"):
        connections_of(create_async_engine("postgresql+psycopg://"))  # type: ignore[arg-type]
