"""What Kafka lists of a topic, and what that means."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from outbox_relay.publisher.topics import _refused, lacks_replicas


@pytest.mark.parametrize(
    ("insync", "replicas", "least", "lacks"),
    [
        (2, 3, 2, False),
        (1, 3, 2, True),
        (1, 1, 2, False),  # Kafka requires no more than there are
        (3, 3, None, False),
        (2, 3, None, True),
    ],
)
def test_when_a_partition_lacks_replicas(
    insync: int, replicas: int, least: int | None, *, lacks: bool
) -> None:
    assert lacks_replicas(insync, replicas, least) is lacks


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
        (KafkaError.TOPIC_EXCEPTION, False),
    ],
)
def test_only_a_topic_that_is_missing_is_to_be_created(code: int, *, told: bool) -> None:
    refused = _refused("orders", KafkaError(code))
    assert ("outbox topic create orders" in str(refused)) is told
