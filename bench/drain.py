"""Drain: how fast one relay process publishes a backlog, next to a raw read and a raw produce of the same messages."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench.harness.cpu import Meter
from bench.harness.relays import WATCH, Recorded, RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio, spread
from bench.harness.topics import reader, record_count
from bench.harness.workers import Worker
from bench.load.backlog import STATEMENTS, fill
from bench.load.raw import Job, measure
from bench.plan import PARTITIONS, SCALE, Bench
from outbox import Message, Outbox

LIMIT = 180.0
"""Seconds after which a drain has failed."""
METHOD = (
    "A backlog, committed in transactions of 1,000 while the relay was down, is published by one relay process with "
    "default options. Rate: messages after the first batch, from the first publication row to the last. Wall: from "
    "the moment the relay owns the lanes, and from the start of its process, to the last publication row. CPU: from "
    "owning the lanes to the end, all threads; PostgreSQL with all its processes. Raw read: psycopg, the same columns "
    "in pages of 5,000 by id. Raw produce: `Producer.produce()` of the same keys, bodies and headers, made "
    "beforehand, same producer settings (idempotent, acks=all), shared callback. The limit of one thread that does "
    "both is 1 / (1/read + 1/produce). Rounds alternate; medians."
)


def run(bench: Bench) -> Section:
    """Drain the backlog of the plan, and the large one if asked."""
    section = Section("drain", "Draining a backlog", METHOD)
    _measure(bench, section, bench.plan.backlog, bench.plan.backlog_rounds)
    if bench.scale:
        _measure(bench, section, SCALE.backlog, SCALE.backlog_rounds)
    return section


def _measure(bench: Bench, section: Section, messages: int, rounds: int) -> None:
    found = [_round(bench, messages, number) for number in range(rounds)]
    relay, read, produce = ([one[name] for one in found] for name in ("relay", "read", "produce"))
    rates, reads, produces = ([one["rate"] for one in each] for each in (relay, read, produce))
    limits = [1 / (1 / a + 1 / b) for a, b in zip(reads, produces, strict=True)]

    def middle(of: list[dict[str, Any]], name: str) -> float:
        return float(median(one[name] for one in of))

    least, greatest = found[0]["body_bytes"]
    table = Table(
        f"{messages:,} messages, bodies of {least} to {greatest} B, {rounds} rounds",
        ["", "messages/s", "of the limit", "client CPU µs", "PostgreSQL CPU µs", "broker CPU µs", "in all"],
    )
    used = [f"{middle(relay, name):.1f}" for name in ("relay_us", "postgres_us", "kafka_us", "all_us")]
    of_read = [f"{middle(read, name):.1f}" for name in ("client_us", "postgres_us")]
    of_produce = [f"{middle(produce, name):.1f}" for name in ("client_us", "broker_us")]
    table.rows += [
        ["relay", f"{median(rates):,.0f} ({spread(rates)})", f"{ratio(rates, limits):.0%}", *used],
        ["raw read", f"{median(reads):,.0f}", "", *of_read, "", ""],
        ["raw produce", f"{median(produces):,.0f}", "", of_produce[0], "", of_produce[1], ""],
        ["limit: one thread reads and produces", f"{median(limits):,.0f}", "100%", "", "", "", ""],
    ]
    wall = Table(
        "The relay's wall time and memory",
        ["messages", "from owning the lanes", "from process start", "batches", "peak memory"],
        [
            [f"{messages:,}"]
            + [f"{middle(relay, name):.2f} s" for name in ("wall_s", "wall_from_start_s")]
            + [f"{middle(relay, 'batches'):.0f}", f"{middle(relay, 'peak_mb'):.0f} MB"]
        ],
    )
    section.tables += [table, wall]
    section.figures[f"{messages}"] = found
    section.floors += [
        Floor(f"drain of {messages:,}", median(rates), 100_000, "messages/s", at_least=True),
        Floor(f"relay's peak memory, {messages:,}", max(one["peak_mb"] for one in relay), 150, "MB"),
    ]


def _round(bench: Bench, messages: int, number: int) -> dict[str, Any]:
    servers = bench.servers
    topic, raw_topic = servers.topic(PARTITIONS), servers.topic(PARTITIONS)
    with servers.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            _publish_one(bench, dsn, conn, topic)
            bench.say(f"writing {messages:,} messages")
            fill(dsn, topic, messages)
            sizes = conn.execute(STATEMENTS["sizes"]).fetchone()
        servers.settle()
        raw: dict[str, Any] = {}
        if number == 0:
            bench.say("warming up the broker")
            _raw(bench, dsn, servers.topic(PARTITIONS), messages)
        if number % 2:
            raw = _raw(bench, dsn, raw_topic, messages)
        relay = _drain(bench, dsn, topic, messages)
        raw = raw or _raw(bench, dsn, raw_topic, messages)
    shown = ", ".join(f"{what} {raw[what]['rate']:,.0f}" for what in ("read", "produce"))
    bench.say(f"relay {relay['rate']:,.0f} messages/s, {relay['peak_mb']:.0f} MB; raw {shown}")
    return {"relay": relay, **raw, "body_bytes": sizes}


def _publish_one(bench: Bench, dsn: str, conn: psycopg.Connection, topic: str) -> None:
    """Let a relay publish one message and stop: the backlog is what gathers while it is down."""
    with RelayProcess(bench.servers, dsn) as relay:
        with conn.transaction():
            Outbox("bench").send(conn, Message(topic, key="first", body=b"{}"))
        Recorded(conn).wait(relay, 1, LIMIT)


def _raw(bench: Bench, dsn: str, topic: str, messages: int) -> dict[str, Any]:
    wanted = min(messages, bench.plan.raw_messages)
    servers = bench.servers
    job = Job(dsn, servers.bootstrap_servers, topic, PARTITIONS, wanted, servers.pids)
    with Worker(measure, job) as worker:
        found = worker.receive(LIMIT)
    count = found["messages"]
    for each in (found["read"], found["produce"]):
        each["rate"] = count / each["seconds"]
        for name in [name for name in each if name.endswith("_cpu")]:
            each[name.replace("_cpu", "_us")] = each[name] / count * 1e6
    return {"read": found["read"], "produce": found["produce"]}


def _drain(bench: Bench, dsn: str, topic: str, messages: int) -> dict[str, Any]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        newest, recorded = _row(conn, "newest")[0], Recorded(conn)
        began = time.time()
        with RelayProcess(bench.servers, dsn) as relay:
            meter = Meter({**bench.servers.pids, "relay": relay.pid})
            owned = time.time()
            recorded.wait(relay, messages + 1, LIMIT)
            used = meter.seconds()
            peak = relay.peak_bytes
        bounds = {"first": newest - messages + 1, "since": owned}
        batches, published, in_first, seconds, wall = _row(conn, "drained", bounds)
    with reader(bench.servers.bootstrap_servers) as consumer:
        in_kafka = record_count(consumer, topic, PARTITIONS)
    if (published, in_kafka) != (messages, messages + 1):
        raise RuntimeError(f"{messages} messages: {published} recorded, {in_kafka - 1} in Kafka")
    per_message = {f"{name}_us": spent / messages * 1e6 for name, spent in used.items()}
    return {
        "rate": (messages - in_first) / seconds if seconds else messages / wall,
        "wall_s": wall,
        "wall_from_start_s": wall + owned - began,
        "batches": batches,
        "peak_mb": peak / 1e6,
        **per_message,
        "all_us": sum(per_message.values()),
    }


def _row(conn: psycopg.Connection, name: str, values: dict[str, Any] | None = None) -> tuple[Any, ...]:
    row = conn.execute(WATCH[name], values).fetchone()
    if row is None:
        raise RuntimeError(f"statement {name!r} found nothing")
    return tuple(row)
