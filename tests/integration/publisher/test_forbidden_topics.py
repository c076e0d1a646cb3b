"""Topics that Kafka's rights keep from the relay, at a broker that checks them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest
from confluent_kafka.admin import AclOperation

from outbox_local.stack.api import Stack
from tests.support.kafka_records import read_topic
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import Connection, insert
from tests.support.relay_process import RelayProcess
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import wait_until

DESCRIBE, WRITE = AclOperation.DESCRIBE, AclOperation.WRITE
PARKED = "SELECT DISTINCT split_part(error, ':', 1) FROM outbox.parked_key WHERE topic = %s AND is_topic"
WAITING = "SELECT message_id FROM outbox.waiting"
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"
KEYS = [f"k{number}" for number in range(20)]
"""In all lanes."""


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecuredBroker]:
    """A broker where clients may do nothing yet."""
    with SecuredBroker(private_stack, guarded=True) as broker:
        yield broker


class Traffic:
    """Numbered messages of the same keys in several topics."""

    def __init__(self, conn: Connection, broker: SecuredBroker) -> None:
        self.conn, self.broker = conn, broker
        self.sent: dict[str, int] = {}

    def topic(self, *rights: AclOperation) -> str:
        """Make a topic with which the relay may do this."""
        name = self.broker.make_topic(f"guarded-{uuid4().hex[:8]}")
        if rights:
            self.broker.grant(name, *rights)
        self.sent[name] = 0
        return name

    def send(self) -> None:
        """Write the next message of each key, to each topic."""
        for topic, number in self.sent.items():
            for key in KEYS:
                insert(self.conn, topic, key, f"{key}:{number}")
            self.sent[topic] += 1

    def parked(self, topic: str) -> list[str]:
        """For which errors a topic is parked."""
        return [error for (error,) in self.conn.execute(PARKED, [topic]).fetchall()]

    def wait_parked(self, topic: str) -> None:
        """Wait until a topic is parked, which is because of its rights."""
        wait_until(lambda: self.parked(topic), f"{topic} is parked")
        assert self.parked(topic) == ["TOPIC_AUTHORIZATION_FAILED"]

    def send_until_parked(self, topic: str) -> None:
        """Write messages until the broker, which learns of changed rights a little later, has refused one."""

        def is_parked() -> bool:
            self.send()
            return bool(self.parked(topic))

        wait_until(is_parked, f"{topic} is parked")
        self.wait_parked(topic)

    def wait_published(self, topic: str) -> None:
        """Wait until all that was sent to a topic is in Kafka."""
        want = (self.sent[topic] * len(KEYS),)
        wait_until(lambda: self.conn.execute(PUBLISHED, [topic]).fetchone() == want, f"{topic} flows")

    def wrong(self, *, repeated: bool = False) -> dict[str, dict[str, list[bytes | None]]]:
        """Return per topic the keys whose messages are not there in order, and once unless `repeated`."""
        found = {}
        for topic, count in self.sent.items():
            values: dict[str, list[bytes | None]] = {key: [] for key in KEYS}
            for record in read_topic(self.broker.open_servers, topic):
                values[(record.key or b"").decode()].append(record.value)
            if repeated:
                values = {key: list(dict.fromkeys(got)) for key, got in values.items()}
            broken = {
                key: got
                for key, got in values.items()
                if got != [f"{key}:{number}".encode() for number in range(count)]
            }
            if broken:
                found[topic] = broken
        return found


def assert_refused_with_pauses(relay: RelayProcess) -> None:
    """Insist that Kafka refused a topic, and that no partition of it was tried again without a pause."""
    refused: dict[str, list[datetime]] = {}
    for event in relay.events:
        if event.get("event") == "delivery failed":
            refused.setdefault(event["text"], []).append(datetime.fromisoformat(event["time"]))
    assert refused
    assert all(
        later - one > timedelta(seconds=0.4) for times in refused.values() for one, later in pairwise(times)
    )


@pytest.mark.feature("S-38")
def test_a_topic_that_may_not_be_written_is_parked_alone_until_it_may(
    conn: Connection, database: str, broker: SecuredBroker
) -> None:
    """Its rights are asked for: a refused write would end the producer, and repeat what others have on the wire."""
    traffic = Traffic(conn, broker)
    well, unseen, read_only = traffic.topic(DESCRIBE, WRITE), traffic.topic(), traffic.topic(DESCRIBE)
    traffic.send()
    with RelayProcess(database, broker.bootstrap_servers, *broker.options) as relay:
        traffic.wait_published(well)
        traffic.wait_parked(unseen)
        traffic.wait_parked(read_only)
        traffic.send()
        traffic.wait_published(well)
        broker.grant(unseen, DESCRIBE, WRITE)
        broker.grant(read_only, WRITE)
        traffic.wait_published(unseen)
        traffic.wait_published(read_only)
        assert relay.find("delivery failed") is None
        assert traffic.wrong() == {}
        # Taken away while it flows: one producer ends by it.
        broker.take_back(well)
        traffic.send_until_parked(well)
        traffic.wait_published(unseen)
        traffic.wait_published(read_only)
        assert_refused_with_pauses(relay)
        held = [event for event in relay.events if event.get("event") == "topic is held"]
        assert [event["topic"] for event in held].count(well) == 1  # both of its partitions were refused
        broker.grant(well, WRITE)
        traffic.wait_published(well)
        relay.stop()
    assert_refused_with_pauses(relay)
    assert relay.find("lane stopped") is None
    assert traffic.wrong(repeated=True) == {}


def test_a_relay_that_may_write_nothing_goes_on_once_it_may(
    conn: Connection, database: str, broker: SecuredBroker
) -> None:
    """Kafka gives a producer no id then, which ends it; nothing was given to it, and no lane stops."""
    traffic = Traffic(conn, broker)
    topic = traffic.topic(DESCRIBE)
    traffic.send()
    with RelayProcess(database, broker.bootstrap_servers, *broker.options) as relay:
        traffic.wait_parked(topic)
        broker.grant(topic, WRITE)
        traffic.send()
        traffic.wait_published(topic)
        relay.stop()
    assert relay.find("lane stopped") is None
    assert traffic.wrong() == {}


def test_what_comes_after_all_of_a_closed_topic_was_given_up_waits_too(
    conn: Connection, database: str, broker: SecuredBroker
) -> None:
    """It is sent to nobody: a refusal would end the producer of all topics."""
    traffic = Traffic(conn, broker)
    closed, well = traffic.topic(DESCRIBE, WRITE), traffic.topic(DESCRIBE, WRITE)
    traffic.send()
    with RelayProcess(database, broker.bootstrap_servers, *broker.options) as relay:
        traffic.wait_published(closed)
        broker.take_back(closed)
        traffic.send_until_parked(closed)

        def given_up() -> bool:
            for (message,) in conn.execute(WAITING).fetchall():
                skip = ("holds", "skip", str(message), "--reason", "not ours")
                if outbox(*skip, OUTBOX_DSN=database).code:
                    outbox(*skip, "--may-be-published", OUTBOX_DSN=database)
            return not traffic.parked(closed)

        wait_until(given_up, "all of it is given up, and its hold has no row")
        refused = len([event for event in relay.events if event.get("event") == "delivery failed"])
        traffic.send()
        wait_until(lambda: traffic.parked(closed), "what comes waits")
        traffic.wait_published(well)
        relay.stop()
    assert len([event for event in relay.events if event.get("event") == "delivery failed"]) == refused
