"""The limits of a drain: reading the same rows with psycopg and nothing else, producing them and nothing else."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psycopg
from confluent_kafka import KafkaError, Message, Producer
from psycopg import sql

from bench.harness.cpu import Meter
from bench.load.backlog import STATEMENTS
from outbox.partitioning.selectors import partition_of
from outbox_relay.publisher.finder import COLUMNS, PAGE, PAGE_BYTES
from outbox_relay.publisher.kafka import producer_settings

Record = tuple[bytes | None, bytes | None, int, list[tuple[str, str | bytes | None]]]
SERVE_EVERY = 500


@dataclass(frozen=True, slots=True)
class Job:
    """Which messages are read, and where they go."""

    dsn: str
    bootstrap_servers: str
    topic: str
    partitions: int
    messages: int
    servers: dict[str, int]
    """Their processes."""


def bare_producer(bootstrap_servers: str) -> Producer:
    """Return a producer with the relay's settings that logs errors only."""
    return Producer(producer_settings(bootstrap_servers) | {"log_level": "3"})


def measure(pipe: Connection, job: Job) -> None:
    """Job of a worker: read the newest messages, then produce them; send seconds and CPU seconds of both."""
    meter = Meter(job.servers)
    began, cpu = time.perf_counter(), time.process_time()
    rows = _read(job.dsn, job.messages)
    read = {
        "seconds": time.perf_counter() - began,
        "client_cpu": time.process_time() - cpu,
        "postgres_cpu": meter.seconds()["postgres"],
    }
    records = [_record(row, job.partitions) for row in rows]
    del rows
    gc.collect()
    gc.freeze()  # the relay does not hold all messages at once; neither shall the collector walk them
    producer = bare_producer(job.bootstrap_servers)
    producer.list_topics(job.topic, timeout=10)
    meter = Meter(job.servers)
    began, cpu = time.perf_counter(), time.process_time()
    delivered = _produce(producer, job.topic, records)
    produced = {
        "seconds": time.perf_counter() - began,
        "client_cpu": time.process_time() - cpu,
        "broker_cpu": meter.seconds()["kafka"],
    }
    if delivered != len(records):
        raise RuntimeError(f"{len(records) - delivered} of {len(records)} raw messages were not delivered")
    pipe.send({"messages": len(records), "read": read, "produce": produced})


def _read(dsn: str, messages: int) -> list[tuple[Any, ...]]:
    page = sql.SQL(STATEMENTS["read"]).format(columns=COLUMNS)
    rows: list[tuple[Any, ...]] = []
    with psycopg.connect(dsn, autocommit=True) as conn, conn.cursor(binary=True) as cursor:
        newest = conn.execute(STATEMENTS["newest"]).fetchone()
        last = newest[0] if newest else 0
        for first in range(last - messages + 1, last + 1, PAGE):
            bounds = {"first": first, "last": min(first + PAGE - 1, last), "bytes": PAGE_BYTES}
            rows += cursor.execute(page, bounds, prepare=True)
    return rows


def _record(row: tuple[Any, ...], partitions: int) -> Record:
    (_, _, _, _, key, body, arg, _, _, message_id, born_at, headers, tags, _, group, *_) = row
    own = [("outbox-id", message_id), ("outbox-born-at", born_at), ("outbox-tags", tags)]
    users = json.loads(headers).items() if headers else ()
    return (
        key,
        body,
        partition_of(None, key if arg is None else arg, partitions),
        [*own, ("outbox-producer-group", group), *users],
    )


def _produce(producer: Producer, topic: str, records: list[Record]) -> int:
    delivered = 0

    def count(error: KafkaError | None, message: Message) -> None:
        nonlocal delivered
        delivered += error is None

    produce, poll = producer.produce, producer.poll
    for number, (key, body, partition, headers) in enumerate(records):
        while True:
            try:
                produce(topic, body, key, partition, count, headers=headers)
                break
            except BufferError:
                poll(0.05)
        if not number % SERVE_EVERY:
            poll(0)
    producer.flush(60)
    return delivered
