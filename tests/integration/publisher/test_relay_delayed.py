"""Delayed messages: never early, once, in time, and nobody's lock or death makes them forgotten."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, clock, connect, insert, insert_numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

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
        due = clock(conn) + timedelta(seconds=2)
        late = insert(conn, topic, "k", b"late", deliver_at=due)
        later = insert(conn, topic, "k", b"not for years", deliver_at=due + timedelta(days=3650))
        past = insert(conn, topic, "k", b"past", deliver_at=due - timedelta(days=1))
        insert(conn, topic, "k", b"plain")
        wait_published(conn)
        assert waiting(conn) == 2
        assert conn.execute(STATUS, [late]).fetchone() == ("COMMITTED", "delayed")
        assert conn.execute(STATUS, [past]).fetchone() == ("PUBLISHED", None)
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
        due = clock(conn) + timedelta(seconds=4)
        for number in range(30):
            insert(conn, topic, f"k{number}", f"k{number}:1", deliver_at=due)
        for _ in range(2):
            with RelayProcess(database, bootstrap_servers) as relay:
                wait_until(lambda: waiting(conn) == 30 or clock(conn) > due, "they are put aside")
                relay.kill()
        with RelayProcess(database, bootstrap_servers) as relay:
            wait_until(lambda: waiting(conn) == 0 and clock(conn) > due, "they are released")
            wait_published(conn)
            relay.stop()
    values = [record.value for record in read_topic(bootstrap_servers, topic)]
    assert set(values) == {f"k{number}:1".encode() for number in range(30)}


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
        locked = insert(conn, topic, "locked", b"locked", deliver_at=now + timedelta(seconds=1))
        insert(conn, topic, "free", b"free", deliver_at=now + timedelta(seconds=1))
        wait_until(lambda: waiting(conn) == 2, "both are put aside")
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
        cancelled = insert(conn, topic, "k", b"cancelled", deliver_at=clock(conn) + timedelta(seconds=1))
        wait_until(lambda: waiting(conn) == 1, "it is put aside")
        conn.execute("UPDATE outbox.message SET state = 'CANCELLED' WHERE message_id = %s", [cancelled])
        wait_until(lambda: waiting(conn) == 0, "its time comes")
        insert(conn, topic, "k", b"after")
        wait_published(conn)
        relay.stop()
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"after"]
