"""A partition without a leader is held by itself: the rest of its topic flows, as all topics do.

An outage of everything holds none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from psycopg.errors import CheckViolation

from outbox.partitioning.selectors import partition_of
from outbox_local.stack.api import Stack
from outbox_relay.operations import holds
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

BOUND_S = 15.0
"""For a machine that is busy with other tests."""
PUBLISHED = (
    "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND key = %s AND published_at IS NOT NULL"
)
SET_ASIDE = "UPDATE outbox.message SET state = 'DEAD' WHERE id = (SELECT min(id) FROM outbox.waiting)"
DOUBT = "SELECT in_doubt FROM outbox.waiting ORDER BY place"


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    """A second broker, running."""
    with SecondBroker(private_stack) as broker:
        yield broker


def key_of(partition: int) -> str:
    """Return a key of a partition of two."""
    keys = (f"k{number}" for number in range(100))
    return next(key for key in keys if partition_of(None, key.encode(), 2) == partition)


def wait_for_key(conn: Connection, topic: str, key: str, count: int) -> None:
    wait_until(
        lambda: conn.execute(PUBLISHED, [topic, key.encode()]).fetchone() == (count,),
        f"{count} of {key} are published",
    )


@pytest.mark.feature("S-38")
def test_a_partition_without_a_leader_is_held_and_everything_else_flows(
    private_database: str, broker: SecondBroker
) -> None:
    topic, other = broker.make_spread_topic(), broker.make_topic(on=1, partitions=2)
    servers, good, sick = broker.bootstrap_servers, key_of(0), key_of(1)
    with connect(private_database) as conn:
        with RelayThread(private_database, servers, ack_timeout=3.0) as relay:
            for key in (good, sick):
                insert(conn, topic, key, f"{key}:0")
            insert_numbered(conn, other, 50)
            wait_published(conn)
            broker.kill()
            for version in (1, 2):
                insert(conn, topic, sick, f"{sick}:{version}")
            began = time.monotonic()
            insert(conn, topic, good, f"{good}:1")
            insert_numbered(conn, other, 15_000, start=50)
            wait_for_key(conn, topic, good, 2)
            wait_until(lambda: others_are_published(conn, other), "the other topic flows")
            assert time.monotonic() - began < BOUND_S, "nothing else waits for the partition"
            relay.wait_for("partition is held", topic=topic)
            wait_until(
                lambda: conn.execute(DOUBT).fetchall() == [(True,), (True,)], "what it was sent is in doubt"
            )
            with pytest.raises(CheckViolation, match="cannot become DEAD"):
                conn.execute(SET_ASIDE)
            insert(conn, topic, sick, f"{sick}:3")
            insert(conn, topic, good, f"{good}:2")
            wait_for_key(conn, topic, good, 3)
            wait_until(
                lambda: len(conn.execute(DOUBT).fetchall()) == 3, "new messages of the partition wait, too"
            )
            (hold,) = holds.everything(conn)
            assert (hold.kind, hold.topic, hold.queue, hold.waiting) == ("partition", topic, 1, 3)
            assert hold.error.startswith("LEADER_NOT_AVAILABLE: ")
        assert relay.error is None
        with RelayThread(private_database, servers, ack_timeout=3.0) as successor:
            insert(conn, topic, good, f"{good}:3")
            wait_for_key(conn, topic, good, 4)
            broker.start()
            wait_until(lambda: not holds.everything(conn), "it goes on by itself")
            insert(conn, topic, sick, f"{sick}:4")
            wait_published(conn)
        assert successor.error is None
    expected = [(good, version) for version in range(4)] + [(sick, version) for version in range(5)]
    assert not compare(read_topic(servers, topic), expected).broken
    found = compare(read_topic(servers, other), numbered(15_050))
    assert not found.broken
    assert found.duplicate_records == 0


def others_are_published(conn: Connection, topic: str) -> bool:
    query = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND published_at IS NULL"
    return conn.execute(query, [topic]).fetchone() == (0,)


def test_a_stop_without_a_leader_is_quick_and_leaves_its_messages_held(
    private_database: str, broker: SecondBroker
) -> None:
    topic, sick = broker.make_spread_topic(), key_of(1)
    with connect(private_database) as conn:
        relay = RelayThread(
            private_database, broker.bootstrap_servers, ack_timeout=300.0, shutdown_timeout=120.0
        )
        with relay:
            insert(conn, topic, sick, f"{sick}:0")
            wait_published(conn)
            broker.kill()
            insert(conn, topic, sick, f"{sick}:1")
            wait_until(lambda: relay.session is not None and relay.session.unsettled, "it is on the wire")
            began = time.monotonic()
            relay.stop()
            assert time.monotonic() - began < 60, "half of the time that it may take"
        assert relay.error is None
        assert conn.execute(DOUBT).fetchall() == [(True,)]


def test_an_outage_of_every_broker_holds_no_partition_and_is_logged_with_pauses(
    private_database: str, private_stack: Stack, private_topic: str
) -> None:
    with (
        connect(private_database) as conn,
        RelayThread(private_database, private_stack.bootstrap_servers, ack_timeout=3.0) as relay,
    ):
        insert_numbered(conn, private_topic, 50)
        wait_published(conn)
        private_stack.kill_kafka()
        insert_numbered(conn, private_topic, 50, start=50)
        # With pauses of one, two and four seconds: longer than a partition may be silent.
        wait_until(lambda: len(relay.find("Kafka is away")) > 3, "it is logged again")
        private_stack.start_kafka()
        wait_published(conn)
        assert not relay.find("partition is held") + relay.find("topic is held")
        pauses = [each["next_report_in_s"] for each in relay.find("Kafka is away")]
        assert pauses == sorted(pauses)
    assert relay.error is None
    assert not compare(read_topic(private_stack.bootstrap_servers, private_topic), numbered(100)).broken
