"""The outbox on SQLAlchemy's sessions: what holds beyond the contract of all adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from outbox import Message
from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox, SQLAlchemyOutbox
from outbox.errors import InvalidConnectionError
from tests.support.adapter_callers import TABLE, Order
from tests.support.plain_inserts import Connection

pytestmark = pytest.mark.feature("H-17")


@pytest.fixture
def url(database: str, conn: Connection) -> str:
    conn.execute(TABLE)
    return database.replace("postgresql://", "postgresql+psycopg://", 1)


def bodies(conn: Connection) -> list[bytes]:
    return [body for (body,) in conn.execute("SELECT body FROM outbox.message ORDER BY id").fetchall()]


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
    assert bodies(conn) == [b"at the end"]


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
