"""What keeps a relay from delivering exactly once has a name, and a command that repairs it; other shards go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from outbox_local.stack import storage
from outbox_local.stack.api import Stack
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import outbox
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
from tests.support.secured_broker import SecuredBroker
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

EXACTLY = ("--delivery", "exactly-once", "--lease", "2")
AT_LEAST = ("--delivery", "at-least-once", "--lease", "2")
NAME = "SELECT name FROM outbox.exactly_once WHERE shard = %s"
INTENTS = "SELECT shard, batch, digest FROM outbox.intent ORDER BY shard, batch"
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def refused(database: str, servers: str, *options: str) -> str:
    """Let a relay find out that it cannot deliver exactly once; return what it says."""
    with RelayProcess(database, servers, *EXACTLY, *options) as relay:
        assert relay.wait(60) == 1, relay.output()
        return relay.output()


def problems(database: str) -> dict[str, str]:
    """What `outbox status` reports, by its kind."""
    found = outbox("status", "--check", "--json", OUTBOX_DSN=database).json
    return {one["kind"]: one["text"] for one in found["problems"]}


def name_of(conn: Connection, shard: str = "1/1") -> str:
    row = conn.execute(NAME, [shard]).fetchone()
    assert row is not None
    return str(row[0])


def run(database: str, servers: str, conn: Connection, *options: str) -> None:
    with RelayProcess(database, servers, *options) as relay:
        relay.wait_for("lanes taken")
        wait_published(conn)
        relay.stop()


def forget(servers: str, group: str) -> None:
    """Let Kafka forget a group, as it does when the group has committed nothing for too long."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.delete_consumer_groups([group])[group].result(30)


