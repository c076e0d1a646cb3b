"""Fixtures of the contract: each test that asks for a session runs once per driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from tests.support.contract_sessions import DRIVERS, Session


class MakeSession(Protocol):
    """Opens a session; `connect` goes to psycopg's connect, the rest to the outbox."""

    def __call__(self, *, connect: dict[str, Any] | None = None, **outbox: Any) -> Session: ...


@pytest.fixture(params=DRIVERS)
def make_session(request: pytest.FixtureRequest, database: str) -> Iterator[Callable[..., Session]]:
    """Open sessions of one driver on the test's database; they are closed after the test."""
    made: list[Session] = []

    def make(*, connect: dict[str, Any] | None = None, **outbox: Any) -> Session:
        session = DRIVERS[request.param](database, outbox, connect or {})
        made.append(session)
        return session

    yield make
    for session in made:
        session.close()


@pytest.fixture
def session(make_session: MakeSession) -> Session:
    """A session of producer group "orders", without autocommit."""
    return make_session(producer_group="orders")


@pytest.fixture
def observer(make_session: MakeSession) -> Session:
    """Another connection, in autocommit: it sees what is committed."""
    return make_session(connect={"autocommit": True})
