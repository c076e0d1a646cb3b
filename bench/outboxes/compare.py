"""Outboxes: relays of ours, Debezium and faststream-outbox by turns, with and without a snapshot held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from bench.debezium.settings import AT_ONCE, DRAINING
from bench.debezium.settings import DEFAULT as CONNECTOR
from bench.debezium.settings import VERSION as DEBEZIUM
from bench.debezium.side import Connector
from bench.faststream_outbox.side import DEFAULT, TUNED, FaststreamOutbox
from bench.faststream_outbox.side import VERSION as FASTSTREAM
from bench.harness.jars import fetched
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio
from bench.outboxes.drain import drain
from bench.outboxes.kept import kept
from bench.outboxes.latency import AFTERWARDS, latency
from bench.outboxes.sides import Side
from bench.plan import Bench

HELD = ("", ", snapshot held")
CPU_RATE = 500
"""Transactions per second at which the CPU of a message has a floor."""
METHOD = (
    "Our relay processes with default options; Debezium {debezium}, its outbox event router in Kafka Connect "
    "standalone (heap 1 GiB); faststream-outbox {faststream}, its documented relay to Kafka through "
    "`faststream.confluent` in one process, on asyncpg, its recommended autovacuum settings applied; by turns on the "
    "same servers. Snapshot held: a REPEATABLE READ transaction that has read is open from before the first message. "
    "Drain: each publishes a first message and stops; {messages:,} messages are committed in transactions of 1,000; "
    "then it starts again, and is stopped {seconds:.0f} s after its first record if it has not drained them (the "
    "number that it published is in brackets). Several relays lead a shard each, and one transaction commits the "
    "messages while they run. Rates by the times at which the broker appended the records: all, and the second half, "
    "when Java has compiled what it runs. CPU µs a message, since the start of the process; of several relays, since "
    "the commit. Tuned Debezium: "
    "max.batch.size 16384, max.queue.size 131072, poll.interval.ms 1, lz4, batch.size 256 KiB, linger 1 ms, and 0 for "
    "latency and transactions. Tuned faststream-outbox: {tuned}. Latency as in the benchmark of that name, from "
    "before COMMIT, p50 / p99 after {warm_up:.0f} s at the same rate; where a number of messages stands, so many had "
    "not arrived {afterwards:.0f} s after the last transaction. Its rows are written by its own INSERT with NOTIFY, "
    "without its client. Transactions kept: pgbench with {clients} clients, an UPDATE and an INSERT, with a message "
    "while the side publishes, by those without message and publisher in the same database. {rounds} rounds, medians."
)


@dataclass(slots=True)
class Found:
    """What was measured of one side, with or without a snapshot held."""

    drains: list[dict[str, float]] = field(default_factory=list)
    latencies: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By transactions per second."""
    shares: list[dict[str, float]] = field(default_factory=list)


def run(bench: Bench) -> Section:
    """Drain, measure latencies and business transactions by turns, and put all of it into one table."""
    jars = fetched("bench.debezium", f"debezium-{DEBEZIUM}", bench.say)
    sides = [
        *(Side(count) for count in bench.plan.relay_counts),
        Connector("Debezium, tuned", jars, DRAINING, AT_ONCE),
        Connector("Debezium, default", jars, CONNECTOR, CONNECTOR),
        FaststreamOutbox("faststream-outbox, tuned", TUNED, has_latency=True),
        FaststreamOutbox("faststream-outbox, default", DEFAULT, has_latency=False),
    ]
    found: dict[str, Found] = defaultdict(Found)
    for number in range(bench.plan.compared_rounds):
        turn = list(product(sides, HELD))
        for side, held in turn if number % 2 == 0 else reversed(turn):
            drained = drain(bench, side, held=bool(held))
            found[side.name + held].drains.append(drained)
            bench.say(
                f"{side.name}{held}: {drained['rate']:,.0f} messages/s of {drained['messages']:,.0f}, "
                f"second half {drained['warm_rate']:,.0f}"
            )
            if side.has_latency:
                share = kept(bench, side, held=bool(held))
                found[side.name + held].shares.append(share)
                bench.say(
                    f"{side.name}{held}: {share['share']:.2f} of {share['alone']:,.0f} transactions/s kept"
                )
    for number, rate in product(range(bench.plan.compared_rounds), bench.plan.compared_rates):
        turn = [(side, held) for held, side in product(HELD, sides) if side.has_latency]
        for side, held in turn if number % 2 == 0 else reversed(turn):
            late = latency(bench, side, rate, held=bool(held))
            found[side.name + held].latencies.setdefault(rate, []).append(late)
            bench.say(f"{side.name}{held} at {rate}/s: {_late([late])}, {late.get('cores', '')}")
    return _section(bench, sides, found)


