"""A relay of the version before does not know the hold of a partition: it takes no lane that has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_migrations import api
from tests.support.kafka_records import read_topic
from tests.support.locks import holding
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeDatabase, MakeTopic

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


def test_a_newer_relay_keeps_such_lanes_and_shares_the_others_with_an_older_one(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    conn: Connection,
    older_entry: tuple[str, str],
) -> None:
    topic, held = make_topic(), make_topic()
    conn.execute(HELD, [LANE, held])
    # Nothing waits for it, so the newer relay would end it.
    with (
        holding(database, "SELECT FROM outbox.parked_key FOR UPDATE"),
        relay_session(database, bootstrap_servers) as newer,
    ):
        assert newer.lanes == frozenset(range(8))
        with RelayProcess(database, bootstrap_servers, entry=older_entry) as older:
            turn_until(newer, lambda: conn.execute(TAKEN).fetchone() == (3,), "the older one has a share")
            assert LANE in newer.lanes
            keys = keys_of_lanes(conn, topic, *(lane for lane in range(8) if lane != LANE))
            for lane_key in keys:
                insert(conn, topic, lane_key, b"x")
            turn_until(newer, lambda: len(read_topic(bootstrap_servers, topic)) == len(keys), "others flow")
            older.stop()
