"""Poison: how fast healthy keys flow next to keys whose first message cannot be published."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench.harness.cpu import Meter
from bench.harness.relays import RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, spread
from bench.plan import PARTITIONS, Bench
from outbox import Outbox
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/poison.sql")
KEYS = 2_000
SHARE = 0.05
LARGEST = 100_000
"""Bytes that the topic takes: no batch of Kafka may have more, so a small limit would be what is measured."""
TRANSACTION = 1_000
LIMIT = 180.0
FLOOR = 0.95
METHOD = (
    f"A backlog of {KEYS:,} keys in turn, in transactions of {TRANSACTION:,}, is published by one relay. In the other "
    f"round of each pair the first message of {SHARE:.0%} of the keys is too large for its topic, so that it fails and "
    "all later messages of its key are held behind it. The rate is that of the healthy keys, from the first "
    "publication to the last; rounds alternate, median of the ratios of pairs."
)


def run(bench: Bench) -> Section:
    """Measure pairs of backlogs, without such keys and with them."""
    section = Section("poison", "Healthy keys next to poison keys", METHOD)
    messages = bench.plan.backlog
    pairs = []
    for number in range(bench.plan.backlog_rounds):
        order = (0.0, SHARE) if number % 2 == 0 else (SHARE, 0.0)
        found = {share: _round(bench, messages, share) for share in order}
        pairs.append((found[0.0], found[SHARE]))
        bench.say(f"healthy keys {found[0.0]['rate']:,.0f} and {found[SHARE]['rate']:,.0f} messages/s")
    section.figures["pairs"] = pairs
    table = Table(
        f"{messages:,} messages, {len(pairs)} pairs",
        ["", "messages/s of healthy keys", "relay CPU µs a message", "PostgreSQL CPU µs", "failed", "held"],
    )
    for column, name in ((0, "no poison key"), (1, f"{SHARE:.0%} poison keys")):
        rounds = [pair[column] for pair in pairs]
        rates = [one["rate"] for one in rounds]
        table.rows.append(
            [name, f"{median(rates):,.0f} ({spread(rates)})"]
            + [f"{median(one[key] for one in rounds):.1f}" for key in ("relay_us", "postgres_us")]
            + [f"{rounds[0][key]:,}" for key in ("failed", "held")]
        )
    section.tables.append(table)
    kept = median(with_poison["rate"] / without["rate"] for without, with_poison in pairs)
    section.floors.append(
        Floor("rate that healthy keys keep", kept, FLOOR, "of that without poison keys", at_least=True)
    )
    return section


def _round(bench: Bench, messages: int, share: float) -> dict[str, Any]:
    servers = bench.servers
    topic, poison = servers.topic(PARTITIONS), round(KEYS * share)
    healthy = messages * (KEYS - poison) // KEYS
    with servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        for first in range(0, messages, TRANSACTION):
            values = {"topic": topic, "keys": KEYS, "poison": poison, "large": 2 * LARGEST}
            last = min(first + TRANSACTION, messages) - 1
            conn.execute(STATEMENTS["fill"], {**values, "first": first, "last": last})
        # Afterwards: the database refuses what a registered topic does not take.
        with conn.transaction():
            Outbox().register_topic(conn, topic, PARTITIONS, max_message_bytes=LARGEST)
        servers.settle()
        with RelayProcess(servers, dsn) as relay:
            meter = Meter({**servers.pids, "relay": relay.pid})
            published, seconds, in_first = _wait(conn, relay, healthy)
            used = meter.seconds()
        failed, held = _one(conn, "held")
    if (published, failed, held) != (healthy, poison, messages - healthy - poison):
        raise RuntimeError(f"{published} published, {failed} failed, {held} held of {messages} messages")
    # Of healthy keys in both: without poison keys, the same share of what was published is theirs.
    of_healthy = (messages * (1 - SHARE)) / healthy if not share else 1.0
    return {
        "rate": (healthy - in_first) * of_healthy / seconds,
        "failed": failed,
        "held": held,
        "relay_us": used["relay"] / messages * 1e6,
        "postgres_us": used["postgres"] / messages * 1e6,
    }


def _wait(conn: psycopg.Connection, relay: RelayProcess, healthy: int) -> tuple[Any, ...]:
    """Wait until the healthy messages are recorded, and every other one is held."""
    deadline = time.monotonic() + LIMIT
    while True:
        relay.check()
        published = _one(conn, "published")
        if published[0] >= healthy:
            return published
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{published[0]} of {healthy} healthy messages were published in {LIMIT:.0f} s"
            )
        time.sleep(0.1)


def _one(conn: psycopg.Connection, name: str) -> tuple[Any, ...]:
    row = conn.execute(STATEMENTS[name]).fetchone()
    if row is None:
        raise RuntimeError(f"statement {name!r} found nothing")
    return tuple(row)
