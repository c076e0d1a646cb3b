"""Idle poll: what the finder's look costs when there is nothing new, over 1 and 30 partitions of published rows."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.harness.cpu import Meter, thread_nanoseconds
from bench.harness.relays import RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median
from bench.load.backlog import fill
from bench.plan import Bench
from outbox.partitioning.lanes import LANES
from outbox.statements import Statements
from outbox_relay.publisher.finder import Finder, Slice, prepare_session
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.session import REST_AFTER_S

STATEMENTS = Statements("bench/sql/idle.sql")
WARM_UP = 20
"""Polls before the first that counts; PostgreSQL and psycopg have prepared the statement by then."""
RUNNING = 10
IDLE_SECONDS = 5.0
DATABASES = 30
METHOD = (
    "`Finder.poll` of all lanes on a table in which every row has been published. Backend CPU: of its session, by the "
    "kernel's scheduler, per poll. Beyond SELECT 1: median round trip of a poll minus that of a prepared SELECT 1. The "
    "plan is the one made while the table was empty, which is the worst there is, and then the one after ANALYZE. The "
    "relay names the partitions that can still hold a row to publish: all at its start, a second later the last ones. "
    "Running: so many other transactions are open. Idle relay: a relay process with nothing to do, cores over "
    f"{IDLE_SECONDS:.0f} s."
)


def run(bench: Bench) -> Section:
    """Measure with 1 partition and with 30, and a whole relay that has nothing to do."""
    section = Section("idle", "An idle poll", METHOD)
    table = Table(
        f"Milliseconds per poll, {bench.plan.idle_rows:,} published rows",
        ["", "plan", "backend CPU", "round trip", "beyond SELECT 1"],
    )
    section.tables.append(table)
    for partitions in (1, 30):
        _partitions(bench, section, table, partitions)
    section.tables.append(_relay(bench, section))
    section.tables.append(_many(bench, section))
    return section


def _partitions(bench: Bench, section: Section, table: Table, partitions: int) -> None:
    rows = bench.plan.idle_rows
    width = max(-(-(rows + 1) // partitions), 1000)
    with bench.servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        _execute(conn, STATEMENTS["split"], partitions=partitions, width=width)
        prepare_session(conn)
        live = LivePartitions(conn)
        finder = Finder(conn)
        # At the start all partitions up to the last that holds rows are named: before them, the last one's name.
        live.refresh(rows)
        finder.name_partitions(live.tables)
        here, _ = finder.here()
        for _ in range(WARM_UP):
            finder.poll(here, Slice(frozenset(range(LANES))))
        bench.say(f"writing {rows:,} messages into {partitions} partitions")
        fill(dsn, "idle", rows)
        bench.servers.settle()
        cases = [("made while empty", f"all {partitions + 1} named", 0)]
        cases += [
            ("after ANALYZE", f"all {partitions + 1} named", 0),
            ("after ANALYZE", "live ones named", 0),
        ]
        cases += [("after ANALYZE", "live ones named", RUNNING)]
        worst = 0.0
        for plan, named, running in cases:
            if plan == "after ANALYZE":
                conn.execute(STATEMENTS["analyse"])
            if named == "live ones named":
                _retire(finder, live)
            found = _poll(bench, dsn, finder, running)
            what = f"{partitions} partitions, {named}" + (f", {running} running" if running else "")
            section.figures[f"{what}, plan {plan}"] = found
            keys = ("backend_cpu_ms", "round_trip_ms", "beyond_ms")
            table.rows.append([what, plan, *(f"{found[key]:.3f}" for key in keys)])
            bench.say(f"{what}, plan {plan}: {found}")
            if named == "live ones named" and not running:
                worst = max(worst, found["backend_cpu_ms"])
        section.floors.append(Floor(f"idle poll, {partitions} partitions", worst, 0.5, "ms of PostgreSQL"))


def _retire(finder: Finder, live: LivePartitions) -> None:
    """Leave out what the relay leaves out once every lane has caught up."""
    for _ in range(3):
        now, newest = finder.here()
        live.retire(newest, now, [finder.here()[0]])
    finder.name_partitions(live.tables)


def _poll(bench: Bench, dsn: str, finder: Finder, running: int) -> dict[str, float]:
    with ExitStack() as stack:
        for _ in range(running):
            other = stack.enter_context(psycopg.connect(dsn))
            other.execute(STATEMENTS["begin_writing"])
        here, _ = finder.here()
        backend = finder.conn.info.backend_pid
        polls, trips = [], []
        for _ in range(WARM_UP):
            finder.poll(here, Slice(frozenset(range(LANES))))
            finder.conn.execute(STATEMENTS["nothing"], prepare=True)
        cpu = thread_nanoseconds(backend)
        for _ in range(bench.plan.idle_polls):
            began = time.perf_counter()
            if finder.poll(here, Slice(frozenset(range(LANES)))).rows:
                raise RuntimeError("an idle poll found rows")
            polls.append(time.perf_counter() - began)
        cpu = thread_nanoseconds(backend) - cpu
        for _ in range(bench.plan.idle_polls):
            began = time.perf_counter()
            finder.conn.execute(STATEMENTS["nothing"], prepare=True).fetchone()
            trips.append(time.perf_counter() - began)
    return {
        "backend_cpu_ms": cpu / bench.plan.idle_polls / 1e6,
        "round_trip_ms": median(polls) * 1e3,
        "beyond_ms": (median(polls) - median(trips)) * 1e3,
    }


def _relay(bench: Bench, section: Section) -> Table:
    with bench.servers.database() as dsn, RelayProcess(bench.servers, dsn) as relay:
        time.sleep(2 * bench.plan.warm_up)  # the pauses between polls grow to their longest
        meter = Meter({**bench.servers.pids, "relay": relay.pid})
        time.sleep(min(IDLE_SECONDS, bench.plan.held_seconds))
        cores = meter.cores()
        peak = relay.peak_bytes / 1e6
    section.figures["idle relay"] = {"cores": cores, "peak_mb": peak}
    shown = [f"{cores[name]:.3f}" for name in ("relay", "postgres", "kafka")]
    columns = ["", "relay", "PostgreSQL", "broker", "relay's peak memory"]
    return Table("Cores while nothing happens", columns, [["idle relay", *shown, f"{peak:.0f} MB"]])


def _many(bench: Bench, section: Section) -> Table:
    """Measure one process for many databases that have nothing to publish."""
    with ExitStack() as stack:
        names = [stack.enter_context(bench.servers.database()) for _ in range(DATABASES)]
        relay = stack.enter_context(RelayProcess(bench.servers, *names))
        conn = stack.enter_context(psycopg.connect(names[0], autocommit=True))
        while (row := conn.execute(STATEMENTS["sessions"]).fetchone()) is None or row[0] < 2 * DATABASES:
            time.sleep(0.1)
        time.sleep(REST_AFTER_S + 2 * bench.plan.warm_up)  # the pauses between polls grow to their longest
        meter = Meter({**bench.servers.pids, "relay": relay.pid})
        time.sleep(min(4 * IDLE_SECONDS, bench.plan.held_seconds))
        cores = meter.cores()
        row = conn.execute(STATEMENTS["sessions"]).fetchone()
        threads = len([*Path(f"/proc/{relay.pid}/task").iterdir()])
    assert row is not None
    both = cores["relay"] + cores["postgres"]
    section.figures["idle databases"] = {"cores": both, "threads": threads, "sessions": row[0]}
    section.floors.append(Floor(f"{DATABASES} idle databases", both, 0.15, "cores with PostgreSQL"))
    shown = [f"{cores['relay']:.3f}", f"{cores['postgres']:.3f}", str(threads), str(row[0])]
    columns = ["", "relay", "PostgreSQL", "threads", "sessions"]
    return Table("Cores of one process for many databases", columns, [[f"{DATABASES} databases", *shown]])


def _execute(conn: psycopg.Connection, statement: str, **numbers: Any) -> None:
    literals = {name: sql.Literal(value) for name, value in numbers.items()}
    conn.execute(sql.SQL(statement).format(**literals))
