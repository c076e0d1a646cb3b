"""Marking: what it costs PostgreSQL to remember what is published, per row or per batch, under a held snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg

from bench.harness.cpu import thread_nanoseconds
from bench.harness.report import Section, Table
from bench.plan import Bench
from outbox.partitioning.lanes import LANES
from outbox.statements import Statements
from outbox_relay.publisher.finder import Finder, Slice, prepare_session
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.snapshot import Snapshot

STATEMENTS = Statements("bench/sql/marking.sql")
BATCH = 1_000
METHOD = (
    f"Batches of {BATCH:,} messages arrive, are found and are remembered as published, by turns in two ways, while "
    "another session holds a snapshot open from the start, as a backup does. Per row: a finder by status and one "
    "UPDATE per batch. Per batch: the snapshot difference and one row in outbox.publication. Backend CPU of the "
    "session by the kernel's scheduler, microseconds per message; first and last tenth of the run."
)


@dataclass(slots=True)
class Way:
    """Microseconds of backend CPU per message, batch by batch."""

    find: list[float] = field(default_factory=list)
    remember: list[float] = field(default_factory=list)

    def row(self, name: str) -> list[str]:
        """First and last tenth of both."""
        tenth = max(1, len(self.find) // 10)
        shown = [
            sum(part) / tenth
            for numbers in (self.find, self.remember)
            for part in (numbers[:tenth], numbers[-tenth:])
        ]
        return [name, *(f"{number:.1f}" for number in shown)]


def run(bench: Bench) -> Section:
    """Measure both ways in one run."""
    section = Section("marking", "Remembering what is published", METHOD)
    per_row, per_batch = Way(), Way()
    batches = max(20, bench.plan.burst // BATCH)
    with (
        bench.servers.database() as dsn,
        psycopg.connect(dsn, autocommit=True) as conn,
        psycopg.connect(dsn) as holder,
    ):
        for statement in STATEMENTS["prepare"].split(";"):
            conn.execute(statement)
        prepare_session(conn)
        live = LivePartitions(conn)
        finder = Finder(conn)
        finder.name_partitions(live.tables)
        here, _ = finder.here()
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute(STATEMENTS["hold"])
        for batch in range(batches):
            here = _turn(finder, here, batch, per_row, per_batch)
        dead = conn.execute("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'marked'").fetchone()
    table = Table(
        f"Microseconds of PostgreSQL per message, {batches * BATCH:,} messages, snapshot held open",
        ["", "find, first", "find, last", "remember, first", "remember, last"],
    )
    table.rows = [
        per_row.row("UPDATE per message"),
        per_batch.row("one publication per batch"),
    ]
    section.tables.append(table)
    section.figures = {"per_row": vars_of(per_row), "per_batch": vars_of(per_batch), "dead": dead}
    return section


def vars_of(way: Way) -> dict[str, list[float]]:
    """The raw figures."""
    return {"find": way.find, "remember": way.remember}


def _turn(finder: Finder, here: Snapshot, batch: int, per_row: Way, per_batch: Way) -> Snapshot:
    conn = finder.conn
    pid = conn.info.backend_pid

    def cost(began: int) -> float:
        return (thread_nanoseconds(pid) - began) / BATCH / 1e3

    after = conn.execute(STATEMENTS["newest"]).fetchone()
    conn.execute(STATEMENTS["arrive"], {"messages": BATCH})
    conn.execute(STATEMENTS["arrive_marked"], {"after": after[0] if after else 0})

    began = thread_nanoseconds(pid)
    found = conn.execute(STATEMENTS["find_by_status"], {"messages": BATCH}, prepare=True).fetchall()
    per_row.find.append(cost(began))
    if len(found) != BATCH:
        raise RuntimeError(f"the finder by status found {len(found)} of {BATCH}")
    values = _arrays([row[0] for row in found])
    began = thread_nanoseconds(pid)
    conn.execute(STATEMENTS["mark"], values, prepare=True)
    per_row.remember.append(cost(began))

    began = thread_nanoseconds(pid)
    poll = finder.poll(here, Slice(frozenset(range(LANES))))
    per_batch.find.append(cost(began))
    if len(poll.rows) != BATCH:
        raise RuntimeError(f"the snapshot difference found {len(poll.rows)} of {BATCH}")
    positions = [row[0] for row in poll.rows]
    values = _arrays(positions) | {
        "batch": batch,
        "lo": positions[0],
        "hi": positions[-1],
        "snapshot": str(poll.snapshot),
    }
    began = thread_nanoseconds(pid)
    conn.execute(STATEMENTS["record"], values, prepare=True)
    per_batch.remember.append(cost(began))
    return poll.snapshot


def _arrays(positions: list[int]) -> dict[str, object]:
    joined = ",".join(map(str, positions))
    return {
        "positions": f"{{{joined}}}",
        "partitions": f"{{{','.join(['3'] * len(positions))}}}",
        "offsets": f"{{{joined}}}",
    }
