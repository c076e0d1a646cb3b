"""`--publish-after replicated`: what no synchronous standby has is not published, whatever ends the wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from outbox_local.stack.api import Stack
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect, insert, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.standbys import standby
from tests.support.waiting import wait_until

REPLICATED = ("--publish-after", "replicated")
WAITING = """
    SELECT pid FROM pg_stat_activity WHERE application_name = 'outbox relay' AND wait_event = 'SyncRep'
"""
CANCEL = f"SELECT count(pg_cancel_backend(pid)) FROM ({WAITING}) w"
GROWN = "SELECT pg_current_wal_insert_lsn() - %s::pg_lsn > 2000"
FOLLOWS = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming')"


@pytest.fixture
def conn(private_database: str) -> Iterator[Connection]:
    """A connection that waits for no standby itself."""
    with connect(private_database) as conn:
        conn.execute("SET synchronous_commit = local")
        yield conn
        wait_for_standby(conn, "")


def wait_for_standby(conn: Connection, name: str) -> None:
    """Let commits of this server wait for a standby of this name; for none where it is empty."""
    conn.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    conn.execute("SELECT pg_reload_conf()")
    wait_until(lambda: value(conn, "SHOW synchronous_standby_names") == name, "the setting to be read")


def test_a_relay_that_shall_wait_for_a_standby_is_refused_where_none_is_named(
    database: str, bootstrap_servers: str
) -> None:
    with RelayProcess(database, bootstrap_servers, *REPLICATED) as relay:
        assert relay.wait() == 1
        assert "PostgreSQL names no synchronous standby" in relay.output()
        assert "--publish-after committed" in relay.output()


@pytest.mark.feature("H-16")
def test_nothing_is_published_that_no_standby_has_whatever_ends_the_wait(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> None:
    kafka = private_stack.bootstrap_servers

    def bodies() -> list[bytes | None]:
        return [record.value for record in read_topic(kafka, private_topic)]

    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(standby(private_stack, private_database))
        wait_for_standby(conn, "walreceiver")
        wait_until(lambda: value(conn, FOLLOWS), "the standby to be synchronous")
        relay = stack.enter_context(RelayProcess(private_database, kafka, *REPLICATED)).wait_until_running()
        insert(conn, private_topic, "k", "1")
        wait_published(conn)
        first.close()
        insert(conn, private_topic, "k", "2")
        for _ in range(3):
            wait_until(lambda: value(conn, CANCEL) == 1, "the relay to wait for the standby")
        relay.wait_for("not replicated, so not published")
        assert bodies() == [b"1"]
        wait_for_standby(conn, "")
        wait_until(lambda: conn.execute(WAITING).fetchone() is None, "the wait to be released")
        insert(conn, private_topic, "k", "3")
        before = value(conn, "SELECT pg_current_wal_insert_lsn()")
        wait_until(lambda: value(conn, GROWN, [before]), "the relay to make barriers that no standby has")
        assert bodies() == [b"1"]
        wait_for_standby(conn, "walreceiver")
        with standby(private_stack, private_database) as there:
            wait_published(conn)
            assert bodies() == [b"1", b"2", b"3"]
            relay.wait_for("replicated again")
            with connect(there) as other:
                assert value(other, "SELECT count(*) FROM outbox.message") == 3
            wait_for_standby(conn, "")
            relay.stop()
