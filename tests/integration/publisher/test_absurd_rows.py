"""Keys of thousands of bytes, and rows larger than any topic takes: each holds up its own key, and nothing else."""

from __future__ import annotations

import pytest

from outbox.partitioning.lanes import lane_of
from outbox_relay.publisher.records import LONGEST_KEY, kept
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import succeed
from tests.support.parking import Parking, relay
from tests.support.plain_inserts import Connection, insert, insert_unchecked, keys_of_lanes
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

LANE = 3
MANY = 66 << 20
STOPPED = "SELECT stopped_message::text FROM outbox.lane WHERE stopped_error LIKE 'MESSAGE_TOO_LARGE: %%' AND lane = %s"
HEAD = "SELECT h.message_id::text, k.tries, k.error FROM outbox.parked_key k JOIN outbox.waiting h ON h.id = k.head"
WAITING = "SELECT reason, count(*) FROM outbox.waiting GROUP BY reason ORDER BY reason"
UNPUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE status <> 'PUBLISHED'"


def long_key(topic: str, start: str, size: int) -> str:
    """Return a key of so many bytes, of the lane of these tests, that begins with so many times this character."""
    keys = (start * (size - 4) + f"{number:04}" for number in range(1_000))
    return next(key for key in keys if lane_of(topic, None, key.encode()) == LANE)


def insert_many_bytes(conn: Connection, topic: str, key: bytes, order_key: bytes | None = None) -> str:
    """Write a message whose body no topic takes; the relay does not depend on what the table refuses."""
    return insert_unchecked(conn, topic, key, b"x" * MANY, lane=LANE, order_key=order_key)


@pytest.mark.parametrize("size", [LONGEST_KEY, LONGEST_KEY + 1, 3_000])
def test_a_key_of_any_length_is_parked_and_drained_as_others_are(
    database: str, bootstrap_servers: str, parking: Parking, size: int
) -> None:
    """Also by a relay that reads it from the database. Keys that begin alike flow, and so does what stands for it."""
    parking.bad = long_key(parking.topic, "b", size)
    parking.good = long_key(parking.topic, "b", size + 1)
    like_it = kept(parking.bad.encode()) if size > LONGEST_KEY else b"k"
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.send(parking.good, 0)
        insert(parking.conn, parking.topic, like_it, "k:0", lane=LANE)
        parking.settle(session)
        assert parking.reasons == ["failed", "held"]
        ((_, key, _),) = parking.keys
        assert key == parking.bad.encode(), "the row has the whole key"
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 2)
        parking.send(parking.good, 1)
        parking.settle(session)
        assert parking.reasons == ["failed", "held", "held"]
        parking.publish(session)
        parking.send(parking.bad, 3)
        parking.settle(session)
    expected = [*((parking.bad, n) for n in range(4)), *((parking.good, n) for n in range(2)), ("k", 0)]
    found = compare(read_topic(bootstrap_servers, parking.topic), expected)
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_row_larger_than_any_topic_takes_parks_its_key_only(
    database: str, bootstrap_servers: str, conn: Connection, topic: str
) -> None:
    """It stays in PostgreSQL: were it read, the relay would take the failure for an outage, for ever."""
    (key, other) = (long_key(topic, "a", 8), long_key(topic, "b", 8))
    with RelayProcess(database, bootstrap_servers) as process:
        process.wait_until_running()
        large = insert_many_bytes(conn, topic, key.encode())
        for version in range(2):
            insert(conn, topic, key, f"{key}:{version}")
            insert(conn, topic, other, f"{other}:{version}")
        wait_until(lambda: conn.execute(UNPUBLISHED).fetchone() == (3,), "the other key flows")
        ((message_id, tries, error),) = conn.execute(HEAD).fetchall()
        assert (message_id, tries, error.split(":")[0]) == (large, 0, "MESSAGE_TOO_LARGE")
        assert str(MANY)[:4] in error

        succeed("holds", "release", large, "--reason", "once more", OUTBOX_DSN=database)
        process.wait_for("key stays parked", message_id=large)
        ((message_id, tries, _),) = conn.execute(HEAD).fetchall()
        assert (message_id, tries) == (large, 1), "its key was tried, and nothing behind it"
        assert {record.key for record in read_topic(bootstrap_servers, topic)} == {other.encode()}

        succeed("holds", "skip", large, "--reason", "no topic takes it", OUTBOX_DSN=database)
        wait_until(lambda: conn.execute(UNPUBLISHED).fetchone() == (1,), "what was behind it flows")
        assert conn.execute(
            "SELECT count(*) FROM outbox.lane WHERE stopped_error IS NOT NULL"
        ).fetchone() == (0,)
    values = [record.value for record in read_topic(bootstrap_servers, topic) if record.key == key.encode()]
    assert values == [f"{key}:{version}".encode() for version in range(2)]


