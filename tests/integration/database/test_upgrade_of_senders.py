"""Revision 0003 replaces the trigger of outbox.message while sessions send, and locks senders out for a moment.

- The upgrade first waits for vacuums, and senders go on. Then it waits for transactions that have sent, again and again
  for half a second, then it ends and has changed nothing. Those who want to send meanwhile wait behind it, so for no
  longer.
- It dies at any line before its COMMIT: PostgreSQL rolls back; the trigger before is whole, with its function.
- It is paused while it has the lock: senders wait until it goes on, or its session is ended; see
  test_upgrade_under_load.py.
- A session has prepared its statements, perhaps in an open transaction: its next INSERT meets the new trigger. No
  INSERT runs while the trigger changes, so none sees parts of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from time import monotonic

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from outbox_migrations import api
from outbox_relay.database import schema
from tests.support.locks import UPGRADE_LOCKS, holding, wait_for_waiting
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect
from tests.support.servers import MakeDatabase

GUARDS = """
    SELECT t.tgrelid::regclass::text, pg_get_triggerdef(t.oid), t.tgenabled::text, p.prosrc, p.prosecdef, p.proconfig,
        p.proowner::regrole::text
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid IN (SELECT 'outbox.message'::regclass UNION SELECT name FROM outbox.partition)
    UNION ALL
    SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid), '', p.proacl::text, p.prosecdef, p.proconfig,
        p.proowner::regrole::text
    FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.prokind = 'f'
    ORDER BY 1, 2
"""
SCRIPT = "%What a message costs its transaction%"
"""How an upgrade that waits for a lock begins: its script is one query, and PostgreSQL shows 1 KB of it."""
SEND = "INSERT INTO outbox.message (topic) VALUES ('t')"
ROWS = """
    SELECT m.state, m.lane, outbox.lane_of(m.topic, m.queue, coalesce(m.order_key, m.key), m.id), w.reason, e.to_state
    FROM outbox.message m LEFT JOIN outbox.waiting w USING (id) LEFT JOIN outbox.event e ON e.id = m.id ORDER BY m.id
"""


@pytest.fixture
def old(make_database: MakeDatabase) -> str:
    """A database of the revision before."""
    dsn = make_database(migrated=False)
    api.upgrade(dsn, "0002")
    return dsn


@pytest.fixture
def conn(old: str) -> Iterator[Connection]:
    with connect(old) as conn:
        yield conn


def send_each_kind(conn: Connection) -> None:
    """Send a message of each kind that the trigger treats in its own way, by the library's prepared statements."""
    sender = Outbox(producer_group="orders")
    sender.send(conn, Message("t", key="a", body=b"plain"))
    sender.send(conn, Message("t", key="a", body=b"late", deliver_at=datetime.now(UTC) + timedelta(days=1)))
    sender.prepare(conn, Message("t", key="a", body=b"half"))
    sender.send_many(conn, [Message("t", key="a", body=b"many")] * 2)
    conn.execute("INSERT INTO outbox.message (topic, key) VALUES ('t', 'a')")


def test_a_session_that_sends_goes_on_with_its_prepared_statements(old: str) -> None:
    with psycopg.connect(old) as conn:
        send_each_kind(conn)
        conn.commit()
        before = conn.execute(ROWS).fetchall()
        conn.rollback()
        conn.execute("SELECT 1")  # a transaction that has not sent: the upgrade does not wait for it
        api.upgrade(old)
        send_each_kind(conn)
        conn.commit()
        assert conn.execute(ROWS).fetchall() == before * 2
        assert [row[3:] for row in before] == [(None, None), ("delayed", None), (None, "UNKNOWN")] + [
            (None, None)
        ] * 3
        assert {row[1] == row[2] for row in before} == {True}
        with pytest.raises(psycopg.errors.CheckViolation, match="cannot be born DEAD"):
            conn.execute("INSERT INTO outbox.message (topic, state, lane) VALUES ('t', 'DEAD', 0)")