def overwrite(servers: str, group: str, offset: int) -> None:
    """Commit an offset as another environment does that uses the same ids."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    places = [TopicPartition("__consumer_offsets", 0, offset, metadata="another's")]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def test_a_timeout_above_the_brokers_limit_is_refused_before_lanes_are_taken(
    database: str, bootstrap_servers: str, conn: Connection
) -> None:
    said = refused(database, bootstrap_servers, "--kafka-config", "transaction.timeout.ms=9000000")
    assert "INVALID_TRANSACTION_TIMEOUT" in said
    assert "--kafka-config transaction.timeout.ms=60000" in said
    assert conn.execute("SELECT max(epoch) FROM outbox.lane").fetchone() == (0,)


def test_a_broker_whose_offsets_have_one_partition_is_refused_at_once(
    private_stack: Stack, database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_stack = storage.settings

    def with_one(*given: Any) -> str:
        return of_stack(*given).replace("offsets.topic.num.partitions=8", "offsets.topic.num.partitions=1")

    monkeypatch.setattr("tests.support.secured_broker.settings", with_one)
    with SecuredBroker(private_stack) as broker:
        said = refused(database, broker.open_servers)
        assert "UNKNOWN_TOPIC_OR_PART: the topic __consumer_offsets has one partition" in said
        assert "offsets.topic.num.partitions=2" in said
        topic = broker.make_topic("points")
        insert_numbered(conn, topic, 20)
        run(database, broker.open_servers, conn, *AT_LEAST)
        assert not compare(read_topic(broker.open_servers, topic), numbered(20)).broken


def test_each_missing_right_is_named_with_the_command_that_grants_it(
    private_stack: Stack, database: str, conn: Connection
) -> None:
    grants: list[tuple[str, Any, str, tuple[AclOperation, ...]]] = [
        (
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
            ResourceType.TRANSACTIONAL_ID,
            "outbox-",
            (AclOperation.WRITE, AclOperation.DESCRIBE),
        ),
        ("GROUP_AUTHORIZATION_FAILED", ResourceType.GROUP, "outbox-", (AclOperation.READ,)),
        ("TOPIC_AUTHORIZATION_FAILED", ResourceType.TOPIC, "__consumer_offsets", (AclOperation.READ,)),
    ]
    with SecuredBroker(private_stack, guarded=True) as broker:
        topic = broker.make_topic("points")
        broker.grant(topic, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        insert_numbered(conn, topic, 20)
        for code, kind, name, operations in grants:
            said = refused(database, broker.bootstrap_servers, *broker.options)
            assert code in said
            assert "kafka-acls --add" in said
            broker.grant_prefixed(kind, name, *operations)
        run(database, broker.bootstrap_servers, conn, *EXACTLY, *broker.options)
        found = compare(read_topic(broker.open_servers, topic), numbered(20))
        assert not found.broken
        assert not found.duplicate_records


def test_a_group_that_kafka_forgot_stops_its_shard_alone(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    keys = keys_of_lanes(conn, topic, 0, 7)
    one, two = ("--shard", "1/2"), ("--shard", "2/2")
    with RelayProcess(database, bootstrap_servers, *EXACTLY, *two) as other:
        for key in keys:
            insert(conn, topic, key, f"{key}:0")
        run(database, bootstrap_servers, conn, *EXACTLY, *one)
        before = name_of(conn, "1/2")
        forget(bootstrap_servers, before)
        intents = conn.execute(INTENTS).fetchall()
        for key in keys:
            insert(conn, topic, key, f"{key}:1")
        said = refused(database, bootstrap_servers, *one)
        assert "BATCH_NOT_PROVEN" in said
        assert "outbox relay run --delivery at-least-once" in said
        assert "nothing of shard 1/2 is published (BATCH_NOT_PROVEN)" in problems(database)["not_proven"]
        wait_until(lambda: conn.execute(PUBLISHED, [topic]).fetchone() == (3,), "the other shard goes on")
        assert [row for row in conn.execute(INTENTS) if row[0] == "1/2"] == [
            row for row in intents if row[0] == "1/2"
        ]
        run(database, bootstrap_servers, conn, *AT_LEAST, *one)
        assert "not_proven" not in problems(database)
        for key in keys:
            insert(conn, topic, key, f"{key}:2")
        run(database, bootstrap_servers, conn, *EXACTLY, *one)
        assert name_of(conn, "1/2") != before
        other.stop()
    found = compare(
        read_topic(bootstrap_servers, topic), [(key, version) for key in keys for version in range(3)]
    )
    assert not found.broken
    assert found.duplicate_records == 0, "all was recorded when the relay stopped"


def test_the_offset_of_another_environment_stops_the_relay_before_it_fences_anybody(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    insert_numbered(conn, topic, 10)
    run(database, bootstrap_servers, conn, *EXACTLY)
    overwrite(bootstrap_servers, name_of(conn), 1000)
    said = refused(database, bootstrap_servers)
    assert "BATCH_NOT_PROVEN" in said
    assert "another environment uses its transactional ids" in said


def test_two_databases_of_one_server_have_ids_of_their_own(
    database: str, bootstrap_servers: str, conn: Connection, make_database: Any, make_topic: MakeTopic
) -> None:
    other, topic = make_database(), make_topic(partitions=1)
    with connect(other) as there:
        for where, at in ((conn, database), (there, other)):
            insert(where, topic, "k", f"k:{where is there:d}")
            run(at, bootstrap_servers, where, *EXACTLY)
        assert name_of(conn) != name_of(there)


def test_a_topic_that_the_relay_may_not_write_to_is_found_and_held_and_others_flow(
    private_stack: Stack, database: str, conn: Connection
) -> None:
    """Kafka fails the whole transaction, and does not say which topic it is."""
    with SecuredBroker(private_stack, guarded=True) as broker:
        topics = [broker.make_topic(name) for name in ("first", "second", "third")]
        for topic in topics:
            broker.grant(topic, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        for topic in ("first", "third"):
            broker.grant(topic, AclOperation.WRITE)
        broker.grant_prefixed(
            ResourceType.TRANSACTIONAL_ID, "outbox-", AclOperation.WRITE, AclOperation.DESCRIBE
        )
        broker.grant_prefixed(ResourceType.GROUP, "outbox-", AclOperation.READ)
        broker.grant("__consumer_offsets", AclOperation.READ)
        for topic in topics:
            insert_numbered(conn, topic, 30)
        with RelayProcess(database, broker.bootstrap_servers, *EXACTLY, *broker.options) as relay:
            flowing = (
                "SELECT count(*) FROM outbox.message_status WHERE topic <> 'second' AND status = 'PUBLISHED'"
            )
            wait_until(lambda: conn.execute(flowing).fetchone() == (60,), "the other topics flow")
            held = "SELECT DISTINCT topic, error FROM outbox.parked_key"
            [(topic, error)] = conn.execute(held).fetchall()
            assert topic == "second"
            assert error.startswith("TOPIC_AUTHORIZATION_FAILED")
            broker.grant("second", AclOperation.WRITE)
            wait_until(
                lambda: conn.execute(PUBLISHED, ["second"]).fetchone() == (30,), "it flows, too", seconds=90
            )
            relay.stop()
        for topic in topics:
            found = compare(read_topic(broker.open_servers, topic), numbered(30))
            assert not found.broken
            assert not found.duplicate_records
