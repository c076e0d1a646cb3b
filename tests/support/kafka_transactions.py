"""A transaction of a Kafka producer that is not the relay, open for as long as a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

LIMIT = 30.0
"""Seconds for the broker to begin or to end it."""


@contextmanager
def kafka_transaction(bootstrap_servers: str, name: str, *, commit: bool = True) -> Iterator[Producer]:
    """Open a transaction under an id; commit it after the block, or abort it. The producer is the block's to use."""
    settings = {"bootstrap.servers": bootstrap_servers, "transactional.id": name, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(LIMIT)
    producer.begin_transaction()
    yield producer
    if commit:
        producer.commit_transaction(LIMIT)
    else:
        producer.abort_transaction(LIMIT)
