"""An upgrade of a database in use: producers and consumers go on, and whatever ends it leaves a whole revision.

What happens when the upgrade dies between any two of its lines, before its COMMIT: PostgreSQL rolls all of it back, and
the next upgrade begins again at 0001. After the COMMIT it is done, whether or not the command lives to report it. When
the command is paused instead, the transaction keeps its locks: consumers, senders, and relays that write to
outbox.message wait until it goes on or its session is ended; see test_upgrade_locks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_migrations import api
from outbox_relay.database import schema
from tests.support.kafka_records import compare, read_topic
from tests.support.locks import UPGRADE_LOCKS, holding, wait_for_waiting
from tests.support.older_software import BEFORE
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase
from tests.support.steady_producers import PARK, SteadyProducers
from tests.support.waiting import wait_until

OBJECTS = """
    SELECT c.relkind::text, c.relname::text, i.indisvalid FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
    WHERE c.relnamespace = 'outbox'::regnamespace ORDER BY 1, 2
"""
HAS_SESSION = "SELECT FROM pg_stat_activity WHERE pid = %s"
TURN = "%outbox.upgrade%"
IN_USE = "LOCK TABLE outbox.inbox_parked IN ROW EXCLUSIVE MODE"
POINTS = {
    "before the schema is read": (
        "LOCK TABLE outbox.schema_version IN SHARE ROW EXCLUSIVE MODE",
        TURN,
    ),
    "before the index": (IN_USE, UPGRADE_LOCKS),
    "between the index and the revision": (
        "SELECT FROM outbox.schema_version FOR UPDATE",
        "%UPDATE outbox.schema_version%",
    ),
}
"""Where an upgrade is held: by the lock of this statement, in this statement of its own."""


@pytest.fixture
def old(make_database: MakeDatabase) -> str:
    """A database of the revision before."""
    dsn = make_database(migrated=False)
    api.upgrade(dsn, "0001")
    return dsn


@pytest.fixture
def conn(old: str) -> Iterator[Connection]:
    with connect(old) as conn:
        assert schema.revision(conn) == "0001"
        yield conn


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_producers_and_consumers_go_on_while_the_schema_is_upgraded(
    old: str, database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    action = ("run", "--log-format", "json", "--dsn", old, "--dsn", database)
    with (
        ThreadPoolExecutor(1) as pool,
        RelayProcess("", bootstrap_servers, action=action) as relay,
        SteadyProducers(old, topic) as producers,
    ):
        waits = relay.wait_for("the relay of one database failed")
        assert f"has the outbox schema 0001, this version needs {schema.REVISION}" in waits["error"]
        producers.wait_for(20)
        producers.wait_for(20, "parking")
        with psycopg.connect(old) as consumer:
            consumer.execute(PARK, {"n": 1})
            upgrade = pool.submit(succeed, "db", "upgrade", "--json", OUTBOX_DSN=old)
            wait_for_waiting(conn, UPGRADE_LOCKS)
            producers.wait_for(10)
            assert not upgrade.done(), "it waits for the consumer, and producers do not wait for it"
            consumer.commit()
        assert upgrade.result().json["from"] == "0001"
        relay.wait_for("lanes taken", database=waits["database"])
        producers.wait_for(20)
        producers.wait_for(20, "parking")
        producers.stop()
        wait_published(conn)
        relay.stop()
    found = compare(read_topic(bootstrap_servers, topic), producers.committed)
    assert not found.broken
    assert found.duplicate_records == 0
    assert schema.revision(conn) == schema.REVISION
    conn.execute("SET enable_seqscan = off")
    dead = conn.execute("SELECT count(*) FROM outbox.inbox_parked WHERE state = 'dead'").fetchone()
    assert dead == ((producers.done["parking"] + 1) // 2,)


def test_a_relay_of_the_version_before_publishes_on_after_the_upgrade(
    old: str, bootstrap_servers: str, topic: str, conn: Connection, older_entry: tuple[str, str]
) -> None:
    api.upgrade(old, BEFORE)
    with (
        RelayProcess(old, bootstrap_servers, entry=older_entry) as relay,
        SteadyProducers(old, topic) as producers,
    ):
        relay.wait_for("lanes taken")
        producers.wait_for(10)
        api.upgrade(old)
        producers.wait_for(10)
        producers.stop()
        wait_published(conn)
        assert relay.process.poll() is None
        assert relay.count("lanes taken") == 1
    assert not compare(read_topic(bootstrap_servers, topic), producers.committed).broken


@pytest.mark.parametrize("point", POINTS)
def test_an_upgrade_that_dies_leaves_the_old_revision_whole(
    old: str, database: str, conn: Connection, pool: ThreadPoolExecutor, point: str
) -> None:
    lock, statement = POINTS[point]
    before = conn.execute(OBJECTS).fetchall()
    with holding(old, lock):
        upgrade = pool.submit(api.upgrade, old)
        conn.execute("SELECT pg_terminate_backend(%s)", [wait_for_waiting(conn, statement)])
        assert isinstance(upgrade.exception(), Exception)
    assert schema.revision(conn) == "0001"
    assert conn.execute(OBJECTS).fetchall() == before
    assert succeed("db", "upgrade", "--json", OUTBOX_DSN=old).json["from"] == "0001"
    after = conn.execute(OBJECTS).fetchall()
    with connect(database) as new:
        assert after == new.execute(OBJECTS).fetchall(), "as in a database of the new revision"
    assert schema.revision(conn) == schema.REVISION


def test_an_upgrade_that_is_killed_leaves_the_old_schema_and_the_next_one_completes(
    old: str, conn: Connection
) -> None:
    with (
        holding(old, IN_USE),
        RelayProcess(old, "", service="db", action=("upgrade",)) as command,
    ):
        session = wait_for_waiting(conn, UPGRADE_LOCKS)
        command.kill()
        # PostgreSQL notices when it writes the result of a statement: the session still waits for the table.
        assert conn.execute(HAS_SESSION, [session]).fetchone() is not None
    wait_until(lambda: conn.execute(HAS_SESSION, [session]).fetchone() is None, "its session ends")
    assert schema.revision(conn) == "0001"
    assert conn.execute("SELECT to_regclass('outbox.inbox_parked_dead')").fetchone() == (None,)
    ran = succeed("db", "upgrade", "--json", OUTBOX_DSN=old).json
    assert (ran["from"], ran["to"]) == ("0001", schema.REVISION)


def test_of_two_upgrades_at_once_one_does_the_work(
    old: str, conn: Connection, pool: ThreadPoolExecutor
) -> None:
    with holding(old, IN_USE):
        first = pool.submit(api.upgrade, old)
        wait_for_waiting(conn, UPGRADE_LOCKS)
        second = pool.submit(api.upgrade, old)
        wait_for_waiting(conn, TURN)
    assert (first.result().current, second.result().current) == ("0001", schema.REVISION)


def test_an_upgrade_gives_up_on_a_long_transaction_and_names_the_repair(old: str, conn: Connection) -> None:
    before = conn.execute(OBJECTS).fetchall()
    with holding(old, IN_USE):
        ran = outbox("db", "upgrade", OUTBOX_DSN=old)
    assert ran.code == 1
    assert "nothing has changed. Run it again" in ran.err
    assert "Traceback" not in ran.err
    assert schema.revision(conn) == "0001"
    assert conn.execute(OBJECTS).fetchall() == before
    assert succeed("db", "upgrade", "--json", OUTBOX_DSN=old).json["to"] == schema.REVISION


def test_printed_ddl_from_a_revision_makes_what_the_upgrade_makes(
    old: str, database: str, conn: Connection
) -> None:
    conn.execute(succeed("db", "sql", "--from", "0001").out)
    assert schema.revision(conn) == schema.REVISION
    with connect(database) as upgraded:
        assert conn.execute(OBJECTS).fetchall() == upgraded.execute(OBJECTS).fetchall()
