"""A topic with too few in-sync replicas: Kafka refuses each batch of it for now, and takes it once there are enough.

librdkafka repeats such a batch by itself. Nothing of it was written, so what is repeated comes once, in its order, also
after a death of the relay.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from outbox_local.stack.api import Stack
from outbox_relay.operations.stopped_lanes import everything
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("private stack")

SICK, WELL = 3, 5
"""The lanes of the messages for the two topics."""
PUBLISHED = """
    SELECT count(*) FROM outbox.message_status s JOIN outbox.message m USING (id)
    WHERE s.status = 'PUBLISHED' AND m.lane = %s
"""


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    """A second broker, running."""
    with SecondBroker(private_stack) as broker:
        yield broker


def be_content_with_one(bootstrap_servers: str, topic: str) -> None:
    """Let the topic take messages with one replica in sync."""
    entry = ConfigEntry("min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(15)


class Stage:
    """Messages for a topic of two replicas, both of which are required, and for one of one replica."""

    def __init__(self, conn: Connection, broker: SecondBroker) -> None:
        self._conn, self._servers = conn, broker.bootstrap_servers
        self.sick = broker.make_topic(on=1, also_on=[2], min_insync_replicas="2")
        self.well = broker.make_topic(on=1)
        (self.sick_key,) = keys_of_lanes(conn, self.sick, SICK)
        (self.well_key,) = keys_of_lanes(conn, self.well, WELL)
        self._sent = 0

    def send(self, count: int) -> None:
        """Commit so many messages for each topic, one transaction each."""
        for number in range(self._sent, self._sent + count):
            insert(self._conn, self.sick, self.sick_key, f"{self.sick_key}:{number}")
            insert(self._conn, self.well, self.well_key, f"{self.well_key}:{number}")
        self._sent += count

    def wait_for_the_other(self) -> None:
        """Wait until everything of the topic that has its replicas is published."""
        wait_until(
            lambda: self._conn.execute(PUBLISHED, [WELL]).fetchone() == (self._sent,), "the other topic flows"
        )
        assert self._conn.execute(PUBLISHED, [SICK]).fetchone() == (0,)

    def check(self) -> None:
        """Check that each message of both topics arrived once, in order."""
        for topic, key in ((self.sick, self.sick_key), (self.well, self.well_key)):
            found = compare(read_topic(self._servers, topic), [(key, number) for number in range(self._sent)])
            assert not found.broken
            assert found.duplicate_records == 0


@pytest.mark.feature("S-38")
def test_a_topic_without_enough_replicas_stops_its_lane_by_name_and_heals(
    private_database: str, broker: SecondBroker
) -> None:
    servers = broker.bootstrap_servers
    with connect(private_database) as conn, RelayThread(private_database, servers, ack_timeout=2.0) as relay:
        stage = Stage(conn, broker)
        broker.kill()
        stage.send(20)
        stage.wait_for_the_other()
        event = relay.wait_for("lane stopped", lane=SICK)
        assert event["reason"].startswith(f"PARTITION_UNAVAILABLE: topic {stage.sick!r}, partition 0: ")
        assert "in-sync replicas: 1, min.insync.replicas: 2" in event["reason"]
        (lane,) = [each for each in everything(conn) if each.is_stopped]
        assert lane.lane == SICK
        assert lane.repair()[0] == f"bring the partition back, then: outbox lane retry {SICK}"
        stage.send(20)
        stage.wait_for_the_other()
        be_content_with_one(servers, stage.sick)
        wait_published(conn)
        assert not [each for each in everything(conn) if each.is_stopped]
        assert {each["lane"] for each in relay.find("lane stopped")} == {SICK}
        stage.check()
    assert relay.error is None


def test_a_relay_that_dies_while_replicas_lack_leaves_each_message_to_come_once(
    private_database: str, broker: SecondBroker
) -> None:
    servers, options = broker.bootstrap_servers, ("--lease", "1")
    with connect(private_database) as conn:
        stage = Stage(conn, broker)
        broker.kill()
        with RelayProcess(private_database, servers, *options) as relay:
            stage.send(20)
            stage.wait_for_the_other()
            relay.kill()
        broker.start()
        stage.send(20)
        with RelayProcess(private_database, servers, *options) as relay:
            wait_published(conn)
            relay.stop()
        stage.check()
