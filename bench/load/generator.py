"""The load generator: one process and session that begins transactions at set times, whatever became of the last."""

from __future__ import annotations

import time
import uuid
from array import array
from dataclasses import dataclass
from multiprocessing.connection import Connection

import psycopg

from bench.load import messages
from bench.load.raw import bare_producer
from outbox import Message, Outbox
from outbox.statements import Statements

ORDER = Statements("bench/sql/load.sql")["order"]
EVENT = Statements("bench/sql/debezium.sql")["send"]
ROW = Statements("bench/sql/faststream_outbox.sql")["send"]
OUTBOX, DEBEZIUM, FASTSTREAM, PRODUCE = "outbox", "Debezium", "faststream-outbox", "commit, then produce()"
"""The ways of a message."""
HEADERS: dict[str, str | bytes | None] = {"source": "bench"}


def faststream_headers(key: str, correlation_id: uuid.UUID) -> str:
    """Return the headers of a row of faststream-outbox, as JSON: the user's, the key, and its own."""
    return f'{{"source":"bench","key":"{key}","correlation_id":"{correlation_id}"}}'


@dataclass(frozen=True, slots=True)
class Job:
    """What one of several generators does: message `index`, `index + generators`, … at `rate` per second in all."""

    dsn: str
    bootstrap_servers: str
    topic: str
    way: str
    index: int
    generators: int
    rate: float
    count: int


def generate(pipe: Connection, job: Job) -> None:
    """Job of a worker: say "ready", be told when to begin (monotonic seconds), then send what it noted.

    Sent are two packed arrays of nanoseconds, per message of this generator: the clock right before COMMIT was sent and
    right after it returned; and how late the last transaction began, in seconds.
    """
    before, after = array("q"), array("q")
    outbox = Outbox("bench")
    producer = bare_producer(job.bootstrap_servers) if job.way == PRODUCE else None
    if producer is not None:
        producer.list_topics(job.topic, timeout=10)
    with psycopg.connect(job.dsn) as conn:
        conn.execute("select 1")
        conn.commit()
        pipe.send("ready")
        began: float = pipe.recv()
        late = 0.0
        for number in range(job.index, job.count, job.generators):
            due = began + number / job.rate
            if (pause := due - time.monotonic()) > 0:
                time.sleep(pause)
            conn.execute(ORDER, (f"customer-{number % 5003}", number % 1000), prepare=True)
            key, body = messages.key(number), messages.body(number)
            if job.way == DEBEZIUM:
                conn.execute(EVENT, (job.topic, key.decode(), body), prepare=True)
            elif job.way == FASTSTREAM:
                conn.execute(
                    ROW, (job.topic, body, faststream_headers(key.decode(), uuid.uuid4())), prepare=True
                )
            elif producer is None:
                outbox.send(conn, Message(job.topic, key, body, headers=HEADERS, tags=["created"]))
            before.append(time.time_ns())
            conn.commit()
            after.append(time.time_ns())
            if producer is not None:
                producer.produce(job.topic, body, key, headers=HEADERS)
                producer.poll(0)
            late = time.monotonic() - due
    if producer is not None:
        producer.flush(30)
    pipe.send((before.tobytes(), after.tobytes(), late))
