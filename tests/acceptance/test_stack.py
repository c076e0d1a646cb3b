"""What a test gets from the fixtures: real servers, a database and topics of its own."""

from __future__ import annotations

import psycopg
from confluent_kafka import Consumer, Producer

from tests.support.servers import MakeDatabase


def test_each_test_has_a_migrated_database_of_its_own(database: str, make_database: MakeDatabase) -> None:
    other = make_database()
    assert database != other
    for dsn in (database, other):
        with psycopg.connect(dsn) as connection:
            found = connection.execute("select to_regclass('outbox.message')::text").fetchone()
        assert found == ("outbox.message",)


def test_the_broker_has_transactions_and_consumer_groups(bootstrap_servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    for body, kept in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(topic, body, partition=0)
        producer.flush(10)
        producer.commit_transaction(10) if kept else producer.abort_transaction(10)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"committed"
