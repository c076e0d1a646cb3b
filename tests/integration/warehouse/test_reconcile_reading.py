"""Kafka is read by its own offsets: gaps are no losses, and what cannot be read is not taken for lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from outbox_etl.errors import SourceError
from outbox_etl.reconcile.kafka import Broker, KafkaReadError, Range, digest, records_of
from tests.support.kafka_transactions import kafka_transaction
from tests.support.waiting import wait_until

BODY = b"body"


@contextmanager
def transaction(bootstrap_servers: str, topic: str, *, commit: bool = True) -> Iterator[None]:
    """A record of another producer, in a transaction that ends with the block."""
    with kafka_transaction(bootstrap_servers, topic, commit=commit) as producer:
        producer.produce(topic, BODY, b"foreign", partition=0)
        producer.flush(30)
        yield


def publish(bootstrap_servers: str, topic: str, message_id: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    producer.produce(topic, BODY, b"k", partition=0, headers=[("outbox-id", message_id.encode())])
    assert producer.flush(30) == 0


def read(broker: Broker, topic: str, end: int) -> list[tuple[int, str | None, str]]:
    with closing(Consumer(dict(broker.config))) as consumer:
        return [found[2:] for found in records_of(consumer, Range(topic, 0, 0, end))]


def wait_for_marker(broker: Broker, topic: str, end: int) -> None:
    """A transaction ends for its producer before its marker is in the partition."""
    wait_until(lambda: broker.watermarks([topic])[topic, 0][1] == end, f"the partition ends at {end}")


def test_markers_and_aborted_records_leave_offsets_and_nothing_to_read(
    topic: str, bootstrap_servers: str
) -> None:
    with closing(Broker(bootstrap_servers)) as broker:
        for number, message_id in enumerate("abc"):
            publish(bootstrap_servers, topic, message_id)
            with transaction(bootstrap_servers, topic, commit=number != 1):
                pass
            wait_for_marker(broker, topic, 3 * (number + 1))
        ours, foreign = digest(b"k", BODY), digest(b"foreign", BODY)
        expected = [(0, "a", ours), (1, None, foreign), (3, "b", ours), (6, "c", ours), (7, None, foreign)]
        assert read(broker, topic, 9) == expected, "2, 5 and 8 are markers, 4 was aborted"
        assert read(broker, topic, 6) == expected[:3]
        broker.refuse_hidden({(topic, 0): 8}, broker.watermarks([topic]))


def test_places_behind_an_open_transaction_are_refused_until_it_has_ended(
    topic: str, bootstrap_servers: str
) -> None:
    publish(bootstrap_servers, topic, "a")
    with closing(Broker(bootstrap_servers)) as broker:
        with transaction(bootstrap_servers, topic, commit=False):
            publish(bootstrap_servers, topic, "b")
            marks = broker.watermarks([topic])
            assert marks[topic, 0] == (0, 1)
            broker.refuse_hidden({(topic, 0): 0, (topic, 1): 5}, marks)
            with pytest.raises(SourceError, match=rf"{topic}\[0\] cannot be read from offset 1 on"):
                broker.refuse_hidden({(topic, 0): 2}, marks)
        wait_for_marker(broker, topic, 4)
        marks = broker.watermarks([topic])
        broker.refuse_hidden({(topic, 0): 2}, marks)
        assert [each[:2] for each in read(broker, topic, marks[topic, 0][1])] == [(0, "a"), (2, "b")]


def test_an_end_that_is_gone_is_an_error_and_no_shorter_partition(topic: str, bootstrap_servers: str) -> None:
    publish(bootstrap_servers, topic, "a")
    with closing(Broker(bootstrap_servers)) as broker:
        assert len(read(broker, topic, 1)) == 1
        with pytest.raises(KafkaReadError, match=rf"{topic}\[0\] ends at offset 1 and had 3"):
            read(broker, topic, 3)
