"""Which broker the relay talks to, and under which name: from a list of addresses that is only a place to begin."""

from __future__ import annotations

import pytest

from outbox_relay.publisher.kafka import producer_settings
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert_numbered
from tests.support.relay_in_process import publish

DEAD = "127.0.0.1:1"
"""An address that nothing listens on."""


@pytest.mark.feature("S-80")
def test_one_living_address_of_several_is_enough_to_find_the_brokers_of_every_topic(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        insert_numbered(conn, topic, 20)
        publish(database, f"{DEAD},{bootstrap_servers}", 20)
        registered = conn.execute("SELECT partitions FROM outbox.topic WHERE name = %s", [topic]).fetchall()
    assert registered == [(4,)], "the partition count is asked of Kafka, and pinned"
    assert len(read_topic(bootstrap_servers, topic)) == 20


@pytest.mark.feature("S-87")
def test_kafka_sees_which_instance_of_the_relay_writes() -> None:
    first, second = (Relay(RelayOptions("", "localhost:9092")) for _ in range(2))
    assert first.owner != second.owner, "two in one process differ too"
    assert first.client_id == f"outbox-relay-{first.owner.replace(':', '-')}"


@pytest.mark.feature("S-87")
def test_the_lease_names_the_instance_that_kafka_sees(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        insert_numbered(conn, topic, 1)
        seen: list[object] = []
        relay = Relay(RelayOptions(database, bootstrap_servers))

        def look(_: object) -> None:
            seen.extend(conn.execute("SELECT DISTINCT owner FROM outbox.lane").fetchall())
            relay.stop()

        relay.on_turn = look
        relay.run()
    assert seen == [(relay.owner,)]


def test_a_client_id_of_the_users_own_is_kept() -> None:
    relay = Relay(RelayOptions("", "localhost:9092", kafka={"client.id": "billing"}))
    assert relay.client_id == "billing"
    assert producer_settings("localhost:9092")["client.id"] == "outbox-relay"
