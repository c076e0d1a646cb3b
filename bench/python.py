"""Python: what a call of `Outbox.send` costs beyond executing the same INSERT by hand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import psycopg

from bench.harness.report import Section, Table
from bench.harness.statistics import median
from bench.load import messages
from bench.plan import Bench
from outbox import Message, Outbox
from outbox.operations.rows import COLUMNS, load_rows

SEND = load_rows("send.sql")["send"]
BY_HAND = re.sub(r"\$\d+", "%s", SEND)
HEADERS = {"source": "bench"}
MANY = 500
METHOD = (
    "One session and one transaction that is rolled back; calls of each kind in turn, rounds interleaved, medians per "
    "call. By hand: `conn.execute` of the library's INSERT with the same values, prepared. Client CPU: of this "
    "process; the wall time includes PostgreSQL's work and the round trip."
)


def run(bench: Bench) -> Section:
    """Compare send and send_many with the plain statement."""
    section = Section("python", "What a call of send costs in Python", METHOD)
    outbox = Outbox("bench")

    def make(number: int) -> Message:
        return Message(
            "bench", messages.key(number), messages.body(number), headers=HEADERS, tags=["created"]
        )

    given = {
        "topic": "bench",
        "headers": '{"source":"bench"}',
        "tags": "{created}",
        "index_keys": "{}",
        "producer_group": "bench",
    }
    columns = [*COLUMNS]
    key, body = columns.index("key"), columns.index("body")

    def by_hand(conn: psycopg.Connection, count: int) -> None:
        same = [given.get(column) for column in columns]
        for number in range(count):
            row: list[object] = [*same, number & 7]
            row[key], row[body] = messages.key(number), messages.body(number)
            conn.execute(BY_HAND, row, prepare=True).fetchone()

    def send(conn: psycopg.Connection, count: int) -> None:
        for number in range(count):
            outbox.send(conn, make(number))

    def send_many(conn: psycopg.Connection, count: int) -> None:
        for first in range(0, count, MANY):
            outbox.send_many(conn, [make(number) for number in range(first, first + MANY)])

    kinds: dict[str, Callable[[psycopg.Connection, int], None]] = {
        "conn.execute by hand": by_hand,
        "Message(…) and Outbox.send": send,
        f"Outbox.send_many of {MANY}": send_many,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    with bench.servers.database() as dsn, psycopg.connect(dsn) as conn:
        for _ in range(bench.plan.rounds + 1):
            for name, kind in kinds.items():
                found[name].append(_time(conn, kind, bench.plan.python_calls))
    table = Table("Microseconds per message", ["", "wall", "client CPU", "client CPU beyond by hand"])
    base = median(cpu for _, cpu in found["conn.execute by hand"][1:])
    for name, times in found.items():
        # The first round filled caches and prepared the statements.
        wall, cpu = (median(one[place] for one in times[1:]) for place in (0, 1))
        section.figures[name] = {"wall_us": wall, "cpu_us": cpu}
        table.rows.append([name, f"{wall:.0f}", f"{cpu:.1f}", f"{cpu - base:+.1f}"])
        bench.say(f"{name}: {wall:.0f} µs, {cpu:.1f} µs of CPU")
    section.tables.append(table)
    return section


def _time(
    conn: psycopg.Connection, kind: Callable[[psycopg.Connection, int], None], count: int
) -> tuple[float, float]:
    """Wall and CPU microseconds per message."""
    began, cpu = time.perf_counter(), time.process_time()
    kind(conn, count)
    spent = time.perf_counter() - began, time.process_time() - cpu
    conn.rollback()
    return spent[0] / count * 1e6, spent[1] / count * 1e6
