"""Where polls may not ask what is flushed: the relay logs why, once a session, and makes a barrier for each batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox_relay.database import connections
from outbox_relay.publisher.wal import can_ask_what_is_flushed
from tests.support.kafka_records import read_topic
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection, connect_as_service, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session
from tests.support.servers import MakeTopic
from tests.support.settled_relay import POLL_AND_BARRIER, SettledRelay, make_own_barriers

LOGGED = "each batch waits for a commit of the relay"
POSITIONS = "pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn()"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect_as_service(database) as conn:
        yield conn


def test_polls_may_ask_a_plain_server(conn: Connection) -> None:
    assert can_ask_what_is_flushed(conn)


def test_a_relay_that_may_not_execute_the_functions_makes_its_barriers(
    conn: Connection, database: str, logins: Logins, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    conn.execute(f"REVOKE EXECUTE ON FUNCTION {POSITIONS} FROM PUBLIC".encode())
    with RelayProcess(logins.make("outbox_relay"), bootstrap_servers) as relay:
        relay.wait_for(LOGGED, because=lambda because: "permission denied" in because)
        insert(conn, topic, "k", "1")
        wait_published(conn)
        relay.stop()
        assert relay.output().count(LOGGED) == 1
    assert len(read_topic(bootstrap_servers, topic)) == 1


def test_a_relay_makes_its_barriers_where_an_operator_wants_them(
    conn: Connection, database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    make_own_barriers(conn)
    with relay_session(database, bootstrap_servers) as session:
        relay = SettledRelay(session, conn, make_topic())
        relay.send(1)
        assert relay.turn() == POLL_AND_BARRIER


@pytest.mark.parametrize(
    "sign",
    [
        "CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS $$SELECT '15.4'$$",
        "SET neon.tenant_id = 'a'",
        "SET rds.logical_replication = 'on'",
        "SET outbox.own_barriers = 'on'",
        "SET outbox.own_barriers = true",
    ],
)
def test_a_server_that_may_keep_its_log_elsewhere_is_not_asked(conn: Connection, sign: str) -> None:
    conn.execute(sign.encode())
    assert not can_ask_what_is_flushed(conn)
    assert conn.execute("SELECT 1").fetchone() == (1,), "nothing is left of what was refused"


def test_every_login_can_have_its_relay_make_barriers_by_its_dsn(logins: Logins) -> None:
    dsn = logins.make("outbox_relay")
    for options, may_ask in (
        ("", True),
        (" -c outbox.own_barriers=on", False),
        (" -c outbox.own_barriers=off", True),
    ):
        with connections.connect(
            make_conninfo(dsn, options=options.strip()), application_name="a test"
        ) as conn:
            assert can_ask_what_is_flushed(conn) == may_ask


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("current_setting(text, boolean) RETURNS text", "'it is hidden'"),
        ("pg_current_wal_flush_lsn() RETURNS pg_lsn", "'it is hidden'"),
    ],
)
def test_a_server_that_hides_what_is_asked_is_not_asked(conn: Connection, name: str, code: str) -> None:
    conn.execute("CREATE SCHEMA other")
    conn.execute(f"CREATE FUNCTION other.{name} LANGUAGE plpgsql AS $$BEGIN RAISE {code}; END$$".encode())
    conn.execute("SET search_path = other, pg_catalog")
    assert not can_ask_what_is_flushed(conn)
    assert conn.execute("SELECT 1").fetchone() == (1,), "the session goes on"


def test_a_server_whose_positions_make_no_sense_is_not_asked(conn: Connection) -> None:
    conn.execute("CREATE SCHEMA other")
    conn.execute(
        "CREATE FUNCTION other.pg_current_wal_flush_lsn() RETURNS pg_lsn LANGUAGE sql "
        "AS $$SELECT 'FF/FFFFFFFF'::pg_lsn$$"
    )
    conn.execute("SET search_path = other, pg_catalog")
    assert not can_ask_what_is_flushed(conn)


def test_a_server_whose_functions_raise_errors_is_not_asked(conn: Connection) -> None:
    """Aurora's, without logical replication, do."""
    conn.execute("CREATE SCHEMA other")
    conn.execute(
        "CREATE FUNCTION other.pg_current_wal_insert_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'wal_level must be set to \"logical\"'; END$$"
    )
    conn.execute(sql.SQL("SET search_path = other, pg_catalog"))
    assert not can_ask_what_is_flushed(conn)