def test_an_upgrade_gives_up_on_an_open_sender_and_lets_the_next_one_go_on(
    old: str, conn: Connection
) -> None:
    before = conn.execute(GUARDS).fetchall()
    with ThreadPoolExecutor(2) as pool, holding(old, SEND), psycopg.connect(old) as waiting:
        upgrade = pool.submit(outbox, "db", "upgrade", OUTBOX_DSN=old)
        wait_for_waiting(conn, UPGRADE_LOCKS)
        waiting.execute("SET lock_timeout = '20s'")
        sent = pool.submit(waiting.execute, SEND)
        ran = upgrade.result()
        assert sent.result().rowcount == 1, "it waited for the upgrade, not for the transaction before"
    assert ran.code == 1
    assert "nothing has changed. Run it again" in ran.err
    assert schema.revision(conn) == "0002"
    assert conn.execute(GUARDS).fetchall() == before
    assert succeed("db", "upgrade", "--json", OUTBOX_DSN=old).json["to"] == schema.REVISION


def test_senders_go_on_while_an_upgrade_waits_for_a_vacuum(
    old: str, conn: Connection, pool: ThreadPoolExecutor
) -> None:
    """A vacuum by hand: it locks a partition as an autovacuum does, and deadlock_timeout does not end it."""
    partition = conn.execute("SELECT name::text FROM outbox.partition ORDER BY lower LIMIT 1").fetchone()
    assert partition is not None
    conn.execute("SET lock_timeout = '500ms'")
    with holding(old, f"LOCK TABLE {partition[0]} IN SHARE UPDATE EXCLUSIVE MODE"):
        upgrade = pool.submit(api.upgrade, old)
        wait_for_waiting(conn, UPGRADE_LOCKS)
        end = monotonic() + 1.5  # more than an upgrade waits for senders
        while monotonic() < end:
            conn.execute(SEND)
            assert not upgrade.done(), "it waits for the vacuum"
    assert upgrade.result().current == "0002"
    conn.execute(SEND)


@pytest.mark.usefixtures("old")  # makes the roles of the cluster
@pytest.mark.parametrize("by", ["superuser", "member", "owner"])
def test_producers_send_whoever_upgrades(make_database: MakeDatabase, by: str) -> None:
    """The functions that call each other with their owner's rights keep one owner."""
    dsn = make_database(migrated=False)
    logins = Logins(dsn)
    try:
        with connect(dsn) as admin:
            owner = logins.make("outbox_reader")
            name = logins.newest
            admin.execute(
                sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
                    sql.Identifier(admin.info.dbname), sql.Identifier(name)
                )
            )
            api.upgrade(owner, "0002")
            api.upgrade({"superuser": dsn, "member": logins.make(name), "owner": owner}[by])
            owners = admin.execute(
                "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"
            )
            assert owners.fetchall() == [(name,)]
            with logins.connect("outbox_producer") as producer, producer.transaction():
                send_each_kind(producer)
    finally:
        logins.drop()


def test_an_upgrade_that_dies_behind_the_trigger_leaves_the_one_before(
    old: str, conn: Connection, pool: ThreadPoolExecutor
) -> None:
    before = conn.execute(GUARDS).fetchall()
    with holding(old, "SELECT FROM outbox.schema_version FOR UPDATE"):
        upgrade = pool.submit(api.upgrade, old)
        conn.execute("SELECT pg_terminate_backend(%s)", [wait_for_waiting(conn, SCRIPT)])
        assert isinstance(upgrade.exception(), Exception)
    assert conn.execute(GUARDS).fetchall() == before
    conn.execute(SEND)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_printed_ddl_and_an_upgrade_make_the_guards_of_a_new_database(
    old: str, database: str, make_database: MakeDatabase, conn: Connection
) -> None:
    conn.execute(succeed("db", "sql", "--from", "0002").out)
    with connect(database) as fresh:
        for each in (conn, fresh):  # what is in it decides how names are written
            each.execute("SET search_path = pg_catalog")
        assert conn.execute(GUARDS).fetchall() == fresh.execute(GUARDS).fetchall()
    assert schema.revision(conn) == schema.REVISION
