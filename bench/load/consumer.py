"""The consumer: a stock Kafka client in its own process that notes when each message arrived."""

from __future__ import annotations

import time
from array import array
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.load.messages import number_of

ASK_EVERY = 100
"""Messages after which the consumer looks whether all has been sent."""


def consume(pipe: Connection, bootstrap_servers: str, topic: str, partitions: int, count: int) -> None:
    """Job of a worker: say "ready", read `count` messages, send the arrival of each by number (nanoseconds, packed).

    It is told, once all has been sent, for how many more seconds it reads. A message that has not arrived by then is 0.
    It uses poll(): consume(n, t) waits to fill n, and would be what is measured.
    """
    arrived = array("q", bytes(8 * count))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    consumer.poll(0.5)
    pipe.send("ready")
    missing = count
    deadline: float | None = None
    while missing and (deadline is None or time.monotonic() < deadline):
        message = consumer.poll(0.2)
        if message is None:
            deadline = deadline or _deadline(pipe)
            continue
        now = time.time_ns()
        if message.error():
            raise KafkaException(message.error())
        number = number_of(message.value() or b"")
        if not arrived[number]:
            arrived[number] = now
            missing -= 1
            if (
                not missing % ASK_EVERY
            ):  # messages that never cease to come shall not hide that all has been sent
                deadline = deadline or _deadline(pipe)
    consumer.close()
    pipe.send(arrived.tobytes())


def _deadline(pipe: Connection) -> float | None:
    return time.monotonic() + float(pipe.recv()) if pipe.poll() else None
