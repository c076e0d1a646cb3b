"""The console: how long the server takes for each page of a large outbox, and what a page costs that is left open."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench.harness.cpu import Meter
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median
from bench.load.history import EPOCH, History
from bench.plan import PARTITIONS, Bench
from outbox.statements import Statements
from outbox_relay.console.app import LIVE
from outbox_relay.console.pages import Pages
from outbox_relay.console.reader import Reader

STATEMENTS = Statements("bench/sql/console.sql")
PAGE_MS = 300.0
IDLE_CORES = 0.01
METHOD = (
    "`outbox console` on the history of the export's benchmark, published, with undecided half messages of a hundred "
    "groups and dead letters of fifty causes. Milliseconds from a request to the end of the response, by one client. "
    "Idle: *Now* is open in one browser and nothing happens, on an empty outbox and on this one; cores over "
    "{seconds:.0f} s."
)


def run(bench: Bench) -> Section:
    """Measure each page, then a page that is left open."""
    plan = bench.plan
    section = Section("console", "The console", METHOD.format(seconds=plan.held_seconds))
    idle = Table("Cores while *Now* is open", ["", "console", "PostgreSQL", "statements/s"])
    with bench.servers.database() as dsn, _console(dsn) as console:
        idle.rows.append(_leave_open(bench, section, "an empty outbox", dsn, console))
    with bench.servers.database() as dsn:
        one = _filled(bench, dsn)
        with _console(dsn) as console:
            size = f"{plan.lookup_rows:,} messages, {plan.console_halves:,} half messages"
            table = Table(
                f"{size}, {plan.console_letters:,} dead letters", ["page", "median ms", "lowest ms"]
            )
            for path in _paths(one):
                taken = [_milliseconds(console[1], path) for _ in range(plan.console_reads + 1)][1:]
                section.figures[path] = taken
                table.rows.append(
                    [f"`{path.partition('=')[0]}`", f"{median(taken):.0f}", f"{min(taken):.0f}"]
                )
                bench.say(f"{path}: {median(taken):.0f} ms, {min(taken):.0f} at least")
            section.tables.append(table)
            slowest = max(median(taken) for taken in section.figures.values() if isinstance(taken, list))
            section.floors.append(Floor("the slowest page of the console", slowest, PAGE_MS, "ms"))
            idle.rows.append(_leave_open(bench, section, "this one", dsn, console))
    section.tables.append(idle)
    return section


def _filled(bench: Bench, dsn: str) -> dict[str, Any]:
    """Fill the database; return a message of it."""
    bench.say(f"writing {bench.plan.lookup_rows:,} messages")
    topic = bench.servers.topic(PARTITIONS)
    History(bench.servers, dsn, topic, relayed=0, has_index_keys=True).grow(bench.plan.lookup_rows)
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        conn.execute(STATEMENTS["own"], {"epoch": EPOCH})
        conn.execute(STATEMENTS["lease"], {"epoch": EPOCH})
        conn.execute(STATEMENTS["halves"], {"count": bench.plan.console_halves})
        conn.execute(STATEMENTS["group"])
        conn.execute(STATEMENTS["letters"], {"count": bench.plan.console_letters})
        conn.execute(STATEMENTS["analyze"])
        bench.servers.settle()
        return conn.execute(STATEMENTS["one"]).fetchone() or {}


def _paths(one: Mapping[str, Any]) -> list[str]:
    return [
        *("/", "/failing", "/messages", "/topics", "/half-messages", "/groups", "/warehouse"),
        f"/messages/{one['id']}",
        *(f"/messages?q={one[name]}" for name in ("key", "index_key", "message_id")),
        "/messages?q=nobody-has-this",
        "/messages?status=UNKNOWN",
        "/messages?status=PUBLISHED",
        "/half-messages?group=bench-7",
        "/half-messages?overdue=yes",
        "/letters?group=bench",
        "/acts/redrive?group=bench&failure=ValueError+at+shop.points%3Aapply%3A+7",
    ]


def _milliseconds(port: int, path: str) -> float:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as conn:
        began = time.perf_counter()
        conn.request("GET", path)
        response = conn.getresponse()
        response.read()
        taken = (time.perf_counter() - began) * 1e3
    if response.status not in (200, 303):
        raise RuntimeError(f"{path}: status {response.status}")
    return taken


def _leave_open(
    bench: Bench, section: Section, where: str, dsn: str, console: tuple[subprocess.Popen[str], int]
) -> list[str]:
    """Have *Now* open for a while; return a row of the table."""
    process, port = console
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as conn:
        conn.request("GET", "/live/now")
        stream = conn.getresponse()
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set() and stream.readline():
                pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        time.sleep(bench.plan.warm_up)
        meter = Meter({"console": process.pid, "postgres": bench.servers.pids["postgres"]})
        time.sleep(bench.plan.held_seconds)
        cores = meter.cores()
        ended.set()
        reader.join()
    statements = _statements(dsn) / LIVE["now"]
    section.figures[f"idle, {where}"] = {"cores": cores, "statements": statements}
    bench.say(f"{where}: {cores}, at most {statements:.0f} statements a second")
    section.floors.append(Floor(f"console idle, {where}", cores["console"], IDLE_CORES, "cores"))
    return [where, f"{cores['console']:.4f}", f"{cores['postgres']:.4f}", f"{statements:.0f}"]


def _statements(dsn: str) -> int:
    """Count the statements of one read of *Now*, without those that begin and end transactions."""
    counted = 0

    class Counting(psycopg.Cursor[Any]):
        def execute(self, *arguments: Any, **named: Any) -> Counting:
            nonlocal counted
            counted += 1
            super().execute(*arguments, **named)
            return self

    with closing(Reader(dsn)) as reader:
        with reader.reading() as conn:
            conn.cursor_factory = Counting
        counted = 0
        Pages(reader, None).now({})
    return counted


@contextmanager
def _console(dsn: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the command; yield its process and its port."""
    line = [sys.executable, "-m", "outbox_relay.cli.main", "console", "--port", "0", "--dsn", dsn]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        finally:
            process.terminate()
