"""Relays of the version before, beside newer ones: they divide the lanes, and know no hold of a partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_migrations import api
from tests.support.concurrent_writers import Writers
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import (
    Connection,
    connect,
    insert,
    insert_numbered,
    keys_of_lanes,
    numbered,
    wait_published,
)
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase
from tests.support.waiting import wait_until

HELD = """
    INSERT INTO outbox.parked_key (number, lane, topic, partition, head, error)
    VALUES ((1::bigint << 60) + 1, %s, %s, 0, 1, 'PARTITION_UNAVAILABLE: a test')
"""
TAKEN = "SELECT count(*) FROM outbox.lane l JOIN outbox.lease e ON e.epoch = l.epoch WHERE e.version = 1"
LANE = 5


@pytest.fixture
def database(make_database: MakeDatabase) -> str:
    """A database without hostile functions, against which the older software is not proof."""
    dsn = make_database(migrated=False)
    api.upgrade(dsn)
    return dsn


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def test_a_lane_with_a_held_partition_is_kept_from_an_older_relay(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, older_entry: tuple[str, str]
) -> None:
    """It waits as for a lock, and goes on when the hold is over; nothing is published in front of what is held."""
    conn.execute(HELD, [LANE, topic])
    (key,) = keys_of_lanes(conn, topic, LANE)
    with RelayProcess(database, bootstrap_servers, entry=older_entry) as older:
        insert(conn, topic, key, b"newer")
        older.wait_for("the lanes are locked, waiting")
        assert conn.execute(TAKEN).fetchone() == (0,)
        assert read_topic(bootstrap_servers, topic) == []
        conn.execute("DELETE FROM outbox.parked_key")
        wait_published(conn)
        older.stop()


OWNERS = "SELECT epoch, array_agg(lane ORDER BY lane) FROM outbox.lane WHERE owner IS NOT NULL GROUP BY epoch"


def owners(conn: Connection) -> dict[int, list[int]]:
    """Return which lanes each epoch has."""
    return dict(conn.execute(OWNERS).fetchall())


def test_one_newer_relay_leads_all_lanes_when_the_older_ones_have_ended(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, older_entry: tuple[str, str]
) -> None:
    """An older relay gives back what its own rule leaves to others, also to one that stands by: the leader takes it."""
    with (
        RelayProcess(database, bootstrap_servers, entry=older_entry).wait_until_running() as older,
        Writers(database, topic, seed=8, pace=0.001) as writers,
        RelayProcess(database, bootstrap_servers) as first,
        RelayProcess(database, bootstrap_servers) as second,
    ):
        first_and_older = [[0, 1, 2], [3, 4, 5, 6, 7]]
        wait_until(lambda: sorted(owners(conn).values()) == first_and_older, "no lane stands still")
        writers.wait_for(50)
        with RelayProcess(database, bootstrap_servers, entry=older_entry) as back:
            relays = "SELECT count(*) FROM outbox.lease"
            wait_until(lambda: conn.execute(relays).fetchone() == (4,), "an older one joins again")
            older.stop()
            wait_until(lambda: sum(map(len, owners(conn).values())) == 8, "no lane stands still")
            writers.wait_for(50)
            back.stop()
        wait_until(lambda: [*owners(conn).values()] == [[*range(8)]], "one leads")
        writers.wait_for(50)
        writers.stop()
        wait_published(conn)
        first.stop()
        second.stop()
    found = compare(read_topic(bootstrap_servers, topic), writers.committed())
    assert not found.broken
    assert found.duplicate_records == 0


def test_an_older_relay_stands_by_while_a_newer_one_leads(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, older_entry: tuple[str, str]
) -> None:
    with (
        RelayProcess(database, bootstrap_servers).wait_until_running() as newer,
        RelayProcess(database, bootstrap_servers, entry=older_entry) as older,
    ):
        older.wait_for("standing by")
        insert_numbered(conn, topic, 100)
        wait_published(conn)
        assert conn.execute(TAKEN).fetchone() == (0,)
        newer.stop()
        wait_until(lambda: conn.execute(TAKEN).fetchone() == (8,), "the older one has all lanes")
        insert_numbered(conn, topic, 100, start=100)
        wait_published(conn)
        older.stop()
    found = compare(read_topic(bootstrap_servers, topic), numbered(200))
    assert not found.broken
    assert found.duplicate_records == 0
