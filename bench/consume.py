"""Consume: messages per second with the inbox, next to a loop by hand and FastStream that write the same row."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from bench.harness.cpu import Meter
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio, spread
from bench.harness.workers import Worker
from bench.load.consuming import BATCH, STATEMENTS, bare, faststream, produce, push
from bench.plan import PARTITIONS, Bench

KEYS = 1000
LIMIT = 300.0
METHOD = (
    "A topic of {partitions} partitions has {count:,} messages of 100 B with {keys:,} keys. A consumer in a process of "
    "its own inserts one row for each message, in one transaction each, fsync on. By hand: one thread, a loop of "
    "confluent_kafka and psycopg with a prepared statement, offsets stored once a second; nothing keeps it from "
    "applying a message twice. FastStream: a subscriber of its broker for confluent_kafka on psycopg's asynchronous "
    "connection, which commits the row, then lets FastStream store the offset (`AckPolicy.NACK_ON_ERROR`); a message "
    "may be applied twice, too. The others: `outbox.inbox.PushConsumer`; 20 workers are its default. Batches: up to "
    "{batch} rows in one transaction, inserted one by one by both. Rate: rows by the "
    "time from the {warm_up:,}th row to the last one. × is the median over {rounds} interleaved rounds of the ratio to "
    "the loop by hand of the same round. CPU: of the consumer's process and of PostgreSQL. Failing keys: the same "
    "orderly consumer, but each message of a tenth of the keys fails at once and is parked; the rate of the other keys "
    "next to their rate when nothing fails."
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to consume."""

    title: str
    job: Callable[..., None]
    options: dict[str, Any] = field(default_factory=dict)
    inbox: bool = True
    fails: bool = False
    work: float = 0.0
    share: float = 1.0
    """Of the messages that are applied."""

    def worker(self, *arguments: Any) -> Worker:
        """Start it."""
        if self.job is not push:
            return Worker(partial(self.job, **self.options), *arguments)
        given = partial(push, inbox=self.inbox, fails=self.fails, work=self.work, options=self.options)
        return Worker(given, *arguments)


BARE, ONE, INBOX, ORDERLY, FAILING = "bare", "one", "inbox", "orderly", "failing"
BARE_BATCHES, BATCHES = "bare_batches", "batches"
VARIANTS = {
    BARE: Variant("loop by hand, one thread", bare),
    "faststream": Variant("FastStream, one task", faststream),
    ONE: Variant("with inbox, 1 worker", push, {"workers": 1}),
    INBOX: Variant("with inbox, 20 workers", push),
    "without": Variant("the same without its inbox", push, inbox=False),
    BARE_BATCHES: Variant("loop by hand, batches", bare, {"size": BATCH}),
    BATCHES: Variant("with inbox, batches, 1 worker", push, {"workers": 1, "batch": BATCH}),
    ORDERLY: Variant("with inbox, in order of the keys", push, {"orderly": True}),
    FAILING: Variant("the same, a tenth of the keys fails", push, {"orderly": True}, fails=True, share=0.9),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One variant in one round."""

    rate: float
    """Messages per second."""
    healthy: float
    """Messages per second of keys that never fail."""
    client: float
    """Microseconds of CPU per message, of the consumer."""
    server: float
    """The same of PostgreSQL."""


def run(bench: Bench) -> Section:
    """Measure all variants by turns."""
    plan = bench.plan
    topic = bench.servers.topic(PARTITIONS)
    produce(bench.servers.bootstrap_servers, topic, plan.consumed, KEYS)
    found: dict[str, list[Outcome]] = {name: [] for name in VARIANTS}
    for _ in range(plan.consume_rounds):
        for name, variant in VARIANTS.items():
            found[name].append(_measure(bench, topic, variant))
            bench.say(f"{variant.title}: {found[name][-1].rate:,.0f} messages/s")
    return _section(bench, found)


def _measure(bench: Bench, topic: str, variant: Variant) -> Outcome:
    count = int(bench.plan.consumed * variant.share)
    warm_up = bench.plan.consumed // 10
    with bench.servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(STATEMENTS["table"])
        bench.servers.settle()
        with variant.worker(dsn, bench.servers.bootstrap_servers, topic) as worker:
            _wait(conn, warm_up)
            begin = _count(conn)
            meter = Meter({"client": worker.pid, "server": bench.servers.pids["postgres"]})
            _wait(conn, count)
            used, applied = meter.seconds(), _count(conn) - begin
            worker.send("end")
            worker.receive(60)
        rates = [_value(conn, "rate", warm_up=warm_up, healthy=healthy) for healthy in (False, True)]
        return Outcome(*rates, *(used[each] / applied * 1e6 for each in ("client", "server")))


def _section(bench: Bench, found: dict[str, list[Outcome]]) -> Section:
    plan = bench.plan
    section = Section(
        "consume",
        "Consume",
        METHOD.format(
            partitions=PARTITIONS,
            count=plan.consumed,
            keys=KEYS,
            batch=BATCH,
            warm_up=plan.consumed // 10,
            rounds=plan.consume_rounds,
        ),
    )
    rates = {name: [each.rate for each in outcomes] for name, outcomes in found.items()}
    healthy = {name: [each.healthy for each in outcomes] for name, outcomes in found.items()}
    section.tables.append(
        Table(
            "Messages per second",
            ["", "median", "least to greatest", "of the loop by hand", "CPU of the client", "of PostgreSQL"],
            [
                [
                    VARIANTS[name].title,
                    f"{median(values):,.0f}",
                    spread(values),
                    f"{ratio(values, rates[BARE]):.2f} ×",
                    f"{median(each.client for each in found[name]):,.0f} µs",
                    f"{median(each.server for each in found[name]):,.0f} µs",
                ]
                for name, values in rates.items()
            ],
        )
    )
    section.tables.append(
        Table(
            f"Up to {BATCH} rows in one transaction, one thread",
            ["", "messages per second", "of the loop by hand with batches"],
            [
                [
                    VARIANTS[name].title,
                    f"{median(rates[name]):,.0f}",
                    f"{ratio(rates[name], rates[BARE_BATCHES]):.2f} ×",
                ]
                for name in (BARE_BATCHES, BATCHES)
            ],
        )
    )
    kept = ratio(healthy[FAILING], healthy[ORDERLY])
    section.tables.append(
        Table(
            "Keys that do not fail, a tenth of the others failing",
            ["", "messages per second", "of the rate when none fails"],
            [["healthy keys", f"{median(healthy[FAILING]):,.0f}", f"{kept:.2f} ×"]],
        )
    )
    section.floors += [
        Floor("consume with the inbox, of a loop by hand", ratio(rates[INBOX], rates[BARE]), 0.8, "×", True),
        Floor("the same with 1 worker", ratio(rates[ONE], rates[BARE]), 0.8, "×", True),
        Floor("healthy keys while a tenth fails", kept, 0.95, "×", True),
    ]
    section.figures = {"rates": rates, "healthy": healthy}
    return section


def _wait(conn: psycopg.Connection[Any], count: int) -> None:
    deadline = time.monotonic() + LIMIT
    while _count(conn) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_count(conn):,} of {count:,} messages were applied within {LIMIT:.0f} s")
        time.sleep(0.05)


def _count(conn: psycopg.Connection[Any]) -> int:
    return int(_value(conn, "count"))


def _value(conn: psycopg.Connection[Any], name: str, **values: object) -> float:
    row = conn.execute(STATEMENTS[name], values).fetchone()
    if row is None:
        raise LookupError(name)
    return float(row[0])
