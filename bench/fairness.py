"""Fairness: what a message of one topic waits for while the relay drains a backlog of another topic."""

from __future__ import annotations

import time
from array import array
from contextlib import ExitStack
from typing import Any

import psycopg

from bench.harness.relays import RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import percentile
from bench.harness.workers import Worker
from bench.load.backlog import STATEMENTS as BACKLOG
from bench.load.consumer import consume
from bench.load.generator import OUTBOX, Job, generate
from bench.plan import PARTITIONS, Bench
from outbox.statements import Statements

LOAD = Statements("bench/sql/load.sql")
WATCH = Statements("bench/sql/watch.sql")
RATE = 50
LIMIT = 5.0
"""Times as long as alone."""
AFTERWARDS_S = 60.0
"""How long the consumer waits for messages once all have been sent."""
PERCENTS = (50, 95, 99)
METHOD = (
    f"One process begins {RATE} transactions a second on one topic, as for the latency. Meanwhile another session "
    "commits a backlog of another topic in one transaction, and the relay drains it. Measured are the messages whose "
    "COMMIT was sent between the backlog's commit and the record of its last message, from before COMMIT to the "
    "consumer; and the same traffic without a backlog, in the same run. Such a backlog is drained once before, so that "
    "the broker has compiled what it runs."
)


def run(bench: Bench) -> Section:
    """Measure the same traffic alone, and beside a backlog."""
    section = Section("fairness", "A topic beside the backlog of another", METHOD)
    table = Table(
        f"Milliseconds (p50 / p95 / p99) at {RATE} messages/s",
        ["", "messages", "from before COMMIT", "drained in"],
    )
    _warm_up(bench)
    beside = _measure(bench, bench.plan.fairness_backlog)
    alone = _measure(bench, 0)
    for name, found in (("alone", alone), (f"beside {bench.plan.fairness_backlog:,} messages", beside)):
        section.figures[name] = found
        shown = " / ".join(f"{value:.1f}" for value in found["before_commit_ms"])
        table.rows.append([name, f"{found['messages']:,}", shown, f"{found['seconds']:.1f} s"])
        bench.say(f"{name}: {found}")
    times = beside["before_commit_ms"][-1] / alone["before_commit_ms"][-1]
    section.figures["times"] = times
    section.floors.append(Floor("p99 beside a backlog of another topic", times, LIMIT, "times that alone"))
    section.tables.append(table)
    return section


def _warm_up(bench: Bench) -> None:
    """Drain such a backlog once: a broker that has just started compiles meanwhile, a tenth of what two cores do."""
    servers, backlog = bench.servers, bench.plan.fairness_backlog
    topic = servers.topic(PARTITIONS)
    with servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        bench.say(f"warming up: draining {backlog:,} messages")
        conn.execute(BACKLOG["fill"], {"topic": topic, "first": 1, "last": backlog})
        (last,) = conn.execute(WATCH["newest"]).fetchone() or (0,)
        with RelayProcess(servers, dsn):
            _drained(conn, last, bench.plan.fairness_seconds)


def _measure(bench: Bench, backlog: int) -> dict[str, Any]:
    servers = bench.servers
    innocent, flooded = servers.topic(PARTITIONS), servers.topic(PARTITIONS)
    count = int(bench.plan.fairness_seconds * RATE)
    with ExitStack() as stack:
        dsn = stack.enter_context(servers.database())
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute(LOAD["orders"])
        flood = stack.enter_context(psycopg.connect(dsn))
        if backlog:
            bench.say(f"writing {backlog:,} messages in one transaction")
            flood.execute(BACKLOG["fill"], {"topic": flooded, "first": 1, "last": backlog})
        (last,) = conn.execute(WATCH["newest"]).fetchone() or (0,)
        servers.settle()
        stack.enter_context(RelayProcess(servers, dsn))
        # Both topics are known to the relay: what a new one costs is another figure.
        conn.execute(BACKLOG["fill"], {"topic": flooded, "first": 1, "last": 1})
        _drained(conn, last + 1, bench.plan.fairness_seconds)
        consumer = stack.enter_context(
            Worker(consume, servers.bootstrap_servers, innocent, PARTITIONS, count)
        )
        job = Job(dsn, servers.bootstrap_servers, innocent, OUTBOX, 0, 1, RATE, count)
        worker = stack.enter_context(Worker(generate, job))
        consumer.receive(30)
        worker.receive(30)
        worker.send(time.monotonic() + 0.2)
        time.sleep(bench.plan.warm_up)
        began = time.time_ns()
        flood.commit()
        ended = _drained(conn, last, count / RATE) if backlog else 0
        before = array("q", worker.receive(300.0)[0])
        consumer.send(AFTERWARDS_S)
        arrived = array("q", consumer.receive(120))
    if not backlog:
        ended = max(before)
    late = sorted(
        (there - here) / 1e6 for here, there in zip(before, arrived, strict=True) if began <= here <= ended
    )
    if arrived.count(0):
        raise RuntimeError(f"{arrived.count(0)} messages never reached the consumer")
    return {
        "messages": len(late),
        "seconds": (ended - began) / 1e9,
        "before_commit_ms": [percentile(late, percent) for percent in PERCENTS],
    }


def _drained(conn: psycopg.Connection[Any], last: int, seconds: float) -> int:
    """Wait until the last message of the backlog is recorded as published; return when that was (nanoseconds)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if conn.execute(WATCH["recorded"], {"position": last}).fetchone() is not None:
            return time.time_ns()
        time.sleep(0.1)
    raise RuntimeError(f"the backlog was not drained within {seconds:.0f} s: raise fairness_seconds")
