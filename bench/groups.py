"""Groups: how late a checker asks healthy producer groups beside sick ones, and how much one checker decides."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from bench.harness.cpu import Meter
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, percentile, ratio
from bench.harness.workers import Worker
from bench.load import messages
from bench.load.checker import FLOODS, HANGS, RAISES, SICK, check
from bench.plan import Bench
from outbox import Message, Outbox
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/groups.sql")
HEALTHY = tuple(f"healthy-{number:02d}" for number in range(97))
CHECK_AFTER = 1.0
"""Seconds after which half messages are due."""
RATE = 200.0
"""Half messages per second of the healthy groups in all."""
LINGERING = 500
"""Half messages of the group that hangs, and of the one that raises."""
LIMIT = 60.0
ALONE, BESIDE = "alone", "beside"
METHOD = (
    "One checker process, the service of `outbox checker run` with default options and askers that answer in the same "
    "process. 97 groups with {rate:.0f} half messages/s in all, each due {after:.0f} s after its birth and answered "
    "COMMIT. Delay: from the moment a check is due to the moment it is asked, by the one clock of the machine. Alone, "
    "and beside three more groups: one whose asker never returns, one whose asker raises ({lingering} half messages "
    "each), and one with {flood:,} that are all due and answered UNKNOWN. {seconds:.0f} s each in a new database, by "
    "turns, after 2 s; the ratio is taken within a round. Decisions: {decisions:,} half messages that are due when the "
    "checker begins, answered COMMIT at once; from the first decision to the last."
)


@dataclass(frozen=True, slots=True)
class Delays:
    """What a phase found."""

    seconds: list[float]
    """Sorted."""
    checker_cores: float
    postgres_cores: float
    flood_per_second: float
    """Checks of the group that floods."""


def run(bench: Bench) -> Section:
    """Compare the delays with and without sick groups, then let one checker decide as much as it can."""
    plan = bench.plan
    method = METHOD.format(
        rate=RATE,
        after=CHECK_AFTER,
        lingering=LINGERING,
        flood=plan.flood,
        seconds=plan.groups_seconds,
        decisions=plan.decisions,
    )
    section = Section("groups", "Checking a hundred producer groups", method)
    found: dict[str, list[Delays]] = {ALONE: [], BESIDE: []}
    for number in range(plan.groups_rounds):
        for name in (ALONE, BESIDE)[:: 1 if number % 2 == 0 else -1]:
            outcome = _phase(bench, SICK if name == BESIDE else ())
            found[name].append(outcome)
            middle = median(outcome.seconds) * 1e3
            bench.say(f"{name}: median {middle:.0f} ms, {outcome.flood_per_second:.0f} flood checks/s")
    section.tables.append(_delays(section, found))
    section.tables.append(_decisions(section, bench))
    return section


def _phase(bench: Bench, sick: Sequence[str]) -> Delays:
    """Run one checker beside groups that are sick."""
    sizes = {HANGS: LINGERING, RAISES: LINGERING, FLOODS: bench.plan.flood}
    with bench.servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        names = [*HEALTHY, *sick]
        conn.execute(STATEMENTS["register"], {"names": names, "check_after": CHECK_AFTER})
        for group in sick:
            conn.execute(STATEMENTS["linger"], {"group": group, "count": sizes[group]})
        conn.execute(STATEMENTS["settle"])
        with Worker(check, dsn, CHECK_AFTER) as checker, psycopg.connect(dsn) as producer:
            checker.receive(LIMIT)
            time.sleep(2.0)  # the sick groups are being asked
            meter = Meter({"checker": checker.pid, "postgres": bench.servers.pids["postgres"]})
            flood = _flood(conn)
            _prepare(producer, bench.plan.groups_seconds)
            cores, flood = meter.cores(), _flood(conn) - flood
            _wait_decided(conn)
            checker.send("stop")
            delays = array("d", checker.receive(LIMIT))
    return Delays(sorted(delays), cores["checker"], cores["postgres"], flood / bench.plan.groups_seconds)


def _prepare(producer: psycopg.Connection, seconds: float) -> None:
    """Write half messages of the healthy groups at set times."""
    outboxes = [Outbox(group) for group in HEALTHY]
    began = time.monotonic()
    for number in range(int(seconds * RATE)):
        if (pause := began + number / RATE - time.monotonic()) > 0:
            time.sleep(pause)
        message = Message("bench", messages.key(number), messages.body(number))
        outboxes[number * 31 % len(outboxes)].prepare(producer, message)
        producer.commit()


def _wait_decided(conn: psycopg.Connection) -> None:
    deadline = time.monotonic() + LIMIT
    while _number(conn, "undecided", names=list(HEALTHY)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"half messages of healthy groups were not decided within {LIMIT:.0f} s")
        time.sleep(0.05)


def _flood(conn: psycopg.Connection) -> int:
    return _number(conn, "asked", group=FLOODS)


def _number(conn: psycopg.Connection, name: str, **values: object) -> int:
    row = conn.execute(STATEMENTS[name], values).fetchone()
    return int(row[0]) if row else 0


def _delays(section: Section, found: dict[str, list[Delays]]) -> Table:
    columns = ["", "median", "p95", "p99", "checker, cores", "PostgreSQL, cores", "flood checks/s"]
    table = Table("Milliseconds from due to asked, healthy groups", columns)
    shares: dict[str, float] = {}
    quantiles = {"median": 50, "p95": 95, "p99": 99}
    for name, rounds in found.items():
        cells = []
        for title, percent in quantiles.items():
            values = [percentile(each.seconds, percent) * 1e3 for each in rounds]
            alone = [percentile(each.seconds, percent) * 1e3 for each in found[ALONE]]
            shares[title] = ratio(values, alone)
            cells.append(f"{median(values):,.0f}" + ("" if name == ALONE else f" (× {shares[title]:.2f})"))
            section.figures[f"{name}, {title}"] = {"ms": values, "ratio": shares[title]}
        cells.append(f"{median(each.checker_cores for each in rounds):.2f}")
        cells.append(f"{median(each.postgres_cores for each in rounds):.2f}")
        cells.append(f"{median(each.flood_per_second for each in rounds):,.0f}")
        table.rows.append([f"97 groups {name}" + ("" if name == ALONE else " three sick ones"), *cells])
    for title in quantiles:
        section.floors.append(
            Floor(f"check delay beside sick groups, {title}", shares[title], 1.2, "× alone")
        )
    return table


def _decisions(section: Section, bench: Bench) -> Table:
    columns = ["", "decisions/s", "checker CPU µs each", "PostgreSQL CPU µs each"]
    table = Table("One checker process, answers at once", columns)
    for groups in (1, 16):
        names = list(HEALTHY[:groups])
        with bench.servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(STATEMENTS["register"], {"names": names, "check_after": CHECK_AFTER})
            for group in names:
                conn.execute(STATEMENTS["linger"], {"group": group, "count": bench.plan.decisions // groups})
            conn.execute(STATEMENTS["settle"])
            with Worker(check, dsn, CHECK_AFTER) as checker:
                checker.receive(LIMIT)
                meter = Meter({"checker": checker.pid, "postgres": bench.servers.pids["postgres"]})
                _wait_decided(conn)
                used = meter.seconds()
                checker.send("stop")
                checker.receive(LIMIT)
            count, seconds = conn.execute(STATEMENTS["decided"]).fetchone() or (0, 0.0)
        rate = count / seconds
        costs = {side: used[side] / count * 1e6 for side in ("checker", "postgres")}
        section.figures[f"decisions, {groups} groups"] = {"per_second": rate, "cpu_us": costs}
        title = f"{groups} group" + ("s" if groups > 1 else "")
        table.rows.append([title, f"{rate:,.0f}", *(f"{cost:.0f}" for cost in costs.values())])
        bench.say(f"{title}: {rate:,.0f} decisions/s")
    return table
