"""Messages that Kafka refuses: they are parked before they are produced, or found out by the broker's answer."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import (
    connect,
    insert,
    insert_numbered,
    keys_of_lanes,
    numbered,
    stopped,
    wait_published,
)
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

REGISTER = "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, 1, 4000000)"
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"


@pytest.mark.feature("S-38")
@pytest.mark.usefixtures("may_not_describe_configs")
def test_a_refused_message_without_a_key_holds_up_nothing(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    compacted, healthy = make_topic(partitions=1, cleanup_policy="compact"), make_topic(partitions=1)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        (key,) = keys_of_lanes(conn, healthy, 5)
        refused = insert(conn, compacted, None, b"no key", lane=2)
        event = relay.wait_for("key parked", lane=2)
        assert event["message_id"] == refused
        assert "INVALID_RECORD" in event["reason"]
        insert(conn, healthy, key, b"flows")
        (behind,) = keys_of_lanes(conn, compacted, 2)
        insert(conn, compacted, behind, b"behind it")
        wait_published(conn)
        assert not stopped(conn)
        assert len(relay.find("delivery failed")) <= 2, "once as it came, once by itself"
    assert [record.value for record in read_topic(bootstrap_servers, healthy)] == [b"flows"]
    assert [record.value for record in read_topic(bootstrap_servers, compacted)] == [b"behind it"]


@pytest.mark.parametrize("foreseen", ["no key", "larger than a segment", "internal", "too long"])
def test_what_can_be_foreseen_is_parked_without_ending_a_producer(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, foreseen: str
) -> None:
    healthy = make_topic(partitions=1)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        insert_numbered(conn, healthy, 20)
        relay.wait_for("lanes taken")
        keys = keys_of_lanes(conn, healthy, *range(8))
        if foreseen == "no key":
            topic, what = make_topic(partitions=1, cleanup_policy="compact,delete"), "key"
            refused = [insert(conn, topic, None, b"no key", queue=0)]
            insert(conn, topic, "k", b"with a key")
        elif foreseen == "larger than a segment":
            topic, what = (
                make_topic(partitions=1, segment_bytes="1048576", max_message_bytes="4000000"),
                "key",
            )
            conn.execute(REGISTER, [topic])  # else the table refuses it, too
            refused = [insert(conn, topic, "k", random.Random(1).randbytes(1_100_000))]
        elif foreseen == "internal":
            make_internal(bootstrap_servers, healthy)
            topic, what = "__consumer_offsets", "topic"
            refused = [insert(conn, topic, "k", b"internal")]
        else:
            topic, what = "t" * 900, "key"
            refused = [insert(conn, topic, "k", b"long", lane=3), insert(conn, topic, "k", b"long", lane=3)]
        for message_id in refused:
            relay.wait_for(f"{what} parked", message_id=message_id)
        for number, key in enumerate(keys):
            insert(conn, healthy, key, f"{key}:{100 + number}")
        wait_published(conn)
        assert not stopped(conn)
        assert not relay.find("delivery failed"), "no producer ended for it"
    expected = [*numbered(20), *((key, 100 + number) for number, key in enumerate(keys))]
    findings = compare(read_topic(bootstrap_servers, healthy), expected)
    assert not findings.broken
    assert findings.duplicate_records == 0


def make_internal(bootstrap_servers: str, topic: str) -> None:
    """Let the broker make its topic of offsets, by committing one."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "g", "log_level": 0})
    try:
        wait_until(lambda: committed(consumer, topic), "the broker keeps offsets")
    finally:
        consumer.close()


def committed(consumer: Consumer, topic: str) -> bool:
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    except KafkaException:
        return False
    return True


@pytest.mark.usefixtures("may_not_describe_configs")
def test_refused_messages_are_found_one_by_one_beside_a_healthy_topic(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """Inside a request of many, in several lanes, and one after the other; each ends two producers at most."""
    compacted, healthy = make_topic(partitions=1, cleanup_policy="compact"), make_topic(partitions=1)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        keys = keys_of_lanes(conn, healthy, *range(8))
        insert(conn, healthy, keys[0], f"{keys[0]}:0")
        insert(conn, compacted, "first", "first:0")
        wait_published(conn)
        with conn.transaction():
            insert_numbered(conn, compacted, 100)
            refused = [insert(conn, compacted, None, b"no key", lane=lane) for lane in (1, 4, 6)]
            insert_numbered(conn, compacted, 100, start=100)
        version = 0
        for number in range(6):
            for _ in range(10):
                version += 1
                for key in keys:
                    insert(conn, healthy, key, f"{key}:{version}")
            relay.wait_for("key parked", message_id=refused[-1], seconds=120)
            wait_published(conn)  # so no more than these are on the wire at the next refusal
            refused.append(insert(conn, compacted, None, b"no key", lane=number))
        for message_id in refused:
            relay.wait_for("key parked", message_id=message_id, seconds=120)
        wait_published(conn)
        ended = len(relay.find("delivery failed"))
        assert ended <= 2 * len(refused) + 2, "the others of a request do not end producers"
        assert not stopped(conn)
    expected = [(keys[0], 0), *((key, n) for key in keys for n in range(1, version + 1))]
    found = compare(read_topic(bootstrap_servers, healthy), expected)
    assert not found.broken
    assert found.duplicate_records <= 8 * 10 * ended, (
        "at most what was on the wire of each producer that ended"
    )
    found = compare(read_topic(bootstrap_servers, compacted), [("first", 0), *numbered(200)])
    assert not found.broken


def test_a_wrong_clock_is_nobodys_own_fault(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """The topic's own bound stands for it; once it is right again all goes on without an operator."""
    strict, healthy = make_topic(partitions=1, message_timestamp_before_max_ms="0"), make_topic(partitions=1)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        keys = keys_of_lanes(conn, healthy, *range(8))
        insert_numbered(conn, strict, 20)
        event = relay.wait_for("topic parked", seconds=120)
        assert "INVALID_TIMESTAMP" in event["reason"]
        assert "compare its clock" in event["reason"]
        for key in keys:
            insert(conn, healthy, key, f"{key}:0")
        wait_until(lambda: conn.execute(PUBLISHED, [healthy]).fetchone() == (8,), "the healthy topic goes on")
        assert conn.execute(
            "SELECT count(*) FROM outbox.message_status WHERE status = 'DEAD'"
        ).fetchone() == (0,)
        allow_any_time(bootstrap_servers, strict)
        wait_until(lambda: conn.execute(PUBLISHED, [strict]).fetchone() == (20,), "it goes on by itself")
        assert not stopped(conn)
    assert not compare(read_topic(bootstrap_servers, strict), numbered(20)).broken


def allow_any_time(bootstrap_servers: str, topic: str) -> None:
    entry = ConfigEntry(
        "message.timestamp.before.max.ms", str(2**63 - 1), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(15)
