"""Held: the relay's rate while a snapshot and a writer are held open, next to the rate before and after."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg

from bench.harness.cpu import Meter
from bench.harness.relays import WATCH, Recorded, RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median
from bench.load.backlog import STATEMENTS as BACKLOG
from bench.load.snapshot import held_snapshot
from bench.plan import PARTITIONS, Bench
from outbox import Message, Outbox
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/held.sql")
LIMIT = 60.0
METHOD = (
    "A relay runs; bursts of {burst:,} messages, each committed by one transaction, come one after the other, each "
    "as soon as the last is published. Rate of a burst: its messages by the time from its commit to its last "
    "publication row. "
    "Held: one REPEATABLE READ transaction that has read, and one that has sent a message and idles, both open for "
    "{seconds:.0f} s; half of that before and half after without them. At the end the idle transaction commits."
)


def run(bench: Bench) -> Section:
    """Compare the rate of bursts with and without old transactions."""
    plan = bench.plan
    method = METHOD.format(burst=plan.burst, seconds=plan.held_seconds)
    section = Section("held", "A held snapshot and an open writer", method)
    topic = bench.servers.topic(PARTITIONS)
    rows: list[Sequence[str]] = []
    with (
        bench.servers.database() as dsn,
        RelayProcess(bench.servers, dsn) as relay,
        psycopg.connect(dsn, autocommit=True) as conn,
    ):
        _burst(conn, relay, topic, plan.burst, plan.burst)  # caches and the broker are warm after it
        before = _bursts(bench, conn, relay, topic, plan.held_seconds / 2)
        with held_snapshot(dsn), psycopg.connect(dsn) as writer:
            held = Outbox("bench").send(writer, Message(topic, key="held", body=b"{}"))
            during = _bursts(bench, conn, relay, topic, plan.held_seconds)
            dead = _value(conn, "dead", STATEMENTS)
            began = time.monotonic()
            writer.commit()
            _wait_recorded(conn, held.id)
            late = (time.monotonic() - began) * 1e3
        after = _bursts(bench, conn, relay, topic, plan.held_seconds / 2)
    for name, found in (("before", before), ("held", during), ("after", after)):
        first, last = (median(part) for part in (found["rates"][:3], found["rates"][-3:]))
        shown = f"{found['postgres_us']:.1f}"
        middle = f"{median(found['rates']):,.0f}"
        rows.append([name, f"{len(found['rates'])}", middle, f"{first:,.0f}", f"{last:,.0f}", shown])
    free = median([*before["rates"], *after["rates"]])
    share = median(during["rates"]) / free
    section.tables += [
        Table(
            "Messages per second",
            [
                "",
                "bursts",
                "median",
                "first three",
                "last three",
                "PostgreSQL CPU µs per message, inserts included",
            ],
            rows,
        ),
        Table(
            "While held",
            ["", "value"],
            [
                ["share of the rate without", f"{share:.2f}"],
                ["dead rows in all tables of the outbox at its end", f"{dead:,}"],
                ["the idle writer's message, from its commit to its record", f"{late:.0f} ms"],
            ],
        ),
    ]
    section.figures = {"before": before, "held": during, "after": after, "dead": dead, "late_ms": late}
    section.floors.append(
        Floor("rate under a held snapshot", share, 0.95, "of the rate without", at_least=True)
    )
    return section


def _bursts(
    bench: Bench, conn: psycopg.Connection, relay: RelayProcess, topic: str, seconds: float
) -> dict[str, Any]:
    rates: list[float] = []
    meter = Meter({"postgres": bench.servers.pids["postgres"]})
    until = time.monotonic() + seconds
    while len(rates) < 3 or time.monotonic() < until:
        rates.append(_burst(conn, relay, topic, bench.plan.burst, len(rates) * bench.plan.burst))
    used = meter.seconds()["postgres"] / (len(rates) * bench.plan.burst) * 1e6
    bench.say(f"{len(rates)} bursts, median {median(rates):,.0f} messages/s")
    return {"rates": rates, "postgres_us": used}


def _burst(conn: psycopg.Connection, relay: RelayProcess, topic: str, size: int, first: int) -> float:
    newest, recorded = _value(conn, "newest"), Recorded(conn)
    wanted = recorded.messages + size
    conn.execute(BACKLOG["fill"], {"topic": topic, "first": first + 1, "last": first + size})
    committed = time.time()
    recorded.wait(relay, wanted, LIMIT)
    row = conn.execute(WATCH["drained"], {"first": newest + 1, "since": committed}).fetchone()
    if row is None or row[1] != size:
        raise RuntimeError(f"of a burst of {size} messages this was recorded: {row}")
    return size / float(row[4])


def _wait_recorded(conn: psycopg.Connection, position: int) -> None:
    deadline = time.monotonic() + LIMIT
    while not conn.execute(WATCH["recorded"], {"position": position}).fetchone():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the idle writer's message was not published within {LIMIT:.0f} s")
        time.sleep(0.001)


def _value(conn: psycopg.Connection, name: str, statements: Statements = WATCH) -> int:
    row = conn.execute(statements[name]).fetchone()
    return int(row[0]) if row else 0
