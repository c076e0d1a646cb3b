"""Consumers that the benchmark compares, each in a process of its own, and the messages that they read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, KafkaException, Producer
from faststream import AckPolicy
from faststream.confluent import KafkaBroker, KafkaMessage

from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox.inbox.handling import Handled, Handling
from outbox.inbox.messages import Delivery
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/consume.sql")
FETCH = 500
BATCH = 100
"""Rows of one transaction, where several are committed together."""
FAILING = b"7"
"""The last digit of keys that fail."""


def produce(bootstrap_servers: str, topic: str, count: int, keys: int) -> None:
    """Write messages as a relay does, with an id and a time of birth, their keys in turn."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "log_level": 0})
    born = str(int(time.time() * 1000))
    for number in range(count):
        producer.poll(0)
        producer.produce(
            topic,
            str(number).encode().rjust(100, b"."),
            f"k{number % keys}",
            headers=[("outbox-id", str(uuid4())), ("outbox-born-at", born)],
        )
        if number % 10_000 == 9_999:
            producer.flush(30)
    if producer.flush(30):
        raise TimeoutError("the broker did not take all messages")


def bare(pipe: Connection, dsn: str, bootstrap_servers: str, topic: str, *, size: int = 1) -> None:
    """Job of a worker: a loop by hand, one transaction for so many messages, offsets stored once a second."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    stored = time.monotonic()
    with psycopg.connect(dsn) as conn:
        conn.prepare_threshold = 0
        while not pipe.poll():
            first = consumer.poll(0.05)
            records = [] if first is None else [first, *consumer.consume(FETCH - 1, 0)]
            for number, record in enumerate(records, 1):
                if record.error():
                    raise KafkaException(record.error())
                conn.execute(STATEMENTS["apply"], {"key": record.key(), "body": record.value()})
                if number % size == 0 or number == len(records):
                    conn.commit()
            if first is not None and time.monotonic() - stored > 1:
                stored = time.monotonic()
                consumer.commit(asynchronous=True)
    consumer.close()
    pipe.send("ended")


def faststream(pipe: Connection, dsn: str, bootstrap_servers: str, topic: str) -> None:
    """Job of a worker: a subscriber of FastStream, one transaction for each message, its offset stored after that."""
    asyncio.run(_subscribe(pipe, dsn, bootstrap_servers, topic))
    pipe.send("ended")


async def _subscribe(pipe: Connection, dsn: str, bootstrap_servers: str, topic: str) -> None:
    broker = KafkaBroker(bootstrap_servers, logger=None)
    async with await psycopg.AsyncConnection.connect(dsn) as conn, broker:
        conn.prepare_threshold = 0

        # An error takes the message back; FastStream's default stores offsets before the subscriber has run.
        @broker.subscriber(
            topic,
            group_id=f"bench-{uuid4().hex[:12]}",
            auto_offset_reset="earliest",
            ack_policy=AckPolicy.NACK_ON_ERROR,
        )
        async def _(body: bytes, message: KafkaMessage) -> None:
            assert not isinstance(message.raw_message, tuple)
            await conn.execute(STATEMENTS["apply"], {"key": message.raw_message.key(), "body": body})
            await conn.commit()

        await broker.start()
        await asyncio.to_thread(pipe.recv)


def push(
    pipe: Connection,
    dsn: str,
    bootstrap_servers: str,
    topic: str,
    *,
    inbox: bool,
    fails: bool,
    work: float,
    options: dict[str, Any],
) -> None:
    """Job of a worker: our consumer.

    Args:
        pipe: it ends when something comes.
        dsn: of the database.
        bootstrap_servers: of Kafka.
        topic: what it reads.
        inbox: False: the same threads without the inbox, so a message may be applied twice.
        fails: whether messages of keys that end with `FAILING` fail.
        work: seconds that a listener waits besides.
        options: of `PushConsumer`.
    """

    def listener(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
        if fails and message.key is not None and message.key.endswith(FAILING):
            return ConsumeResult.RECONSUME_LATER
        if work:
            time.sleep(work)
        conn.execute(STATEMENTS["apply"], {"key": message.key, "body": message.body})
        return ConsumeResult.SUCCESS

    def batch_listener(conn: psycopg.Connection[Any], messages: list[ConsumedMessage]) -> ConsumeResult:
        for message in messages:
            listener(conn, message)
        return ConsumeResult.SUCCESS

    logging.getLogger("outbox.inbox").setLevel(logging.ERROR)  # a line for each message that is parked
    consumer = PushConsumer(
        f"bench-{uuid4().hex[:12]}",
        {topic: "*"},
        batch_listener if "batch" in options else listener,
        dsn=dsn,
        kafka={"bootstrap.servers": bootstrap_servers},
        consume_from=FIRST,
        delays=DelaySchedule.of(["1h"]),
        **options,
    )
    with nullcontext() if inbox else patch("outbox.inbox.delivery_threads.handle", without_inbox), consumer:
        pipe.recv()
    pipe.send("ended")


def without_inbox(
    conn: psycopg.Connection[Any],
    how: Handling,
    delivery: Delivery,
    begins: Callable[..., None],
    previous: object,
    **_: object,
) -> Handled:
    """Run the listener and commit, instead of `outbox.inbox.handling.handle`."""
    how.listener(conn, delivery.message)
    conn.commit()
    return Handled.APPLIED
