"""Delayed messages: never early, once, in time, and nobody's lock or death makes them forgotten."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from outbox.partitioning.lanes import LANES
from outbox_relay.publisher.upkeep import Delayed
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import (
    Connection,
    clock,
    connect,
    fall_due,
    insert,
    insert_numbered,
    wait_published,
)
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

HOUR = timedelta(hours=1)
"""Longer than any test: a message is due when `fall_due` says so."""
STATUS = "SELECT status, waiting FROM outbox.message_status WHERE message_id = %s"


def waiting(conn: Connection) -> int:
    row = conn.execute("SELECT count(*) FROM outbox.waiting").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.feature("H-05")
def test_a_delayed_message_waits_and_is_published_when_it_is_due(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        now = clock(conn)
        late = insert(conn, topic, "k", b"late", deliver_at=now + HOUR)
        later = insert(conn, topic, "k", b"not for years", deliver_at=now + timedelta(days=3650))
        past = insert(conn, topic, "k", b"past", deliver_at=now - timedelta(days=1))
        insert(conn, topic, "k", b"plain")
        wait_published(conn)
        assert waiting(conn) == 2
        assert conn.execute(STATUS, [late]).fetchone() == ("COMMITTED", "delayed")
        assert conn.execute(STATUS, [past]).fetchone() == ("PUBLISHED", None)
        due = fall_due(conn, late, seconds=1)
        wait_until(lambda: conn.execute(STATUS, [late]).fetchone() == ("PUBLISHED", None), "it is published")
        row = conn.execute(
            "SELECT published_at FROM outbox.message_status WHERE message_id = %s", [late]
        ).fetchone()
        assert row is not None
        assert row[0] >= due, "never early"
        assert conn.execute(STATUS, [later]).fetchone() == ("COMMITTED", "delayed")
        relay.stop()
    assert [r.value for r in read_topic(bootstrap_servers, topic)] == [b"past", b"plain", b"late"]


@pytest.mark.feature("H-05")
def test_delayed_messages_survive_the_death_of_every_relay_that_saw_them(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        due = clock(conn) + HOUR
        ids = [insert(conn, topic, f"k{number}", f"k{number}:1", deliver_at=due) for number in range(30)]
        for _ in range(2):
            with RelayProcess(database, bootstrap_servers) as relay:
                relay.wait_until_running()
                assert waiting(conn) == 30
                relay.kill()
        fall_due(conn, *ids, seconds=1)
        with RelayProcess(database, bootstrap_servers) as relay:
            wait_until(lambda: waiting(conn) == 0, "they are released")
            wait_published(conn)
            relay.stop()
    values = [record.value for record in read_topic(bootstrap_servers, topic)]
    assert set(values) == {f"k{number}:1".encode() for number in range(30)}


def test_a_released_message_takes_its_place_behind_what_was_committed_meanwhile(database: str) -> None:
    with connect(database) as conn, connect(database) as session:
        late = insert(conn, "orders", "k", b"late", deliver_at=clock(conn) + HOUR)
        insert(conn, "orders", "k", b"meanwhile")
        fall_due(conn, late)
        assert Delayed(session).release(range(LANES)) == 1
        order = conn.execute("SELECT body FROM outbox.message ORDER BY position").fetchall()
        ids = conn.execute("SELECT body FROM outbox.message ORDER BY id").fetchall()
    assert order == [(b"meanwhile",), (b"late",)]
    assert ids == order[::-1], "its id, and so its partition, stays"


def test_a_locked_message_that_is_due_holds_nothing_up(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with (
        connect(database) as conn,
        psycopg.connect(database) as other,
        RelayProcess(database, bootstrap_servers, "--lease", "2") as relay,
    ):
        relay.wait_until_running()
        now = clock(conn)
        locked = insert(conn, topic, "locked", b"locked", deliver_at=now + HOUR)
        free = insert(conn, topic, "free", b"free", deliver_at=now + HOUR)
        assert waiting(conn) == 2
        other.execute("SELECT FROM outbox.message WHERE message_id = %s FOR UPDATE", [locked])
        fall_due(conn, locked, free)
        other.execute("UPDATE outbox.message SET state = 'CANCELLED' WHERE message_id = %s", [locked])
        wait_until(lambda: waiting(conn) == 1, "the other one is released")
        insert_numbered(conn, topic, 5)
        wait_until(lambda: len(read_topic(bootstrap_servers, topic)) == 6, "everything else flows")
        other.rollback()
        wait_until(lambda: waiting(conn) == 0, "released when nobody holds it any more")
        wait_published(conn)
        relay.stop()
    assert b"locked" in {record.value for record in read_topic(bootstrap_servers, topic)}


@pytest.mark.feature("H-05")
def test_a_delayed_message_that_is_cancelled_is_never_published(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        cancelled = insert(conn, topic, "k", b"cancelled", deliver_at=clock(conn) + HOUR)
        assert waiting(conn) == 1
        conn.execute("UPDATE outbox.message SET state = 'CANCELLED' WHERE message_id = %s", [cancelled])
        assert waiting(conn) == 0, "nothing would release it"
        insert(conn, topic, "k", b"after")
        wait_published(conn)
        relay.stop()
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"after"]


@pytest.mark.feature("H-05")
def test_a_release_takes_nothing_that_is_due_after_it(database: str, topic: str) -> None:
    """One message after the other falls due, every 5 ms; PostgreSQL tells when the release began."""
    with connect(database) as conn, connect(database) as session:
        conn.execute(
            "INSERT INTO outbox.message (topic, key, body, deliver_at) "
            "SELECT %s, 'k', 'x', clock_timestamp() + interval '1 hour' FROM generate_series(1, 2000)",
            [topic],
        )
        conn.execute(
            "UPDATE outbox.waiting w SET due_at = t.now + o.place * interval '5 ms' "
            "FROM (SELECT clock_timestamp() AS now) t, "
            "(SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM outbox.waiting) o WHERE o.id = w.id"
        )
        due = dict(conn.execute("SELECT id, due_at FROM outbox.waiting").fetchall())
        assert Delayed(session).release(range(LANES)) > 0
        began = conn.execute(
            "SELECT query_start FROM pg_stat_activity WHERE pid = %s", [session.info.backend_pid]
        ).fetchone()
        assert began is not None
        for (id_,) in conn.execute("SELECT id FROM outbox.waiting").fetchall():
            del due[id_]
    assert due, "what is due is released"
    assert max(due.values()) <= began[0], "never early"
