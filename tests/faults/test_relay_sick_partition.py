"""A partition without a leader holds up the lanes that need it and nothing else; an outage of everything stops none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from psycopg.errors import CheckViolation

from outbox_local.stack.api import Stack
from outbox_relay.publisher.service import UnsettledError
from tests.support.kafka_records import compare, message_ids, read_topic
from tests.support.plain_inserts import (
    Connection,
    connect,
    insert,
    insert_numbered,
    keys_of_lanes,
    numbered,
    wait_published,
)
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

PENDING_ELSEWHERE = """
    SELECT count(*) FROM outbox.message_status s JOIN outbox.message m USING (id)
    WHERE s.status = 'COMMITTED' AND m.lane <> %s
"""
SICK = 3
"""The lane of the messages for the sick partition."""


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    """A second broker, running."""
    with SecondBroker(private_stack) as broker:
        yield broker


def others_are_published(conn: Connection) -> bool:
    row = conn.execute(PENDING_ELSEWHERE, [SICK]).fetchone()
    return row == (0,)


@pytest.mark.feature("S-38")
def test_a_partition_without_leader_holds_up_its_lanes_only_and_repeats_little(
    private_database: str, broker: SecondBroker
) -> None:
    sick, healthy = broker.make_topic(on=2), broker.make_topic(on=1, partitions=4)
    servers = broker.bootstrap_servers
    with connect(private_database) as conn:
        (key,) = keys_of_lanes(conn, sick, SICK)
        with RelayThread(private_database, servers, ack_timeout=3.0) as relay:
            insert(conn, sick, key, f"{key}:0")
            insert_numbered(conn, healthy, 50)
            wait_published(conn)
            broker.kill()
            insert(conn, sick, key, f"{key}:1")
            insert(conn, sick, key, f"{key}:2")
            insert_numbered(conn, healthy, 15_000, start=50)
            wait_until(lambda: others_are_published(conn), "all lanes but one flow, and are recorded")
            event = relay.wait_for("lane stopped", lane=SICK)
            assert event["reason"].startswith(f"PARTITION_UNAVAILABLE: topic {sick!r}, partition 0: ")
            assert "it has no leader (replicas on brokers 2; brokers that are up: 1)" in event["reason"]
            rows = conn.execute(
                "SELECT lane, stopped_message FROM outbox.lane WHERE stopped_error IS NOT NULL"
            ).fetchall()
            assert rows == [(SICK, None)], "no message is to blame, and none may be set aside"
            with pytest.raises(CheckViolation, match="may be in Kafka already"):
                conn.execute(
                    "UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [event["message_id"]]
                )
            insert_numbered(conn, healthy, 100, start=15_050)
            wait_until(lambda: others_are_published(conn), "the others flow while the lane is stopped")
            assert {each["lane"] for each in relay.find("lane stopped")} == {SICK}
        # At most the message of a trial was on the wire.
        assert relay.error is None or str(relay.error).startswith("1 messages"), relay.error
        before = message_ids(read_topic(servers, healthy))
        for _ in range(2):
            with RelayThread(private_database, servers, ack_timeout=3.0) as relay:
                relay.wait_for("lane stopped", lane=SICK)
        assert message_ids(read_topic(servers, healthy)) == before, "a restart publishes nothing again"

        broker.start()
        with RelayThread(private_database, servers, ack_timeout=3.0):
            wait_published(conn)
        assert not conn.execute("SELECT FROM outbox.lane WHERE stopped_error IS NOT NULL").fetchall()
    found = compare(read_topic(servers, sick), [(key, version) for version in range(3)])
    assert not found.broken
    found = compare(read_topic(servers, healthy), numbered(15_150))
    assert not found.broken
    assert found.duplicate_records < 15_150 // 8 * 2, "only the sick lane's share came again"


def test_a_stop_with_a_sick_partition_is_quick_and_counts_its_messages_only(
    private_database: str, broker: SecondBroker
) -> None:
    sick, healthy = broker.make_topic(on=2), broker.make_topic(on=1)
    servers = broker.bootstrap_servers
    with connect(private_database) as conn:
        key, good = *keys_of_lanes(conn, sick, SICK), *keys_of_lanes(conn, healthy, 5)
        with RelayThread(private_database, servers, ack_timeout=300.0, shutdown_timeout=120.0) as relay:
            insert(conn, sick, key, f"{key}:0")
            insert(conn, healthy, good, f"{good}:0")
            wait_published(conn)
            broker.kill()
            insert(conn, sick, key, f"{key}:1")
            insert(conn, sick, key, f"{key}:2")
            relay.wait_for("lanes wait for Kafka", lanes=[SICK])
            insert(conn, healthy, good, f"{good}:1")
            wait_until(lambda: others_are_published(conn), "the others flow")
            since = time.monotonic()
            relay.stop()
            assert time.monotonic() - since < 60, "half of the time that it may take"
        assert isinstance(relay.error, UnsettledError)
        in_flight = int(str(relay.error).split()[0])
        assert in_flight in {1, 2}, relay.error
        rows = conn.execute("SELECT lane, stopped_error FROM outbox.lane WHERE stopped_error IS NOT NULL")
        ((lane, error),) = rows.fetchall()
        assert lane == SICK
        assert sick in error


def test_an_outage_of_every_broker_stops_no_lane_and_is_logged_with_pauses(
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
        assert not relay.find("lane stopped")
        pauses = [each["next_report_in_s"] for each in relay.find("Kafka is away")]
        assert pauses == sorted(pauses)
    assert relay.error is None
    assert not compare(read_topic(private_stack.bootstrap_servers, private_topic), numbered(100)).broken
