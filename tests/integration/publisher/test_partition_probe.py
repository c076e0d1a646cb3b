"""The question about a partition: asked by another client when the one before gave no reply."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.kafka import new_admin
from outbox_relay.publisher.records import Topic
from outbox_relay.publisher.topics import MOST_UNANSWERED, PartitionProbe, TopicLookup
from tests.support.plain_inserts import connect_as_service, insert, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic

NOBODY = "127.0.0.1:1"


def test_a_client_that_gives_no_reply_is_replaced(bootstrap_servers: str, make_topic: MakeTopic) -> None:
    topic, servers = make_topic(partitions=1), [NOBODY, bootstrap_servers]

    def open_admin() -> AdminClient:
        return new_admin({"bootstrap.servers": servers.pop(0)})

    probe = PartitionProbe(open_admin)
    for _ in range(MOST_UNANSWERED):
        assert len(servers) == 1, "it is left alone while it connects"
        with pytest.raises(KafkaUnavailableError, match=topic):
            probe([(topic, 0)])
    assert "does not acknowledge" in probe([(topic, 0)])[topic, 0].text
    assert "does not list this partition" in probe([(topic, 1)])[topic, 1].text
    assert servers == [], "a client that replies is kept"


def test_kafka_requires_no_more_replicas_than_a_topic_has(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """So a topic of one replica is open, whatever the default of its cluster is."""
    topic = make_topic(partitions=1, min_insync_replicas="2")
    lookup = TopicLookup(lambda: new_admin({"bootstrap.servers": bootstrap_servers}))
    with connect_as_service(database) as conn, RelayThread(database, bootstrap_servers):
        insert(conn, topic, "k", b"k:0")
        wait_published(conn)
        found = lookup.read(conn, [topic])[topic]
    assert isinstance(found, Topic)
    assert (found.leaderless, found.short) == (frozenset(), frozenset())
