"""Half: what a half message costs from `prepare` to its decision, next to plain `send` and to one plain insert."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from bench.harness.cpu import Meter
from bench.harness.report import Section, Table
from bench.harness.statistics import median, ratio
from bench.harness.workers import Worker
from bench.load import messages, pgbench
from bench.load.halves import THREADS, Done, Job, Order, work
from bench.load.sql import filling, inserting
from bench.plan import Bench
from bench.send import STATEMENTS, VARIABLES
from outbox.operations.rows import load_rows
from outbox.statements import load

PROCESSES = 4
LIMIT = 60.0
INSERT, SEND = "insert", "send"
VARIANTS = {
    INSERT: "one plain INSERT",
    SEND: "local writes + send, one transaction",
    "prepare": "half with the first write, commit with the last",
    "listener": "send_message_in_transaction (RocketMQ 4.x)",
}
METHOD = (
    "Local writes: UPDATE of one of {accounts:,} accounts and INSERT of an order. Each client makes one transaction "
    "after the other, fsync on, messages of {body} B with key, header and tag. Half with the first write: two "
    "transactions, `prepare` in the first, `commit` in the second. RocketMQ 4.x: the half message in a transaction of "
    "its own, then local writes and decision in a second, under the half message's lock. Python: the library in up to "
    "{processes} processes of up to {threads} threads, sessions warm; SQL: the library's statements by pgbench, in new "
    "sessions. The rate counts messages, not transactions (of the plain INSERT: rows). Rounds of {seconds:.1f} s per "
    "cell, interleaved; in brackets the median of the ratios to send within a round."
)
Found = dict[tuple[str, int], list[pgbench.Outcome]]


def run(bench: Bench) -> Section:
    """Measure all variants with each number of clients, through the library and by pgbench."""
    plan = bench.plan
    method = METHOD.format(
        accounts=plan.accounts,
        body=len(messages.body(0)),
        processes=PROCESSES,
        threads=THREADS,
        seconds=plan.half_seconds,
    )
    section = Section("half", "What a half message costs", method)
    python: Found = {}
    sql: Found = {}
    client: dict[tuple[str, int], list[float]] = {}
    with bench.servers.database() as dsn, _workers(bench, dsn) as workers:
        for variant in VARIANTS:  # every thread of every process: sessions plan, caches fill
            _python(bench, workers, variant, PROCESSES * THREADS, plan.half_seconds)
        for number in range(plan.half_rounds):
            bench.servers.settle()
            turn = number % len(VARIANTS)
            names = [*VARIANTS][turn:] + [*VARIANTS][:turn]
            for clients in plan.threads:
                for name in names:
                    outcome, used = _python(bench, workers, name, clients, plan.half_seconds)
                    python.setdefault((name, clients), []).append(outcome)
                    client.setdefault((name, clients), []).append(used)
            for clients in plan.threads[:2]:
                for name in names:
                    sql.setdefault((name, clients), []).append(_pgbench(bench, dsn, name, clients))
            rates = {name: round(python[name, plan.threads[-1]][-1].per_second) for name in VARIANTS}
            bench.say(f"round {number + 1} of {plan.half_rounds}, {plan.threads[-1]} clients: {rates}")
    section.tables.append(_table(section, "Python", python, plan.threads, client))
    section.tables.append(_table(section, "SQL by pgbench", sql, plan.threads[:2], {}))
    return section


@contextmanager
def _workers(bench: Bench, dsn: str) -> Iterator[list[Worker]]:
    """Client processes, ready, and the tables they write to."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(STATEMENTS["accounts"], {"accounts": bench.plan.accounts})
        for name in ("accounts_key", "orders", "settle"):
            conn.execute(STATEMENTS[name])
    with ExitStack() as stack:
        jobs = [Job(dsn, bench.plan.accounts, index) for index in range(PROCESSES)]
        workers = [stack.enter_context(Worker(work, job)) for job in jobs]
        for worker in workers:
            worker.receive(LIMIT)
        yield workers


def _python(
    bench: Bench, workers: list[Worker], name: str, clients: int, seconds: float
) -> tuple[pgbench.Outcome, float]:
    """Let the clients work; the second number is their CPU µs per message."""
    busy = workers[: min(clients, len(workers))]
    meter = Meter({"postgres": bench.servers.pids["postgres"]})
    for worker in busy:
        worker.send(Order(name, clients // len(busy), seconds))
    done: list[Done] = [worker.receive(seconds + LIMIT) for worker in busy]
    used = meter.seconds()["postgres"]
    count = sum(each.transactions for each in done)
    rate = count / max(each.seconds for each in done)
    return pgbench.Outcome(rate, used / count * 1e6), sum(each.cpu for each in done) / count * 1e6


def _pgbench(bench: Bench, dsn: str, name: str, clients: int) -> pgbench.Outcome:
    return pgbench.run(
        bench.servers,
        dsn,
        _script(name),
        settings=[
            rf"\set account random(1, {bench.plan.accounts})",
            r"\set amount random(1, 1000)",
            r"\set lane random(0, 7)",
        ],
        variables=VARIABLES,
        clients=clients,
        seconds=max(round(bench.plan.half_seconds), 1),
    )


def _script(name: str) -> list[str]:
    """The statements of one variant, the library's own; the lane is any, which costs the same."""
    update, insert = STATEMENTS["update"], STATEMENTS["insert"]
    columns = ("topic", "body", "headers", "tags")
    values = {column: f":{column}" for column in columns}
    values |= {"key": ":account", "index_keys": ":no_tags", "producer_group": ":group", "lane": ":lane"}
    send = inserting(load_rows("send.sql")["send"], values)
    half = inserting(load_rows("prepare.sql")["prepare"], values) + pgbench.INTO_VARIABLES
    decisions = load("decide.sql")
    named = {1: ":id", 2: ":message_id"}
    join = filling(decisions["join"], named)
    decide = filling(decisions["decide"], {**named, 3: "'COMMITTED'", 4: "NULL"})
    scripts = {
        INSERT: [insert],
        SEND: [update, insert, send],
        "prepare": [insert, half, "END", "BEGIN", update, decide],
        "listener": [half, "END", "BEGIN", join, update, insert, decide],
    }
    return ["BEGIN", *scripts[name], "END"]


def _table(
    section: Section,
    by: str,
    found: Found,
    counts: tuple[int, ...],
    client: dict[tuple[str, int], list[float]],
) -> Table:
    """Rates and shares, and the CPU of both sides with the most clients."""
    headings = [f"{count} client" + ("s" if count > 1 else "") for count in counts]
    columns = ["", *headings, f"PostgreSQL CPU µs each, {headings[-1]}"]
    if client:
        columns.append("client CPU µs each")
    table = Table(f"Messages per second, {by} (ratio to send)", columns)
    for name, title in VARIANTS.items():
        cells = []
        for count in counts:
            rate = [each.per_second for each in found[name, count]]
            share = ratio(rate, [each.per_second for each in found[SEND, count]])
            used = [each.postgres_us for each in found[name, count]]
            figures = {"rate": rate, "to_send": share, "postgres_us": used}
            section.figures[f"{by}, {name}, {count} clients"] = figures
            if client:
                figures["client_us"] = client[name, count]
            cells.append(f"{median(rate):,.0f}" + ("" if name == SEND else f" ({share:.2f})"))
        cells.append(f"{median(each.postgres_us for each in found[name, counts[-1]]):.0f}")
        if client:
            cells.append(f"{median(client[name, counts[-1]]):.0f}")
        table.rows.append([title, *cells])
    return table
