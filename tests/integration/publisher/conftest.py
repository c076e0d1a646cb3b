"""What the tests of the relay ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.support.parking import Parking
from tests.support.plain_inserts import connect
from tests.support.servers import MakeTopic


@pytest.fixture
def parking(database: str, make_topic: MakeTopic) -> Iterator[Parking]:
    """A topic of which large messages park their keys."""
    with connect(database) as conn:
        yield Parking(conn, make_topic(partitions=1))


@pytest.fixture
def may_not_describe_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays of this process whose Kafka user may not read the configuration of topics, as on a secured broker.

    So they do not foresee what the broker refuses: a record without a key for a compacted topic, for example.
    """

    def refuse(
        admin: AdminClient, resources: Iterable[ConfigResource], **options: Any
    ) -> dict[ConfigResource, Future[Any]]:
        answers = {}
        for resource in resources:
            answers[resource] = Future[Any]()
            answers[resource].set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return answers

    monkeypatch.setattr(AdminClient, "describe_configs", refuse)