def _section(bench: Bench, sides: Sequence[Side], found: dict[str, Found]) -> Section:
    plan = bench.plan
    method = METHOD.format(
        debezium=DEBEZIUM,
        faststream=FASTSTREAM,
        messages=plan.backlog,
        seconds=plan.compared_drain_seconds,
        tuned=", ".join(f"{name} {value:,}" for name, value in TUNED.items()),
        warm_up=plan.compared_warm_up,
        afterwards=AFTERWARDS,
        clients=plan.compared_clients,
        rounds=plan.compared_rounds,
    )
    section = Section("outboxes", "Next to other outboxes", method)
    table = Table(
        "Drain (messages/s, CPU µs a message), latency (ms) and business transactions kept",
        [
            "",
            *("drain", "second half", "publisher CPU", "PostgreSQL CPU", "broker CPU", "peak memory"),
            *(f"p50 / p99 at {rate:,}/s" for rate in plan.compared_rates),
            *(f"publisher's cores at {rate:,}/s" for rate in plan.compared_rates if rate == CPU_RATE),
            f"kept, {plan.compared_clients} clients",
        ],
    )
    for side, held in product(sides, HELD):
        table.rows.append(
            [side.name + held, *_cells(plan.backlog, plan.compared_rates, found[side.name + held])]
        )
    section.tables.append(table)
    section.figures = {
        name: {"drain": one.drains, "latency": one.latencies, "kept": one.shares}
        for name, one in found.items()
    }
    section.floors = [
        floor
        for held in HELD
        for floor in _floors(found[sides[0].name + held], found["Debezium, tuned" + held], held)
    ]
    return section


def _cells(backlog: int, rates: Sequence[int], found: Found) -> list[str]:
    def middle(name: str) -> float:
        return float(median(one[name] for one in found.drains))

    published = middle("messages")
    return [
        f"{middle('rate'):,.0f}" + ("" if published == backlog else f" ({published:,.0f})"),
        f"{middle('warm_rate'):,.0f}",
        *(f"{middle(name):.1f}" for name in ("publisher", "postgres", "kafka")),
        f"{max(one['peak_mb'] for one in found.drains):,.0f} MB",
        *(_late(found.latencies[rate]) if rate in found.latencies else "" for rate in rates),
        *(_cores(found.latencies.get(rate, [])) for rate in rates if rate == CPU_RATE),
        f"{median(one['share'] for one in found.shares):.2f}" if found.shares else "",
    ]


def _late(found: Sequence[dict[str, Any]]) -> str:
    if any("missing" in one for one in found):
        return ", ".join(
            f"{one['missing']:,} of {one['count']:,} missing" for one in found if "missing" in one
        )
    return f"{_percentile(found, 0):.1f} / {_percentile(found, 2):.1f}"


def _percentile(found: Sequence[dict[str, Any]], place: int) -> float:
    """The median over the rounds of one of p50, p95 and p99, in milliseconds."""
    return float(median(one["before_commit_ms"][place] for one in found))


def _cores(found: Sequence[dict[str, Any]]) -> str:
    used = [one["cores"]["publisher"] for one in found if "cores" in one]
    return f"{median(used):.2f}" if used else ""


def _floors(relay: Found, debezium: Found, held: str) -> list[Floor]:
    rates = [[one["warm_rate"] for one in side.drains] for side in (relay, debezium)]
    what = f"drain, second halves, next to Debezium tuned{held}"
    floors = [Floor(what, ratio(*rates), 2, "x Debezium", at_least=True)]
    for rate, ours in relay.latencies.items():
        theirs = debezium.latencies[rate]
        if any("missing" in one for one in ours):
            raise RuntimeError(f"at {rate} transactions/s of the relay: {_late(ours)}")
        if not any("missing" in one for one in theirs):
            floors += [
                Floor(
                    f"latency {percent} at {rate:,} tx/s next to Debezium{held}",
                    _percentile(ours, at) / _percentile(theirs, at),
                    1,
                    "x Debezium",
                )
                for percent, at in (("p50", 0), ("p99", 2))
            ]
        if rate == CPU_RATE:
            used = median(one["cores"]["publisher"] for one in ours) / rate * 1e3
            floors.append(Floor(f"relay CPU a message at {rate} tx/s{held}", used, 0.25, "ms"))
    return floors
