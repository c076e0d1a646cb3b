"""What `/metrics` shows of consumer groups is what their database and Kafka hold."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from outbox_relay.database.connections import connect
from outbox_relay.monitoring.figures import Figures, observe_figures
from outbox_relay.monitoring.server import Monitoring
from outbox_relay.operations.consumer_lag import KafkaOffsets
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.scraping import Samples, samples
from tests.support.waiting import wait_until


def read(inbox: InboxStage) -> Samples:
    """Read the figures of the database once."""
    figures = Figures("shop", inbox.dsn, KafkaOffsets(inbox.bootstrap_servers))
    monitoring = Monitoring()
    observe_figures(monitoring, figures, offered=lambda: True)
    assert not generate_latest(monitoring.registry)
    assert not next(figures.ready()).ok
    with connect(inbox.dsn) as conn:
        assert figures.read(conn)
    assert next(figures.ready()).ok
    return samples(generate_latest(monitoring.registry).decode())


@pytest.mark.feature("S-98")
def test_lag_retries_and_dead_letters_are_exported_by_group_and_topic(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0":
            raise ValueError("it fails")
        return apply(conn, message)

    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        inbox.wait_applied(7)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 1, "one is dead")
        wait_until(lambda: read(inbox)["outbox_consumer_lag_messages", inbox.group, topic] == 0, "no lag")
        assert read(inbox)["outbox_consumer_members", inbox.group, topic] == 1
    inbox.produce_numbered(topic, 5, keys=4)
    found, group = read(inbox), inbox.group
    assert found["outbox_consumer_lag_messages", group, topic] == 5
    assert found["outbox_consumer_lag_seconds", group, topic] > 0
    assert found["outbox_dead_letters", group, topic] == 1
    assert found["outbox_consumer_members", group, topic] == 0
    assert found["outbox_problems", "dead_letters"] == 1
