"""Latency: from the commit of a business transaction to a stock consumer, next to producing right after the commit."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

import psycopg

from bench.harness.cpu import Meter
from bench.harness.relays import RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import percentile
from bench.harness.workers import Worker
from bench.load.consumer import consume
from bench.load.generator import OUTBOX, PRODUCE, Job, generate
from bench.plan import PARTITIONS, Bench
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/load.sql")
PER_GENERATOR = 250.0
"""Transactions per second that one generator begins at most: it has the time to begin each when it is due."""
OVERLOADED = 300.0
"""Seconds that generators may be behind; what they reached is in the table."""
PERCENTS = (50, 95, 99)
CORES = ("relay", "postgres", "kafka", "producers", "consumer")
COLUMNS = ("relay", "PostgreSQL", "broker", "producers", "consumer")
METHOD = (
    "Open loop: transactions begin at fixed times in processes of their own, whatever became of the one before: one "
    "INSERT of a business row, one `Outbox.send`, COMMIT. The clock (CLOCK_REALTIME of the one machine) is read right "
    "before COMMIT is sent, right after it has returned, and when `Consumer.poll()` returns the message. The floor "
    "holds for the longer way, *from before COMMIT*, which includes the commit itself. Lower limit: the same "
    "transactions without the outbox, `produce()` right after the commit (which a crash in between would lose). "
    "One run each; its first seconds are left out. CPU in cores, over the measured time."
)


Publisher: TypeAlias = Callable[[ExitStack, Bench, str, str], dict[str, int]]


class Missing(RuntimeError):
    """So many of so many messages did not reach the consumer in time."""

    def __init__(self, missing: int, count: int) -> None:
        super().__init__(f"{missing} of {count} messages did not reach the consumer in time")
        self.missing = missing
        self.count = count


class Load(NamedTuple):
    """What is sent: transactions per second, the seconds that are measured, those before, and those to wait after."""

    rate: int
    seconds: float
    warm_up: float
    afterwards: float = 30.0


def run(bench: Bench) -> Section:
    """Measure each rate of the plan through the outbox and by producing directly."""
    section = Section("latency", "Latency from commit to consumer", METHOD)
    table = Table(
        "Milliseconds (p50 / p95 / p99) and CPU cores",
        ["", "transactions/s", "from before COMMIT", "from after COMMIT", *COLUMNS],
    )
    bench.say("warming up the broker")
    measure(bench, Load(max(bench.plan.rates), bench.plan.warm_up, bench.plan.warm_up), OUTBOX, _relay)
    for rate in bench.plan.rates:
        for name, publisher in ((OUTBOX, _relay), (PRODUCE, _nobody)):
            seconds = bench.plan.latency_seconds if name == OUTBOX else bench.plan.peer_seconds
            found = measure(bench, Load(rate, seconds, bench.plan.warm_up), name, publisher)
            section.figures[f"{name}, {rate}/s"] = found
            cores = shown_cores(found, CORES)
            table.rows.append(
                [
                    f"{name}, {rate:,}/s",
                    f"{found['rate']:,.0f}",
                    three(found["before_commit_ms"]),
                    three(found["after_commit_ms"]),
                    *cores,
                ]
            )
            bench.say(f"{name} at {rate}/s: {three(found['before_commit_ms'])} ms, {found['cores']}")
            if name == OUTBOX:
                middle, _, last = found["before_commit_ms"]
                section.floors += [
                    Floor(f"latency p50 at {rate:,} tx/s", middle, 5.0, "ms"),
                    Floor(f"latency p99 at {rate:,} tx/s", last, 12.0, "ms"),
                ]
    section.tables.append(table)
    return section


def _relay(stack: ExitStack, bench: Bench, dsn: str, topic: str) -> dict[str, int]:
    return {"relay": stack.enter_context(RelayProcess(bench.servers, dsn)).pid}


def _nobody(stack: ExitStack, bench: Bench, dsn: str, topic: str) -> dict[str, int]:
    return {}


def shown_cores(found: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the cores that these processes used, as cells of a table."""
    return [f"{found['cores'][name]:.2f}" if name in found["cores"] else "" for name in names]


def three(values: Sequence[float]) -> str:
    """Return the percentiles as a cell of a table."""
    return " / ".join(f"{value:.1f}" for value in values)


def measure(bench: Bench, load: Load, way: str, publisher: Publisher) -> dict[str, Any]:
    """Send messages at a rate, and note when each is read.

    Args:
        bench: servers and plan.
        load: how many messages, how fast.
        way: how a message leaves the transaction; see `generate`.
        publisher: starts what publishes to a topic, on a stack that ends it, and answers its processes.

    Raises:
        Missing: not all arrived in time.
    """
    servers = bench.servers
    topic = servers.topic(PARTITIONS)
    generators = max(2, -(-load.rate // int(PER_GENERATOR)))
    warm = int(load.warm_up * load.rate)
    count = warm + int(load.seconds * load.rate)
    with ExitStack() as stack:
        dsn = stack.enter_context(servers.database())
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(STATEMENTS["orders"])
        servers.settle()
        jobs = [
            Job(dsn, servers.bootstrap_servers, topic, way, index, generators, load.rate, count)
            for index in range(generators)
        ]
        pids = servers.pids | publisher(stack, bench, dsn, topic)
        arguments = (servers.bootstrap_servers, topic, PARTITIONS, count)
        consumer = stack.enter_context(Worker(consume, *arguments))
        workers = [stack.enter_context(Worker(generate, job)) for job in jobs]
        for worker in (consumer, *workers):
            worker.receive(30)
        pids |= {"consumer": consumer.pid, **{f"producer{n}": each.pid for n, each in enumerate(workers)}}
        began = time.monotonic() + 0.2
        for worker in workers:
            worker.send(began)
        _sleep_until(began + load.warm_up)
        meter = Meter(pids)
        _sleep_until(began + count / load.rate)
        cores = meter.cores()
        noted = [worker.receive(OVERLOADED) for worker in workers]
        consumer.send(load.afterwards)
        arrived = array("q", consumer.receive(load.afterwards + 30))
    cores["producers"] = sum(cores.pop(name) for name in list(cores) if name.startswith("producer"))
    return {
        "rate": (count - warm) / _span([note[1] for note in noted], generators, warm),
        "messages": count - warm,
        "latest_start_s": max(note[2] for note in noted),
        "before_commit_ms": _percentiles([note[0] for note in noted], arrived, warm),
        "after_commit_ms": _percentiles([note[1] for note in noted], arrived, warm),
        "cores": {name: round(value, 3) for name, value in cores.items()},
    }


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0))


def _by_number(noted: list[bytes], count: int) -> array[int]:
    """The generators' notes, in the order of the messages' numbers."""
    merged = array("q", bytes(8 * count))
    for index, packed in enumerate(noted):
        merged[index :: len(noted)] = array("q", packed)
    return merged


def _span(after: list[bytes], generators: int, warm: int) -> float:
    """Seconds between the first and the last measured commit."""
    times = [time for packed in after for time in array("q", packed)[-(-warm // generators) :]]
    return (max(times) - min(times)) / 1e9


def _percentiles(noted: list[bytes], arrived: array[int], warm: int) -> list[float]:
    times = _by_number(noted, len(arrived))
    if missing := arrived.count(0):
        raise Missing(missing, len(arrived))
    late = sorted((there - here) / 1e6 for here, there in zip(times[warm:], arrived[warm:], strict=True))
    return [percentile(late, percent) for percent in PERCENTS]
