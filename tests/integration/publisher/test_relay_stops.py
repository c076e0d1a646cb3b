"""Messages that cannot be published: they hold up their key, or lane, with a named error, and no other."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from outbox.partitioning.lanes import lane_of
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import (
    Connection,
    connect,
    insert,
    insert_numbered,
    keys_of_lanes,
    numbered,
    stopped,
    wait_published,
)
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def register(
    conn: Connection, topic: str, *, partitions: int = 4, max_message_bytes: int = 1_048_588
) -> None:
    conn.execute(
        "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, %s, %s)",
        [topic, partitions, max_message_bytes],
    )


def lower_limit_in_kafka(bootstrap_servers: str, make_topic: MakeTopic, topic: str, value: int) -> None:
    """Lower a topic's max.message.bytes behind the outbox's back, and return when the broker keeps to it.

    The broker accepts a change some time before it applies it, and applies changes in the order of its metadata
    log: when a twin that was changed afterwards refuses a message, so does the topic.
    """
    twin = make_topic(partitions=1)
    limit_in_kafka(bootstrap_servers, topic, value)
    limit_in_kafka(bootstrap_servers, twin, value)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.timeout.ms": 10_000})
    refusals: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: object) -> None:
        if error is not None:
            refusals.append(error)

    def refused() -> bool:
        producer.produce(twin, b"x" * (value + 1_000), on_delivery=delivered)
        producer.flush()
        return bool(refusals)

    wait_until(refused, f"the broker refuses more than {value} bytes")
    assert refusals[0].name() == "MSG_SIZE_TOO_LARGE"


def limit_in_kafka(bootstrap_servers: str, topic: str, value: int | None) -> None:
    """Set or delete a topic's max.message.bytes, behind the outbox's back."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry("max.message.bytes", str(value or 0), incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(15)


@pytest.mark.feature("S-38")
def test_an_unknown_topic_holds_up_itself_only_and_goes_on_when_it_is_created(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    missing = f"missing-{uuid.uuid4().hex[:12]}"
    error = "SELECT error FROM outbox.parked_key WHERE is_topic AND lane = 3"
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        (bad,) = keys_of_lanes(conn, missing, 3)
        same_lane, other_lane = keys_of_lanes(conn, topic, 3, 5)
        insert(conn, topic, same_lane, f"{same_lane}:1")
        for version in range(3):
            insert(conn, missing, bad, f"{bad}:{version}")
        insert(conn, topic, same_lane, f"{same_lane}:2")
        relay.wait_for("topic parked", lane=3)
        insert(conn, topic, other_lane, f"{other_lane}:1")
        wait_until(lambda: len(read_topic(bootstrap_servers, topic)) == 3, "both lanes flow")
        wait_until(lambda: conn.execute(error).fetchone(), "it is recorded")
        ((text,),) = conn.execute(error).fetchall()
        assert text.startswith("UNKNOWN_TOPIC_OR_PART")
        assert f"outbox topic create {missing}" in text
        assert not stopped(conn)

        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.create_topics([NewTopic(missing, num_partitions=2, replication_factor=1)])[missing].result(15)
        wait_published(conn)
        wait_until(lambda: not conn.execute(error).fetchone(), "the topic is no longer parked")
        relay.wait_for("topic is held no more", topic=missing)
        relay.stop()
    late = read_topic(bootstrap_servers, missing)
    assert [record.value for record in late] == [f"{bad}:{version}".encode() for version in range(3)]
    records = read_topic(bootstrap_servers, topic)
    found = compare(records, [(same_lane, 1), (same_lane, 2), (other_lane, 1)])
    assert not found.broken
    assert found.duplicate_records == 0


UNPUBLISHABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "queue": ("QUEUE_OUT_OF_RANGE", {"queue": 4}),
    "modulo": ("SELECTOR_FAILED", {"selector": "modulo", "order_key": b"seven"}),
    "selector": ("SELECTOR_FAILED", {"selector": "by-moon-phase", "order_key": b"7"}),
    "body": ("MESSAGE_TOO_LARGE", {"body": b"x" * 20_000}),
    "headers": ("MESSAGE_TOO_LARGE", {"headers": '{"much": "%s"}' % ("y" * 20_000)}),
    "tags": ("MESSAGE_TOO_LARGE", {"tags": ["z" * 20_000]}),
    "key": ("MESSAGE_TOO_LARGE", {"key": b"k" * 20_000}),
}


