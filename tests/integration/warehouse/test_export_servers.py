"""A session of the warehouse job reads where the run began, on whatever server a DSN has led it to, or it fails."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import psycopg.rows
import pytest

from outbox_etl.source.reader import SQL
from outbox_etl.statements import statement
from outbox_local.stack.api import Stack
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import value
from tests.support.standbys import has_replayed, standby
from tests.support.waiting import wait_until

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


@pytest.fixture
def conn(private_database: str) -> Iterator[Connection]:
    """The least privileges that the job needs."""
    with connect(private_database) as conn:
        conn.execute("SET ROLE outbox_etl")
        yield conn


def facts(conn: Connection) -> dict[str, Any]:
    """What a run knows of the server that it began with."""
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        [server] = cursor.execute(statement(SQL, "server").encode()).fetchall()
        [now] = cursor.execute(statement(SQL, "horizon").encode()).fetchall()
    return {name: server[name] for name in ("system_identifier", "timeline", "database")} | {"hi": now["hi"]}


def check(conn: Connection, patience: float = 0, **values: Any) -> None:
    """Begin a read as a session does."""
    text = statement(SQL, "same_server", server=statement(SQL, "server"), patience=str(patience), **values)
    with conn.transaction():
        conn.execute(text.encode())


def test_a_session_on_the_server_that_the_run_began_with_may_read(conn: Connection) -> None:
    check(conn, **facts(conn))


@pytest.mark.parametrize("name", ["system_identifier", "timeline", "database", "hi"])
def test_a_session_on_another_server_is_refused_in_words_that_name_both(conn: Connection, name: str) -> None:
    here = facts(conn)
    other = {**here, name: int(here[name]) + 1}
    with pytest.raises(psycopg.errors.RaiseException) as raised:
        check(conn, patience=60, **other)
    told = str(raised.value)
    assert told.startswith("outbox-etl: a session came to ")
    assert str(here[name]) in told
    assert str(other[name]) in told


def test_a_standby_that_is_behind_is_waited_for_and_then_refused(
    private_stack: Stack, private_database: str
) -> None:
    with (
        connect(private_database) as conn,
        standby(private_stack, private_database) as dsn,
        connect(dsn) as there,
    ):
        wait_until(lambda: has_replayed(dsn, private_database), "the standby to be level")
        there.execute("SELECT pg_wal_replay_pause()")
        wait_until(
            lambda: value(there, "SELECT pg_get_wal_replay_pause_state()") == "paused", "replay to pause"
        )
        there.execute("SET ROLE outbox_etl")
        check(there, **facts(there))
        insert(conn, "t", "k", "v")
        primary = facts(conn)
        with pytest.raises(psycopg.errors.RaiseException, match="outbox-etl: a session came to a server"):
            check(there, **primary)
        # A standby learns that nothing is open by whatever the primary commits next, here by the job's barrier.
        conn.execute(statement(SQL, "barrier").encode())
        with connect(dsn) as other, ThreadPoolExecutor(1) as threads:
            checked = threads.submit(lambda: check(there, patience=60, **primary))
            wait_until(lambda: value(other, WAITS) == 1, "the session to wait")
            other.execute("SELECT pg_wal_replay_resume()")
            checked.result(60)
        assert value(there, "SELECT count(*) FROM outbox.message") == 1
