"""What one session does at a time: nobody without rights keeps others from it."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from outbox_relay.alarms.observing import observe
from outbox_relay.database import connections
from tests.support.logins import Logins
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import Connection, connect
from tests.support.waiting import wait_until

LOCKS = ["outbox.notice", "outbox.history", "outbox.inbox"]


def take(conn: Connection, what: str = "history") -> bool:
    row = conn.execute("SELECT outbox.take_turn(%s)", [what]).fetchone()
    assert row is not None
    return bool(row[0])


def test_a_login_without_a_role_that_holds_advisory_locks_stops_nobody_else(
    database: str, logins: Logins
) -> None:
    with logins.connect("pg_monitor") as stranger:
        for name in LOCKS:
            stranger.execute("SELECT pg_advisory_lock(pg_catalog.hashtextextended(%s, 0))", [name])
        with connect(database) as conn:
            conn.execute(
                "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('shop', 'silent', 'x')"
            )
            with connections.connect(database) as relay:
                relay.execute("SET ROLE outbox_relay")
                assert observe(relay, None)
            assert conn.execute("SELECT kind FROM outbox.notice").fetchall() == [("group_silent",)]
        succeed("history", "drop", "--older-than", "30d", OUTBOX_DSN=database)
        succeed("inbox", "drop", "--older-than", "30d", "--without-kafka", "--yes", OUTBOX_DSN=database)


@pytest.mark.parametrize("role", ["outbox_producer", "outbox_relay", "outbox_operator"])
def test_no_role_takes_the_owners_turns(database: str, role: str) -> None:
    with connect(database) as conn:
        conn.execute(f"SET ROLE {role}")
        with pytest.raises(InsufficientPrivilege):
            take(conn)
        with pytest.raises(InsufficientPrivilege), conn.transaction():
            conn.execute("LOCK TABLE outbox.turn IN ACCESS SHARE MODE")


def test_a_turn_lasts_until_it_is_given_back_or_its_session_ends(database: str) -> None:
    with connect(database) as first, connect(database) as second:
        assert take(first)
        assert take(first), "again by the one that has it"
        assert not take(second)
        assert take(second, "inbox"), "another one is free"
        second.execute("SELECT outbox.give_turn_back('history')")
        assert not take(second), "it is the first one's"
        first.execute("SELECT outbox.give_turn_back('history')")
        assert take(second)
    with connect(database) as third:
        wait_until(partial(take, third), "a session that has ended has no turn")


def test_of_many_that_want_a_turn_at_once_one_has_it(database: str) -> None:
    conns: list[Connection] = [psycopg.connect(database, autocommit=True) for _ in range(8)]
    try:
        assert sum(take(conn) for conn in conns) == 1
    finally:
        for conn in conns:
            conn.close()