@pytest.mark.feature("S-38")
def test_a_message_that_cannot_be_published_holds_up_its_own_key_only(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """So does one whose key is long: of that only the first bytes and a hash are kept in memory."""
    bad: dict[str, str] = {}
    flowing: dict[str, list[bytes]] = {}
    with connect(database) as conn:
        topics = {name: make_topic() for name in UNPUBLISHABLE}
        good = next(iter(topics.values()))
        lanes = dict.fromkeys(range(8))
        for name, (code, columns) in UNPUBLISHABLE.items():
            register(conn, topics[name], max_message_bytes=10_000)
            lane, message_id = insert_into_free_lane(conn, topics[name], list(lanes), columns)
            del lanes[lane]
            bad[message_id] = code
            names = (f"other-{number}" for number in range(200))
            other = next(key for key in names if lane_of(topics[name], None, key.encode()) == lane)
            insert(conn, topics[name], other, f"{other}:1")
            flowing[name] = [f"{other}:1".encode()]
            # Behind it, with its own key or queue, which has another message then.
            conn.execute(BEHIND, [message_id])
        (free,) = keys_of_lanes(conn, good, *lanes)
        insert(conn, good, free, f"{free}:1")
        flowing[next(iter(topics))].append(f"{free}:1".encode())
        with RelayProcess(database, bootstrap_servers) as relay:
            for message_id, code in bad.items():
                event = relay.wait_for("key parked", message_id=message_id)
                assert event["reason"].startswith(code)
                assert wait_until(partial(error_of, conn, message_id), "it is recorded") == event["reason"]
            held = "SELECT count(*) FROM outbox.waiting WHERE reason = 'held'"
            wait_until(lambda: conn.execute(held).fetchone() == (len(bad),), "what is behind is held")
            wait_until(lambda: read_topic(bootstrap_servers, good), "the free lane flows")
            for name, topic in topics.items():
                found = partial(values_of, bootstrap_servers, topic)
                wait_until(lambda: len(found()) >= len(flowing[name]), "other keys of its lane flow")  # noqa: B023
            relay.stop()
    for name, topic in topics.items():
        assert sorted(values_of(bootstrap_servers, topic)) == sorted(flowing[name]), "nothing overtakes"


BEHIND = """
    INSERT INTO outbox.message (topic, key, order_key, queue, selector, body, lane)
    SELECT topic, key, order_key, queue, selector, 'behind', lane FROM outbox.message WHERE message_id = %s
"""


def values_of(bootstrap_servers: str, topic: str) -> list[bytes]:
    return [record.value or b"" for record in read_topic(bootstrap_servers, topic)]


def error_of(conn: Connection, message_id: str) -> str | None:
    row = conn.execute(
        "SELECT k.error FROM outbox.parked_key k JOIN outbox.waiting w ON w.id = k.head WHERE w.message_id = %s",
        [message_id],
    ).fetchone()
    return row and str(row[0])


def insert_into_free_lane(
    conn: Connection, topic: str, lanes: list[int], columns: dict[str, Any]
) -> tuple[int, str]:
    """Write a message that cannot be published, varied until it belongs to one of these lanes.

    The table refuses such rows, but not from its owner with a stated lane.
    """
    for number in range(200):
        given = dict(columns)
        if "queue" in given:
            given["queue"] += number
        elif "order_key" in given:
            given["order_key"] += f"/{number}".encode()
        elif "key" in given:
            given["key"] += b"/%d" % number
        key, body = given.pop("key", b"k%d" % number), given.pop("body", b"")
        lane = lane_of(topic, given.get("queue"), given.get("order_key", key))
        if lane in lanes:
            return lane, insert(conn, topic, key, body, lane=lane, **given)
    raise AssertionError("no variation fell into a free lane")


@pytest.mark.feature("S-38", "S-102")
def test_a_message_the_broker_refuses_is_not_overtaken_by_later_ones_of_its_key(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        key, neighbour = keys_of_lanes(conn, topic, 2, 6)
        insert(conn, topic, key, f"{key}:0")
        wait_published(conn)  # the relay knows the limit now, and asks again in half a minute only
        lower_limit_in_kafka(bootstrap_servers, make_topic, topic, 5_000)
        with conn.transaction():
            for version in range(1, 40):
                long = '{"h": "%s"}' % ("x" * 6_000)
                insert(conn, topic, key, f"{key}:{version}", headers=long if version == 10 else None)
        event = relay.wait_for("key parked", lane=2)
        assert "TOO_LARGE" in event["reason"]
        assert relay.count("delivery failed") >= 1
        # The key is parked while those before the long message are still on their way.
        wait_until(
            lambda: len({r.value for r in read_topic(bootstrap_servers, topic)}) == 10,
            "those before it are there",
        )
        insert(conn, topic, neighbour, f"{neighbour}:0")
        held = "SELECT count(*) FROM outbox.waiting WHERE reason = 'held'"
        wait_until(lambda: conn.execute(held).fetchone() == (29,), "what is behind it is held")
        wait_until(
            lambda: any(r.key == neighbour.encode() for r in read_topic(bootstrap_servers, topic)),
            "others flow",
        )
        records = [r for r in read_topic(bootstrap_servers, topic) if r.key == key.encode()]
        assert dict.fromkeys(r.value for r in records) == dict.fromkeys(
            f"{key}:{version}".encode() for version in range(10)
        )
        request = "UPDATE outbox.parked_key SET requested_at = clock_timestamp() WHERE draining_at IS NULL"
        conn.execute(request)
        relay.wait_for("key stays parked", message_id=event["message_id"])
        after = [r for r in read_topic(bootstrap_servers, topic) if r.key == key.encode()]
        assert len(after) == len(records), "a retry publishes nothing again"
        assert not stopped(conn)
        limit_in_kafka(bootstrap_servers, topic, None)

        def is_drained() -> bool:
            conn.execute(request)
            return conn.execute("SELECT count(*) FROM outbox.parked_key").fetchone() == (0,)

        wait_until(is_drained, "the key is drained")
        wait_published(conn)
        relay.stop()
    found = compare(
        read_topic(bootstrap_servers, topic), [(key, version) for version in range(40)] + [(neighbour, 0)]
    )
    assert not found.broken


def test_small_messages_pass_a_small_topic_limit_however_many_there_are(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2, max_message_bytes="4000")
    with connect(database) as conn:
        insert_numbered(conn, topic, 5_000)
        with RelayProcess(database, bootstrap_servers) as relay:
            wait_published(conn)
            relay.stop()
            assert relay.count("delivery failed") == 0
    found = compare(read_topic(bootstrap_servers, topic), numbered(5_000))
    assert not found.broken
    assert found.duplicate_records == 0
