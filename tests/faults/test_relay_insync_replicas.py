"""A topic with too few in-sync replicas: Kafka refuses each batch of it for now, and takes it once there are enough.

librdkafka repeats such a batch by itself, so its partition is silent. It is held as one without a leader is, and other
topics flow. Nothing of it was written, so what is held comes once, in order, also after a death of the relay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from outbox_local.stack.api import Stack
from outbox_relay.operations.holds import everything
from outbox_relay.publisher import topics
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.publications import value
from tests.support.relay_process import ENTRY, RelayProcess
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

LANES = range(8)
ACK_TIMEOUT_S = 3.0
BEYOND_S = 15.0
"""What others may wait beyond that, on a machine that is busy; see test_relay_sick_partition.py."""
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE status = 'PUBLISHED' AND topic = %s"
HELD = "partition is held"
DYING = str(Path(__file__).parents[1] / "support/dying_relay.py")
TRIES = "SELECT sum(tries) FROM outbox.parked_key"
PARKED = "SELECT split_part(error, ':', 1), count(*) FROM outbox.parked_key GROUP BY 1"


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    """A second broker, running."""
    with SecondBroker(private_stack) as broker:
        yield broker


def require(bootstrap_servers: str, topic: str, replicas: int) -> None:
    """Let the topic take messages with so many replicas in sync, and no fewer."""
    entry = ConfigEntry("min.insync.replicas", str(replicas), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(15)


class Stage:
    """Messages in all lanes: for a topic of two replicas, both of which are required, and for one of one replica."""

    def __init__(self, conn: Connection, broker: SecondBroker) -> None:
        self._conn, self._servers = conn, broker.bootstrap_servers
        self.sick = broker.make_topic(on=1, also_on=[2], min_insync_replicas="2")
        self.well = broker.make_topic(on=1)
        self._keys = {topic: keys_of_lanes(conn, topic, *LANES) for topic in (self.sick, self.well)}
        self._sent = {self.sick: 0, self.well: 0}

    def send(self, topic: str, count: int = 1) -> None:
        """Commit so many messages for each lane, one transaction each."""
        for number in range(self._sent[topic], self._sent[topic] + count):
            for key in self._keys[topic]:
                insert(self._conn, topic, key, f"{key}:{number}")
        self._sent[topic] += count

    def published(self, topic: str) -> int:
        """Count the messages that are published of a topic."""
        (count,) = self._conn.execute(PUBLISHED, [topic]).fetchone() or (0,)
        return int(count)

    def has_more_than(self, count: int) -> bool:
        """Return whether more than so many messages of each lane are published of the topic that lacks replicas."""
        return self.published(self.sick) > count * len(LANES)

    def wait_for(self, topic: str, seconds: float = 120.0) -> None:
        """Wait until everything of a topic is published."""
        expected = self._sent[topic] * len(LANES)
        wait_until(lambda: self.published(topic) == expected, f"all of {topic} is published", seconds=seconds)

    def slowest(self, seconds: float) -> float:
        """Send one message a lane to the other topic, for a while; return the longest that a round took."""
        longest, end = 0.0, time.monotonic() + seconds
        while time.monotonic() < end:
            since = time.monotonic()
            self.send(self.well)
            self.wait_for(self.well, ACK_TIMEOUT_S + BEYOND_S)
            longest = max(longest, time.monotonic() - since)
        return longest

    def check(self, *, most_twice: int) -> None:
        """Check that each message of both topics arrived, in order; so many of the sick one may come twice."""
        for topic, most in ((self.sick, most_twice), (self.well, 0)):
            expected = [(key, number) for key in self._keys[topic] for number in range(self._sent[topic])]
            found = compare(read_topic(self._servers, topic), expected)
            assert not found.broken
            assert found.duplicate_records <= most


@pytest.mark.feature("S-38")
@pytest.mark.parametrize("heals_by", ["the broker", "its setting"])
def test_a_partition_without_enough_replicas_is_held_and_others_flow(
    private_database: str, broker: SecondBroker, heals_by: str
) -> None:
    servers = broker.bootstrap_servers
    with (
        connect(private_database) as conn,
        RelayThread(private_database, servers, ack_timeout=ACK_TIMEOUT_S) as relay,
    ):
        stage = Stage(conn, broker)
        stage.send(stage.sick)
        stage.send(stage.well)
        wait_published(conn)
        broker.kill()
        stage.send(stage.sick, 3)
        assert stage.slowest(ACK_TIMEOUT_S + 1) < ACK_TIMEOUT_S + BEYOND_S
        event = relay.wait_for(HELD, topic=stage.sick)
        assert event["reason"].startswith(f"NOT_ENOUGH_REPLICAS: topic {stage.sick!r}, partition 0: ")
        assert "in-sync replicas: 1, min.insync.replicas: 2" in event["reason"]
        assert conn.execute(PARKED).fetchall() == [("NOT_ENOUGH_REPLICAS", len(LANES))]
        (repair,) = everything(conn)[0].repair()
        assert repair.startswith("start brokers that have replicas of it, or lower its min.insync.replicas; ")
        stage.send(stage.sick, 2)
        tries = value(conn, TRIES)
        assert stage.slowest(10.0) < BEYOND_S
        assert value(conn, TRIES) == tries, "nothing of the partition is tried"
        assert stage.published(stage.sick) == len(LANES), "what came before"
        if heals_by == "the broker":
            broker.start()
        else:
            require(servers, stage.sick, 1)
        stage.wait_for(stage.sick)
        assert not conn.execute(PARKED).fetchall()
        stage.check(most_twice=3 * len(LANES))
    assert relay.error is None


def test_without_the_right_to_read_configurations_a_topic_waits_for_replicas(
    private_database: str, broker: SecondBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    monkeypatch.setattr(topics, "_configurations", lambda _, names: dict.fromkeys(names, forbidden))
    servers = broker.bootstrap_servers
    with (
        connect(private_database) as conn,
        RelayThread(private_database, servers, ack_timeout=ACK_TIMEOUT_S) as relay,
    ):
        stage = Stage(conn, broker)
        broker.kill()
        stage.send(stage.sick, 3)
        assert stage.slowest(ACK_TIMEOUT_S + 1) < ACK_TIMEOUT_S + BEYOND_S
        event = relay.wait_for(HELD, topic=stage.sick)
        assert "in-sync replicas: 1, min.insync.replicas: not readable" in event["reason"]
        assert stage.slowest(10.0) < BEYOND_S, "nobody waits for a partition that is tried again"
        broker.start()
        stage.wait_for(stage.sick)
        stage.check(most_twice=3 * len(LANES))
    assert relay.error is None


def test_replicas_that_come_and_go_lose_nothing_and_hold_up_nobody_for_long(
    private_database: str, broker: SecondBroker
) -> None:
    servers = broker.bootstrap_servers
    with (
        connect(private_database) as conn,
        RelayThread(private_database, servers, ack_timeout=ACK_TIMEOUT_S) as relay,
    ):
        stage = Stage(conn, broker)
        broker.kill()
        for turn in range(3):
            require(servers, stage.sick, 2)
            stage.send(stage.sick, 20)
            assert stage.slowest(ACK_TIMEOUT_S + 2) < ACK_TIMEOUT_S + BEYOND_S
            require(servers, stage.sick, 1)
            # Its drain has begun, and not ended.
            wait_until(partial(stage.has_more_than, turn * 20), "it is drained")
        stage.wait_for(stage.sick)
        assert not conn.execute(PARKED).fetchall()
        stage.check(most_twice=3 * 20 * len(LANES))
    assert relay.error is None


@pytest.mark.parametrize("is_held", [False, True])
def test_a_relay_that_dies_while_replicas_lack_leaves_each_message_to_come(
    private_database: str, broker: SecondBroker, *, is_held: bool
) -> None:
    servers = broker.bootstrap_servers
    options = ("--lease", "1", "--ack-timeout", f"{ACK_TIMEOUT_S if is_held else 300:g}")
    with connect(private_database) as conn:
        stage = Stage(conn, broker)
        broker.kill()
        asks = () if is_held else (DYING, "publisher.hands.silence:Silence._ask", "after", "1")
        with RelayProcess(private_database, servers, *options, entry=asks or (str(ENTRY),)) as relay:
            stage.send(stage.sick, 3)
            if is_held:
                expected = [("NOT_ENOUGH_REPLICAS", len(LANES))]
                wait_until(lambda: conn.execute(PARKED).fetchall() == expected, "it is held")
                relay.kill()
            else:
                relay.wait_until_it_kills_itself()  # Kafka has refused what is on the wire for half a second
        with RelayProcess(private_database, servers, *options) as relay:
            stage.send(stage.sick, 3)
            if is_held:
                assert stage.slowest(3.0) < BEYOND_S, "nothing of the partition is tried"
            broker.start()
            stage.send(stage.well)
            wait_published(conn)
            stage.wait_for(stage.sick)
            stage.wait_for(stage.well)
            relay.stop()
        stage.check(most_twice=0)