def test_a_row_whose_order_key_is_too_long_to_be_brought_parks_alone(
    database: str, bootstrap_servers: str, conn: Connection, topic: str
) -> None:
    """No topic takes it, so nothing can wait for it."""
    same_lane, other_lane = keys_of_lanes(conn, topic, LANE, 5)
    with RelayProcess(database, bootstrap_servers) as process:
        process.wait_until_running()
        large = insert_many_bytes(conn, topic, b"k" * (LONGEST_KEY + 1))
        insert(conn, topic, same_lane, f"{same_lane}:0")
        insert(conn, topic, other_lane, f"{other_lane}:0")
        process.wait_for("key parked", message_id=large)
        wait_until(lambda: conn.execute(UNPUBLISHED).fetchone() == (1,), "all others are published")
        assert conn.execute(STOPPED, [LANE]).fetchone() is None


def test_the_key_of_such_a_row_does_not_matter_if_it_states_another_order_key(
    database: str, bootstrap_servers: str, conn: Connection, topic: str
) -> None:
    (same_lane,) = keys_of_lanes(conn, topic, LANE)
    with RelayProcess(database, bootstrap_servers) as process:
        process.wait_until_running()
        large = insert_many_bytes(conn, topic, b"k" * 5_000, order_key=same_lane.encode())
        insert(conn, topic, same_lane, f"{same_lane}:0")
        process.wait_for("key parked", message_id=large)
        held = "SELECT count(*) FROM outbox.waiting WHERE reason = 'held'"
        wait_until(lambda: conn.execute(held).fetchone() == (1,), "what is behind it is held")


def test_such_a_row_waits_for_its_topic_and_parks_its_key_then(
    database: str, bootstrap_servers: str, conn: Connection, topic: str
) -> None:
    conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [topic])
    succeed("topic", "pause", topic, "--reason", "maintenance", OUTBOX_DSN=database)
    (key, other) = (long_key(topic, "a", 8), long_key(topic, "b", 8))
    with RelayProcess(database, bootstrap_servers) as process:
        process.wait_until_running()
        large = insert_many_bytes(conn, topic, key.encode())
        insert(conn, topic, key, f"{key}:0")
        insert(conn, topic, other, f"{other}:0")
        wait_until(lambda: conn.execute(WAITING).fetchall() == [("parked", 3)], "all wait for the topic")
        succeed("topic", "resume", topic, OUTBOX_DSN=database)
        wait_until(
            lambda: conn.execute(WAITING).fetchall() == [("failed", 1), ("held", 1)], "the key is parked"
        )
        ((message_id, *_),) = conn.execute(HEAD).fetchall()
        assert message_id == large
        wait_until(lambda: conn.execute(UNPUBLISHED).fetchone() == (2,), "the other key flows")


def test_such_a_row_of_a_topic_that_skips_ahead_parks_alone(
    database: str, bootstrap_servers: str, conn: Connection, topic: str
) -> None:
    conn.execute("INSERT INTO outbox.topic (name, partitions, skip_ahead) VALUES (%s, 4, true)", [topic])
    (key,) = keys_of_lanes(conn, topic, LANE)
    with RelayProcess(database, bootstrap_servers) as process:
        process.wait_until_running()
        insert_many_bytes(conn, topic, key.encode())
        insert(conn, topic, key, f"{key}:0")
        wait_until(lambda: conn.execute(WAITING).fetchall() == [("failed", 1)], "it waits")
        wait_until(lambda: conn.execute(UNPUBLISHED).fetchone() == (1,), "the next one flows")
