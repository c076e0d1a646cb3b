"""What a consumer group has read: empty partitions, ends of Kafka's transactions, open ones, other producers."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from outbox_relay.operations.consumer_lag import KafkaOffsets
from outbox_relay.operations.group_positions import GroupPositions
from tests.support.group_reader import GroupReader
from tests.support.kafka_transactions import kafka_transaction
from tests.support.servers import MakeTopic


def positions(servers: str, topic: str, reader: GroupReader, partitions: int = 1) -> GroupPositions:
    found = GroupPositions(KafkaOffsets(servers), topic, partitions, [reader.group])
    found.mark_ends()
    return found


def send(servers: str, topic: str, partition: int, count: int = 1) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(30) == 0


def test_a_partition_without_records_needs_no_offset_and_one_with_records_does(
    bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    send(bootstrap_servers, topic, 0, 2)
    send(bootstrap_servers, topic, 1, 1)
    with GroupReader(bootstrap_servers, topic) as reader:
        reader.commit({0: 1})
        asked = positions(bootstrap_servers, topic, reader, 3)
        (found,) = asked.read()
        assert (found.behind, found.uncommitted, found.has_members) == ({0: 1, 1: 1}, [1], True)
        send(bootstrap_servers, topic, 0)  # another producer's, behind the end that was noted
        reader.commit({0: 2, 1: 1})
        assert asked.read()[0].is_done
        asked.mark_ends()
        assert asked.read()[0].behind == {0: 1}


def test_ends_of_transactions_and_what_was_rolled_back_need_not_be_read(
    bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(1)
    with kafka_transaction(bootstrap_servers, f"{topic}-1") as producer:
        producer.produce(topic, b"0", partition=0)
    with kafka_transaction(bootstrap_servers, f"{topic}-2", commit=False) as producer:
        producer.produce(topic, b"1", partition=0)
        assert producer.flush(30) == 0
    with GroupReader(bootstrap_servers, topic) as reader:
        asked = positions(bootstrap_servers, topic, reader)
        assert asked.read()[0].behind == {0: 4}, "the record, the end, what was rolled back and its end"
        reader.commit({0: 1})
        assert asked.read()[0].is_done


@pytest.mark.parametrize("has_more", [True, False])
def test_behind_an_open_transaction_messages_are_waited_for_and_nothing_else(
    bootstrap_servers: str, make_topic: MakeTopic, *, has_more: bool
) -> None:
    topic = make_topic(1)
    send(bootstrap_servers, topic, 0)
    with GroupReader(bootstrap_servers, topic) as reader:
        reader.commit({0: 1})
        with kafka_transaction(bootstrap_servers, topic, commit=False) as producer:
            producer.produce(topic, b"1", partition=0)
            assert producer.flush(30) == 0
            send(bootstrap_servers, topic, 0, int(has_more))
            asked = positions(bootstrap_servers, topic, reader)
            for _ in range(2):
                assert asked.read()[0].behind == {0: 1 + has_more}, "it may hold something"
        assert asked.read()[0].is_done is not has_more, "it held nothing"
        reader.commit({0: 3})
        assert asked.read()[0].is_done
