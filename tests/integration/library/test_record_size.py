"""One formula for the size of a record: library, relay and broker agree to the byte."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from outbox import Message, Outbox
from outbox.errors import MessageTooLargeError
from outbox.operations.size import record_size
from outbox.wire import record_bytes
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic

LIMIT = 20_000
GROUP = "größe"
LETTERS = 'abcxyz äöü 订单 🚚 "\\'


def random_message(chance: random.Random, topic: str) -> Message:
    """Make a message of random parts whose record has exactly LIMIT bytes."""

    def text(most: int) -> str:
        return "".join(chance.choices(LETTERS, k=chance.randint(1, most)))

    def word() -> str:
        return "".join(chance.choices("abc创建", k=chance.randint(1, 60)))

    parts: dict[str, Any] = {
        "key": chance.choice([None, b"", text(300)]),
        "headers": {
            f"h{n}{text(90)}": chance.choice([None, "", text(300)]) for n in range(chance.randint(0, 9))
        },
        "tags": [word() for _ in range(chance.randint(0, 5))],
        "index_keys": [word() for _ in range(chance.randint(0, 5))],
    }
    if chance.random() < 0.5:
        parts["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    if chance.random() < 0.5:
        parts["transaction_id"] = text(200)
    if chance.random() < 0.5:
        parts["deliver_at"] = datetime(1995, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(10**9))
    some = Message(topic, body=b"x" * 10_000, **parts)
    return Message(topic, body=b"x" * (LIMIT - record_size(some, GROUP) + 10_000), **parts)


def refusal(servers: str, topic: str, record: dict[str, Any]) -> str | None:
    """Give a record to the broker as it is; answer the name of the error."""
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 1_000_000, "acks": "all"})
    errors: list[KafkaError | None] = []
    producer.produce(topic, on_delivery=lambda error, _: errors.append(error), **record)
    producer.flush()
    return None if errors[0] is None else errors[0].name()


def test_a_record_of_the_limit_is_delivered_and_one_byte_more_is_refused_by_all(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    chance = random.Random(7)
    topic = make_topic(partitions=1, max_message_bytes=str(LIMIT))
    raw = make_topic(partitions=1, max_message_bytes=str(LIMIT))
    outbox = Outbox(producer_group=GROUP)
    messages = [random_message(chance, topic) for _ in range(40)]
    assert {record_size(message, GROUP) for message in messages} == {LIMIT}
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        with conn.transaction():
            outbox.register_topic(conn, topic, 1, max_message_bytes=LIMIT)
            outbox.send_many(conn, messages)
            for message in messages:
                with pytest.raises(MessageTooLargeError, match="20,001 bytes"):
                    outbox.send(conn, replace(message, body=(message.body_bytes or b"") + b"x"))
        wait_published(conn)
        assert not relay.find("key parked")
        insert(conn, topic, "k", (messages[0].body_bytes or b"") + b"x" * LIMIT, lane=4)
        assert "MESSAGE_TOO_LARGE" in relay.wait_for("key parked", lane=4)["reason"]
    records = read_topic(bootstrap_servers, topic)
    assert len(records) == len(messages)
    for number, record in enumerate(records):
        assert record_bytes(record.key, record.value, record.headers) == LIMIT
        if not number:  # the broker's own word; each producer costs a connection
            value = record.value or b""
            parts = {"key": record.key, "headers": list(record.headers)}
            assert refusal(bootstrap_servers, raw, {"value": value, **parts}) is None
            assert refusal(bootstrap_servers, raw, {"value": value + b"x", **parts}) == "MSG_SIZE_TOO_LARGE"
