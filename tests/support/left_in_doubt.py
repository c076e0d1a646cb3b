"""Messages that a dead relay left in doubt, and what Kafka has of them: a test writes that as it likes."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import relay_session, turn_until

LIMIT = 30.0


def leave_in_doubt(
    dsn: str, bootstrap_servers: str, topic: str, *messages: tuple[str | None, str]
) -> list[str]:
    """Let a relay take the lanes and die; then write these messages, by key and body. Return their ids."""
    with relay_session(dsn, bootstrap_servers, clean=False) as session:
        turn_until(session, lambda: bool(session.lanes), "it has lanes")
    with connect(dsn) as conn:
        return [insert(conn, topic, key, body) for key, body in messages]


def produce(
    producer: Producer, topic: str, *records: tuple[str, str | None, str], partition: int = 0
) -> None:
    """Write records as the relay would: message id, key and body."""
    for message_id, key, body in records:
        headers: list[tuple[str, str | bytes | None]] = [("outbox-id", message_id)]
        producer.produce(topic, body, key, partition, headers=headers)
    assert producer.flush(LIMIT) == 0


def sent_before(
    bootstrap_servers: str, topic: str, *records: tuple[str, str | None, str], partition: int = 0
) -> None:
    """Let Kafka have records of the relay that died."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    produce(producer, topic, *records, partition=partition)
