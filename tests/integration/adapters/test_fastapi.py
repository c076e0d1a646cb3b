"""The page of FastAPI runs as it stands: a request's rows and messages are one transaction, whose failure is no 200.

So does the same service with a synchronous engine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from outbox.adapters.fastapi import lifespan_of, transaction_of
from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox
from outbox.errors import ConfigurationError
from tests.support.plain_inserts import Connection

pytestmark = pytest.mark.feature("H-17")
PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "how-to" / "fastapi.md"
[EXAMPLE] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
EXAMPLE += """

@app.post("/orders/{id}/lose")
async def lose(id: str, session: Transaction) -> None:
    await orders.send(session, Message("orders", key=id))
    raise ValueError("lost")
"""
SYNCHRONOUS = (
    EXAMPLE.replace("async def", "def")
    .replace("await ", "")
    .replace("AsyncSQLAlchemyOutbox", "SQLAlchemyOutbox")
    .replace(
        "sqlalchemy.ext.asyncio import AsyncSession, create_async_engine", "sqlalchemy.orm import Session"
    )
    .replace("import text", "import create_engine, text")
    .replace("create_async_engine", "create_engine")
    .replace("AsyncSession", "Session")
)
WithApp = Callable[[Callable[[Any], Awaitable[Any]]], Any]


async def post(app: Any, path: str) -> int:
    """Ask the application as its server does, and return the status that it sent."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("shop", 80),
        "client": ("client", 1),
    }
    with suppress(Exception):  # what is also sent, as a 500
        await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.fixture(params=["psycopg", "asyncpg", "sync"])
def with_app(request: pytest.FixtureRequest, database: str, conn: Connection) -> WithApp:
    """Runs work with the application of the page, between its start and its end."""
    conn.execute("CREATE TABLE orders (id text PRIMARY KEY, state text)")
    conn.execute("INSERT INTO orders VALUES ('o-1', 'new')")
    is_sync = request.param == "sync"
    driver = "psycopg" if is_sync else request.param
    names: dict[str, Any] = {"url": database.replace("postgresql://", f"postgresql+{driver}://", 1)}
    exec(SYNCHRONOUS if is_sync else EXAMPLE, names)

    async def run(work: Callable[[Any], Awaitable[Any]]) -> Any:
        app = names["app"]
        async with app.router.lifespan_context(app):
            return await work(app)

    return lambda work: asyncio.run(run(work))


def test_a_request_commits_its_row_and_its_message(with_app: WithApp, conn: Connection) -> None:
    assert with_app(lambda app: post(app, "/orders/o-1/pay")) == 200
    assert conn.execute("SELECT state FROM orders").fetchone() == ("paid",)
    assert conn.execute("SELECT topic, key, body FROM outbox.message").fetchall() == [
        ("orders", b"o-1", b"paid")
    ]
    assert conn.execute("SELECT name, partitions FROM outbox.topic").fetchall() == [("orders", 12)]


def test_a_commit_that_fails_is_no_success(with_app: WithApp, conn: Connection) -> None:
    conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$"
    )
    conn.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    assert with_app(lambda app: post(app, "/orders/o-1/pay")) == 500
    assert conn.execute("SELECT state FROM orders").fetchone() == ("new",)
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (0,)


def test_an_endpoint_that_raises_leaves_no_row_and_no_message(with_app: WithApp, conn: Connection) -> None:
    assert with_app(lambda app: post(app, "/orders/o-1/lose")) == 500
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (0,)
    assert conn.execute("SELECT last_value > 0 AND is_called FROM outbox.position").fetchone() == (True,)


def test_a_service_without_the_schema_does_not_start(
    with_app: WithApp, conn: Connection, database: str
) -> None:
    with psycopg.connect(database) as owner:
        owner.execute("DROP SCHEMA outbox CASCADE")
    with pytest.raises(Exception, match="outbox") as caught:
        with_app(lambda app: post(app, "/orders/o-1/pay"))
    assert "run: outbox db upgrade" in "".join(caught.value.__notes__)


def test_sessions_are_made_as_the_service_wants_them(database: str) -> None:
    class Own(AsyncSession):
        pass

    engine = create_async_engine(database.replace("postgresql://", "postgresql+psycopg://", 1))

    async def first() -> object:
        given = transaction_of(async_sessionmaker(engine, class_=Own))
        async for session in given.dependency():
            return session
        return None

    assert isinstance(asyncio.run(first()), Own)


def test_the_services_own_lifespan_runs_inside(database: str, conn: Connection) -> None:
    engine = create_async_engine(database.replace("postgresql://", "postgresql+psycopg://", 1))
    seen: list[object] = []

    @asynccontextmanager
    async def own(app: object) -> AsyncIterator[None]:
        seen.append((app, conn.execute("SELECT name FROM outbox.topic").fetchall()))
        yield
        seen.append("ended")

    async def run() -> None:
        async with lifespan_of(engine, AsyncSQLAlchemyOutbox(), topics={"orders": 3}, then=own)("app"):
            assert seen == [("app", [("orders",)])]

    asyncio.run(run())
    assert seen[1:] == ["ended"]


def test_what_cannot_work_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine("postgresql+psycopg://")
    with pytest.raises(ConfigurationError, match="AsyncSQLAlchemyOutbox with AsyncEngine"):
        lifespan_of(engine, AsyncSQLAlchemyOutbox(), topics={})
    with pytest.raises(ConfigurationError, match=r"sessions: is builtins\.str; allowed: an engine"):
        transaction_of("postgresql://")
    monkeypatch.setattr("outbox.adapters.fastapi.Depends", lambda dependency, *, use_cache=True: dependency)
    with pytest.raises(ConfigurationError, match=r"pip install 'fastapi>=0\.121'"):
        transaction_of(engine)
