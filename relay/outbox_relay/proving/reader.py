"""A stock consumer: a plain confluent_kafka.Consumer with isolation.level=read_committed that journals what it reads.

It joins no group and knows nothing of the outbox but the name of one header. On SIGTERM it reads on to the end that
each partition has at that moment: what it has not written down then is not in the topic.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox_relay.proving.history import ReadRecord

TIMEOUT_S = 15.0
FLUSH_S = 0.05
READY = "reading"
"""What it prints when it reads."""
LineOf = Callable[[Message, float], str]


@dataclass(frozen=True, slots=True)
class ReaderWork:
    """What to read, as the command line states in JSON. The brokers come from OUTBOX_BOOTSTRAP_SERVERS."""

    topic: str
    partitions: int
    journal: str

    def as_argument(self) -> str:
        """Return the command line's one argument."""
        return json.dumps(asdict(self))


class StockReader:
    """Reads a whole topic, from its beginning, until it is asked to stop."""

    def __init__(self, kafka: Mapping[str, Any], reading: ReaderWork, out: IO[str], line: LineOf) -> None:
        """Assign all partitions.

        Args:
            kafka: the client's settings.
            reading: what to read.
            out: the journal.
            line: makes the journal's line of a record, and of the seconds since 1970 at which it was received.
        """
        self._reading, self._out, self._line = reading, out, line
        self._stopping = False
        self._ends: dict[int, int] = {}
        """The offset at which each partition was last found to have nothing more."""
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": "outbox-prove-reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Read to the end, then stop; a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Read until stopped."""
        topic, count = self._reading.topic, self._reading.partitions
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        until: dict[int, int] | None = None
        flushed = 0.0
        # Not consume(n): it waits to have n and spoils latencies.
        while until is None or any(self._ends.get(part, -1) < end for part, end in until.items()):
            message = self._consumer.poll(0.05)
            received = time.time()
            if message is not None:
                self._take(message, received)
            if message is None or received - flushed > FLUSH_S:
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
            if error.code() == KafkaError._PARTITION_EOF and partition is not None and offset is not None:
                self._ends[partition] = offset
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise KafkaException(error)
            return
        self._out.write(self._line(message, round(received, 6)))

    def _watermarks(self) -> dict[int, int]:
        """Return where each partition ends now; a partition that ends at 0 has nothing to read."""
        topic = self._reading.topic
        ends = {
            part: self._consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=TIMEOUT_S)[1]
            for part in range(self._reading.partitions)
        }
        return {part: end for part, end in ends.items() if end > 0}


def header_pairs(message: Message) -> Iterable[tuple[str, bytes | str | None]]:
    """Return the headers of a record, in their order."""
    headers = message.headers() or ()
    return headers.items() if isinstance(headers, dict) else headers


def _line_of(message: Message, received: float) -> str:
    message_id = next((_text(value) for name, value in header_pairs(message) if name == "outbox-id"), "")
    line = [
        message.partition(),
        message.offset(),
        _text(message.key()),
        message_id,
        _counter(message.value()),
        message.timestamp()[1],
        received,
    ]
    return json.dumps(line, separators=(",", ":")) + "\n"


def _counter(value: bytes | None) -> int | None:
    """Return the counter in a body; -1 if it is no body that a producer sends."""
    try:
        body = json.loads(value or b"")
        counter: int | None = body.get("counter")
    except (ValueError, AttributeError):
        return -1
    return counter


def _text(value: bytes | str | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def read_records(topic: str, lines: Iterable[str]) -> Iterator[ReadRecord]:
    """Read the journal, in the order in which the records were read."""
    for line in lines:
        partition, offset, key, message_id, counter, timestamp, received = json.loads(line)
        yield ReadRecord(topic, partition, offset, key, message_id, counter, timestamp / 1000, received)


def client_settings() -> dict[str, Any]:
    """Return the client's settings of the environment: servers, and `--kafka-config`."""
    pairs = (each.partition("=") for each in os.environ.get("OUTBOX_KAFKA_CONFIG", "").split())
    return {
        **{name: value for name, _, value in pairs},
        "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
    }


def main(argument: str, line: LineOf = _line_of) -> None:
    """Run as `python -m outbox_relay.proving.reader READING`, until SIGTERM."""
    reading = ReaderWork(**json.loads(argument))
    with Path(reading.journal).open("w", encoding="utf-8") as out:
        reader = StockReader(client_settings(), reading, out, line)
        signal.signal(signal.SIGTERM, reader.stop)
        reader.run()


if __name__ == "__main__":
    main(sys.argv[1])
