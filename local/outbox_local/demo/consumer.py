"""A stock consumer: a plain confluent_kafka.Consumer that writes down what it reads. It knows nothing of the outbox.

On SIGTERM it reads on to the end that each partition has at that moment, and then stops: what it has not written
down is not in the topic.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox_local.demo import journal
from outbox_local.demo.journal import Record

TIMEOUT_S = 10.0
READY = "partitions assigned"
"""What it prints when it reads."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, as the command line states in JSON. The brokers come from OUTBOX_BOOTSTRAP_SERVERS."""

    topic: str
    partitions: int
    journal: str

    def as_argument(self) -> str:
        """The command line's one argument."""
        return json.dumps(asdict(self))


class Reader:
    """Reads a whole topic, from its beginning, until it is asked to stop."""

    def __init__(self, bootstrap_servers: str, reading: Reading, out: IO[str]) -> None:
        self._reading, self._out = reading, out
        self._stopping = False
        self._ends: dict[int, int] = {}
        """The offset at which each partition was last found to have nothing more."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"stock-consumer-{uuid.uuid4().hex[:12]}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Read to the end, then stop; a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Read until stopped."""
        self._consumer.subscribe([self._reading.topic], on_assign=_say)
        until: dict[int, int] | None = None
        flushed = 0.0
        # Not consume(n): it waits to have n and spoils latencies.
        while until is None or any(self._ends.get(part, -1) < end for part, end in until.items()):
            message = self._consumer.poll(0.05)
            received = time.time()
            if message is not None:
                self._take(message, received)
            if message is None or received - flushed > 0.05:
                self._out.flush()
                flushed = received
            if self._stopping and until is None:
                until = self._watermarks()
        self._out.flush()
        self._consumer.close()

    def _take(self, message: Message, received: float) -> None:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF or partition is None or offset is None:
                raise KafkaException(error)
            self._ends[partition] = offset
            return
        if partition is None or offset is None:
            raise RuntimeError("a record without partition and offset")
        headers = message.headers() or ()
        pairs = headers.items() if isinstance(headers, dict) else headers
        record = Record(
            partition,
            offset,
            message.timestamp()[1],
            round(received, 6),
            _text(message.key()),
            _text(message.value()),
            tuple((name, _text(value)) for name, value in pairs),
        )
        self._out.write(journal.line(record))

    def _watermarks(self) -> dict[int, int]:
        """Where each partition ends now; a partition that ends at 0 has nothing to read."""
        ends = {
            partition: self._consumer.get_watermark_offsets(
                TopicPartition(self._reading.topic, partition), timeout=TIMEOUT_S
            )[1]
            for partition in range(self._reading.partitions)
        }
        return {partition: end for partition, end in ends.items() if end > 0}


def _say(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    sys.stdout.write(f"{READY}: {len(partitions)} partitions\n")
    sys.stdout.flush()


def _text(value: bytes | str | None) -> str | None:
    """Bytes as text that turns into the same bytes again, even if they are no UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def main(argument: str) -> None:
    """Run as `python -m outbox_local.demo.consumer READING`."""
    reading = Reading(**json.loads(argument))
    with Path(reading.journal).open("w") as out:
        reader = Reader(os.environ["OUTBOX_BOOTSTRAP_SERVERS"], reading, out)
        signal.signal(signal.SIGTERM, reader.stop)
        reader.run()


if __name__ == "__main__":
    main(sys.argv[1])
