"""What database, role and environment set does not reach the sessions of the product."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outbox import sessions
from outbox.checking import GroupChecker
from outbox.inbox.sessions import limit_transactions
from outbox.rocketmq.connections import AsyncConnections, Connections
from outbox_migrations import sessions as migrations
from outbox_relay.database import connections
from tests.support import hostile
from tests.support.checked_half_messages import Script

Session = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def _hostile(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile.set_for_database(database, hostile.EVERYTHING)
    monkeypatch.setenv("PGOPTIONS", "-c row_security=on -c search_path=public,pg_catalog -c work_mem=1MB")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGDATESTYLE", "German")


@contextmanager
def _checker(connect: str | Callable[[], Session]) -> Iterator[Session]:
    checker = GroupChecker(connect, f"group-{uuid4().hex[:8]}", Script(None))
    with checker._connection() as conn:
        yield conn
    checker.stop()


OWN: dict[str, Callable[[str], Any]] = {
    "relay, checker and commands": connections.connect,
    "keys": sessions.connect,
    "migrations": migrations.connect,
    "group checker": _checker,
    "group checker of a callable": lambda dsn: _checker(lambda: psycopg.connect(dsn)),
}


@pytest.mark.parametrize("opened", OWN)
def test_a_session_of_ours_has_the_settings_of_the_list(opened: str, database: str) -> None:
    with OWN[opened](database) as conn:
        wanted = {**sessions.OWN, **sessions.limits(conn.info.server_version)}
        assert _settings(conn, wanted) == wanted
        conn.rollback()
        assert _settings(conn, wanted) == wanted, "a rollback takes none of them back"
        assert conn.execute("SELECT '每'").fetchone() == ("每",)


def test_no_time_out_that_a_role_may_set_is_left(database: str) -> None:
    with connections.connect(database) as conn:
        found = conn.execute(
            "SELECT name, setting FROM pg_settings WHERE context = 'user' AND name LIKE '%\\_timeout' "
            "AND setting <> '0' AND name <> 'wal_sender_timeout'"  # for replication
        ).fetchall()
    assert found == []


@pytest.mark.parametrize("given", ["a DSN", "a callable"])
def test_a_listeners_session_is_as_its_role_has_it_but_for_limits_and_encoding(
    given: str, database: str
) -> None:
    def called() -> Session:
        return psycopg.connect(database, client_encoding="UTF8")

    opened = sessions.connect_for_listeners(database, "c") if given == "a DSN" else called()
    with opened as conn:
        limit_transactions(conn, 30, lock_wait=2.0)
        version = conn.info.server_version
        names = ["transaction_timeout"]
        if version < 170_000:
            names = ["statement_timeout", "idle_in_transaction_session_timeout"]
        wanted = sessions.limits(version, lock_timeout=2000, **dict.fromkeys(names, 30_000))
        assert {name: _milliseconds(text) for name, text in _settings(conn, wanted).items()} == wanted
        assert conn.execute("SHOW client_connection_check_interval").fetchone() == ("2s",)
        if conn.info.hostaddr:  # not by a local socket
            probes = [f"tcp_keepalives_{name}" for name in ("idle", "interval", "count")]
            assert list(_settings(conn, probes).values()) == ["4", "2", "3"]
        assert conn.execute("SHOW search_path").fetchone() == ("public,pg_catalog",)
        assert conn.execute("SHOW client_encoding").fetchone() == ("UTF8",)
        assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_a_producers_session_is_as_the_role_has_it_but_for_its_encoding(database: str) -> None:
    threads = Connections(database, 1, 10.0)
    lease = threads.take()
    assert _settings(lease.conn, ["client_encoding", "datestyle"]) == {
        "client_encoding": "UTF8",
        "datestyle": "German",
    }
    lease.conn.rollback()
    threads.give(lease)
    threads.close()

    async def encoding() -> str:
        tasks = AsyncConnections(database, 1, 10.0)
        lease = await tasks.take()
        found: str = lease.conn.info.encoding
        await tasks.give(lease)
        await tasks.close()
        return found

    assert asyncio.run(encoding()) == "utf-8"


def _settings(conn: Session, names: Iterable[str]) -> dict[str, str]:
    """What a session has now; a style of dates without its order, which counts for input only."""
    found = conn.execute(
        "SELECT n, pg_catalog.split_part(pg_catalog.current_setting(n), ',', 1) FROM pg_catalog.unnest(%s::text[]) n",
        [list(names)],
    )
    return dict(found.fetchall())


def _milliseconds(text: str) -> str:
    return str(int(text.removesuffix("s")) * 1000) if text.endswith("s") else text
