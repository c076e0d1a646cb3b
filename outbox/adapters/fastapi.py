"""One transaction for each request of FastAPI, and what a service checks when it starts.

    engine = create_async_engine(url)
    orders = AsyncSQLAlchemyOutbox(producer_group="orders")
    Transaction = Annotated[AsyncSession, transaction_of(engine)]
    app = FastAPI(lifespan=lifespan_of(engine, orders, topics={"orders": 12}))

Both take an asynchronous engine for endpoints with `async def`, or a synchronous one for others.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from outbox.errors import ConfigurationError
from outbox.extras import needs

with needs("fastapi", "fastapi", "sqlalchemy", "greenlet"):
    from fastapi import Depends
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

    from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox, SQLAlchemyOutbox

AnyEngine: TypeAlias = Engine | AsyncEngine
Sessions: TypeAlias = Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[None]]


def transaction_of(sessions: Sessions) -> Any:
    """Return a dependency that gives an endpoint a session in a transaction of the request.

    An endpoint takes it as an argument of type `Annotated[Session, transaction_of(engine)]`, and does not commit it.
    The transaction is committed when the endpoint has returned and before the response is sent, so the caller gets
    no success for a commit that fails. It is rolled back when the endpoint raises.

    Args:
        sessions: an engine, or a sessionmaker with options of yours.

    Raises:
        ConfigurationError: it is of another kind, or FastAPI is older than 0.121 and would send the response first.
    """
    if "scope" not in inspect.signature(Depends).parameters:
        raise ConfigurationError(
            "fastapi: this version sends a response before its transaction is committed; allowed: 0.121 or newer, "
            "pip install 'fastapi>=0.121'"
        )
    if isinstance(sessions, AsyncEngine | async_sessionmaker):
        make = async_sessionmaker(sessions) if isinstance(sessions, AsyncEngine) else sessions

        async def asynchronous() -> AsyncIterator[AsyncSession]:
            async with make.begin() as session:
                yield session

        return Depends(asynchronous, scope="function")
    if isinstance(sessions, Engine | sessionmaker):
        made = sessionmaker(sessions) if isinstance(sessions, Engine) else sessions

        def synchronous() -> Iterator[Session]:
            with made.begin() as session:
                yield session

        return Depends(synchronous, scope="function")
    raise ConfigurationError(
        f"sessions: is {type(sessions).__module__}.{type(sessions).__qualname__}; allowed: an engine of SQLAlchemy, or "
        "a sessionmaker"
    )


def lifespan_of(
    engine: AnyEngine,
    outbox: SQLAlchemyOutbox | AsyncSQLAlchemyOutbox,
    *,
    topics: Mapping[str, int],
    then: Lifespan | None = None,
) -> Lifespan:
    """Return a lifespan that registers topics before the first request, and disposes of the engine after the last.

    The service does not start where the schema or a right is missing, or a topic is registered with another number of
    partitions: the error names what repairs it. Nothing is migrated.

    Args:
        engine: asynchronous if `outbox` is.
        outbox: the service's.
        topics: the topics that it sends to, with Kafka's number of partitions.
        then: a lifespan of the service's own, which runs inside.

    Raises:
        ConfigurationError: one of engine and outbox is asynchronous, and the other is not.
    """
    if isinstance(engine, AsyncEngine) != isinstance(outbox, AsyncSQLAlchemyOutbox):
        raise ConfigurationError(
            f"outbox: is {type(outbox).__name__}, and the engine is {type(engine).__name__}; allowed: "
            "AsyncSQLAlchemyOutbox with AsyncEngine, or SQLAlchemyOutbox with Engine"
        )

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        if isinstance(engine, AsyncEngine) and isinstance(outbox, AsyncSQLAlchemyOutbox):
            async with engine.begin() as connection:
                for name, partitions in topics.items():
                    await outbox.register_topic(connection, name, partitions)
        elif isinstance(engine, Engine) and isinstance(outbox, SQLAlchemyOutbox):
            with engine.begin() as bound:
                for name, partitions in topics.items():
                    outbox.register_topic(bound, name, partitions)
        try:
            if then is None:
                yield
            else:
                async with then(app):
                    yield
        finally:
            if isinstance(engine, AsyncEngine):
                await engine.dispose()
            else:
                engine.dispose()

    return lifespan
