"""Debezium: draining a backlog and the latency from commit to consumer, by turns with the relay on the same servers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.debezium.connect import STATEMENTS, Connect, drop_slot
from bench.debezium.settings import AT_ONCE, DEFAULT, DRAINING, VERSION
from bench.harness.cpu import Meter
from bench.harness.jars import fetched
from bench.harness.relays import RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio, spread
from bench.latency import Load, measure, shown_cores, three
from bench.load.backlog import STATEMENTS as BACKLOG
from bench.load.backlog import fill
from bench.load.generator import DEBEZIUM, OUTBOX
from bench.plan import PARTITIONS, Bench
from outbox import Message, Outbox

LIMIT = 300.0
"""Seconds after which a drain has failed."""
CORES = ("publisher", "postgres", "kafka", "producers", "consumer")
METHOD = (
    "Debezium {version}, its outbox event router in Kafka Connect standalone (heap 1 GiB), and one relay process with "
    "default options, by turns on the same servers. Each publishes a first message and stops; the backlog is committed "
    "in transactions of 1,000; then it starts again and drains. Rates by the times at which the broker appended the "
    "records: all from the first to the last, and the second half, when Java has compiled what it runs. CPU from the "
    "start of the process. Tuned: max.batch.size 16384, max.queue.size 131072, poll.interval.ms 1, lz4, batch.size "
    "256 KiB, linger 1 ms, and 0 for the latency. Latency as in the benchmark of that name, after a warm-up of "
    "{warm_up:.0f} s at the same rate."
)


class Publishing(Protocol):
    """A process that publishes."""

    @property
    def pid(self) -> int:
        """The process."""

    @property
    def peak_bytes(self) -> int:
        """Its largest resident size so far."""

    def check(self) -> None:
        """Raise when it has ended."""


class Side:
    """One of the two: how it is prepared, started and filled."""

    name = "relay"
    way = OUTBOX
    statement = BACKLOG["fill"]

    def prepare(self, conn: psycopg.Connection) -> None:
        """Make what it needs in a migrated database."""

    @contextmanager
    def prepared(self, bench: Bench) -> Iterator[str]:
        """Make a database, and drop it at the end."""
        with bench.servers.database() as dsn:
            with psycopg.connect(dsn, autocommit=True) as conn:
                self.prepare(conn)
            try:
                yield dsn
            finally:
                self.release(dsn)

    def release(self, dsn: str) -> None:
        """Remove what keeps its database from being dropped."""

    def running(self, bench: Bench, dsn: str) -> AbstractContextManager[Publishing]:
        """Start it; it publishes when the block begins."""
        return RelayProcess(bench.servers, dsn)

    def send(self, conn: psycopg.Connection, topic: str) -> None:
        """Send one message."""
        Outbox("bench").send(conn, Message(topic, key="first", body=b"{}"))


class Connector(Side):
    """Debezium, with these settings beside those that it needs."""

    way = DEBEZIUM
    statement = STATEMENTS["fill"]

    def __init__(self, name: str, jars: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self._jars = jars
        self._settings = settings
        self._directories: dict[str, Path] = {}

    def prepare(self, conn: psycopg.Connection) -> None:
        conn.execute(STATEMENTS["table"])
        conn.execute(STATEMENTS["publication"])

    def release(self, dsn: str) -> None:
        drop_slot(dsn)

    def running(self, bench: Bench, dsn: str) -> AbstractContextManager[Publishing]:
        """Start it; the offsets of an earlier run in this database are there."""
        if dsn not in self._directories:
            self._directories[dsn] = Path(mkdtemp(dir=bench.servers.directory, prefix="debezium-"))
        return Connect(bench.servers, self._jars, dsn, self._directories[dsn], self._settings)

    def send(self, conn: psycopg.Connection, topic: str) -> None:
        conn.execute(STATEMENTS["send"], (topic, "first", b"{}"))


def run(bench: Bench) -> Section:
    """Drain and measure latencies by turns."""
    jars = fetched("bench.debezium", f"debezium-{VERSION}", bench.say)
    section = Section(
        "debezium",
        "Next to Debezium",
        METHOD.format(version=VERSION, warm_up=bench.plan.compared_warm_up),
    )
    _compare_drains(
        bench,
        section,
        [
            Side(),
            Connector("Debezium, tuned", jars, DRAINING),
            Connector("Debezium, default", jars, DEFAULT),
        ],
    )
    _compare_latencies(bench, section, [Side(), Connector("Debezium, tuned, linger 0", jars, AT_ONCE)])
    return section


def _compare_drains(bench: Bench, section: Section, sides: list[Side]) -> None:
    found: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for number in range(bench.plan.compared_rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            drained = _drain(bench, side)
            found[side.name].append(drained)
            bench.say(
                f"{side.name}: {drained['rate']:,.0f} messages/s, second half {drained['warm_rate']:,.0f}"
            )
    table = Table(
        f"Draining {bench.plan.backlog:,} messages, {bench.plan.compared_rounds} rounds: messages/s",
        ["", "all", "second half", "publisher CPU µs", "PostgreSQL CPU µs", "broker CPU µs", "peak memory"],
    )
    for name, rounds in found.items():
        rates, warm = ([one[which] for one in rounds] for which in ("rate", "warm_rate"))
        used = [f"{median(one[which] for one in rounds):.1f}" for which in ("publisher", "postgres", "kafka")]
        table.rows.append(
            [
                name,
                f"{median(rates):,.0f} ({spread(rates)})",
                f"{median(warm):,.0f} ({spread(warm)})",
                *used,
                f"{max(one['peak_mb'] for one in rounds):,.0f} MB",
            ]
        )
    section.tables.append(table)
    section.figures["drain"] = found
    relay, tuned = found[sides[0].name], found[sides[1].name]
    section.floors.append(
        Floor(
            "drain, second halves, next to Debezium tuned",
            ratio([one["warm_rate"] for one in relay], [one["warm_rate"] for one in tuned]),
            2,
            "x Debezium",
            at_least=True,
        )
    )


def _drain(bench: Bench, side: Side) -> dict[str, float]:
    messages = bench.plan.backlog
    topic = bench.servers.topic(PARTITIONS, message_timestamp_type="LogAppendTime")
    with side.prepared(bench) as dsn:
        with side.running(bench, dsn) as publisher:
            _publish_first(bench, side, dsn, topic, publisher)
            time.sleep(1.5)  # both note how far they are: Connect once a second
        bench.say(f"{side.name}: writing {messages:,} messages")
        fill(dsn, topic, messages, statement=side.statement)
        bench.servers.settle()
        meter = Meter(bench.servers.pids)
        with side.running(bench, dsn) as publisher:
            _wait_for(bench, topic, messages + 1, publisher)
            used = meter.seconds() | Meter({"publisher": publisher.pid}).totals()
            peak = publisher.peak_bytes
    appended = _appended(bench, topic, messages + 1)[1:]
    middle = len(appended) // 2
    return {
        "rate": (messages - 1) / (appended[-1] - appended[0]),
        "warm_rate": (messages - 1 - middle) / (appended[-1] - appended[middle]),
        "peak_mb": peak / 1e6,
        **{name: seconds / messages * 1e6 for name, seconds in used.items()},
    }


def _publish_first(bench: Bench, side: Side, dsn: str, topic: str, publisher: Publishing) -> None:
    with psycopg.connect(dsn) as conn:
        side.send(conn, topic)
    _wait_for(bench, topic, 1, publisher)


def _wait_for(bench: Bench, topic: str, messages: int, publisher: Publishing) -> None:
    """Wait until a topic holds so many records."""
    deadline = time.monotonic() + LIMIT
    consumer = _reader(bench)
    try:
        while (there := sum(_ends(consumer, topic))) < messages:
            publisher.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{there:,} of {messages:,} records are there after {LIMIT:.0f} s")
            time.sleep(0.1)
    finally:
        consumer.close()
    if there != messages:
        raise RuntimeError(f"{there:,} records are there, {messages:,} were sent")


def _reader(bench: Bench) -> Consumer:
    return Consumer({"bootstrap.servers": bench.servers.bootstrap_servers, "group.id": "bench"})


def _ends(consumer: Consumer, topic: str) -> Iterator[int]:
    for partition in range(PARTITIONS):
        with suppress(KafkaException):  # the partition is new, and the broker does not lead it yet
            yield consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1]


def _appended(bench: Bench, topic: str, messages: int) -> list[float]:
    """When each record was appended, in seconds, in that order."""
    consumer = _reader(bench)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        times: list[float] = []
        while len(times) < messages:
            records = consumer.consume(10_000, 5.0)
            if not records:
                raise RuntimeError(f"{len(times):,} of {messages:,} records were read")
            times += [record.timestamp()[1] / 1000 for record in records]
    finally:
        consumer.close()
    return sorted(times)


def _compare_latencies(bench: Bench, section: Section, sides: list[Side]) -> None:
    table = Table(
        "Latency in milliseconds (p50 / p95 / p99) and CPU cores",
        [
            "",
            "transactions/s",
            "from before COMMIT",
            "publisher",
            "PostgreSQL",
            "broker",
            "producers",
            "consumer",
        ],
    )
    for rate in bench.plan.compared_rates:
        of: dict[str, dict[str, Any]] = {}
        for side in sides:
            of[side.name] = found = _latency(bench, side, rate)
            bench.say(f"{side.name} at {rate}/s: {three(found['before_commit_ms'])} ms, {found['cores']}")
            table.rows.append(
                [
                    f"{side.name}, {rate:,}/s",
                    f"{found['rate']:,.0f}",
                    three(found["before_commit_ms"]),
                    *shown_cores(found, CORES),
                ]
            )
        section.figures[f"{rate}/s"] = of
        relay, debezium = (of[side.name]["before_commit_ms"] for side in sides)
        section.floors += [
            Floor(
                f"latency {percent} at {rate:,} tx/s next to Debezium",
                relay[at] / debezium[at],
                1,
                "x Debezium",
            )
            for percent, at in (("p50", 0), ("p99", 2))
        ]
        if rate == 500:
            cores = of[sides[0].name]["cores"]["publisher"]
            section.floors.append(Floor("relay CPU a message at 500 tx/s", cores / rate * 1e3, 0.25, "ms"))
    section.tables.append(table)


def _latency(bench: Bench, side: Side, rate: int) -> dict[str, Any]:
    def publisher(stack: ExitStack, bench: Bench, dsn: str) -> dict[str, int]:
        with psycopg.connect(dsn, autocommit=True) as conn:
            side.prepare(conn)
        stack.callback(side.release, dsn)
        running = stack.enter_context(side.running(bench, dsn))
        ready = bench.servers.topic(PARTITIONS)
        _publish_first(bench, side, dsn, ready, running)
        return {"publisher": running.pid}

    load = Load(rate, bench.plan.latency_seconds, bench.plan.compared_warm_up)
    return measure(bench, load, side.way, publisher)
