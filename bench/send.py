"""Send: what the outbox costs the business transaction, next to a bare heap insert of the same data."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio
from bench.load import messages, pgbench
from bench.load.sql import inserting
from bench.plan import Bench
from outbox.operations.rows import load_rows
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/send.sql")
SEND = load_rows("send.sql")["send"]
VALUES = {
    "topic": ":topic", "key": ":account", "body": ":body", "headers": ":headers", "tags": ":tags",
    "index_keys": ":no_tags", "producer_group": ":group", "lane": "(:account & 7)",
}  # fmt: skip
"""The columns of the library's statement that carry something; the others are NULL."""
VARIABLES = {
    "topic": "bench",
    "body": messages.body(0).decode(),
    "headers": '{"source": "bench"}',
    "tags": "{created}",
    "no_tags": "{}",
    "group": "bench",
}
BUSINESS = {
    "UPDATE of an account + INSERT of an order": ("update", "insert"),
    "INSERT of an order": ("insert",),
}
"""The business transaction that the floor speaks of, and the hard case: one that does next to nothing itself."""
ALONE, OUTBOX, BARE = "business alone", "+ outbox", "+ bare heap"
VARIANTS = (ALONE, OUTBOX, BARE)
METHOD = (
    "pgbench, prepared statements, fsync on; every transaction is BEGIN, the business writes, the message if any, "
    "COMMIT. The account is one of {accounts:,} at random. Outbox: the library's own INSERT with a body of {body} B, "
    "key, headers, tag and producer group. Bare heap: the same values into a table without defaults, indexes or "
    "trigger; it is what any outbox in a table costs at least. Rounds of {seconds} s per cell, interleaved; a share is "
    "the median over the rounds of the share within a round. How long a flush takes decides much of it: see the "
    "machine."
)


def run(bench: Bench) -> Section:
    """Measure all variants of both business transactions with each number of clients."""
    plan = bench.plan
    method = METHOD.format(accounts=plan.accounts, body=len(VARIABLES["body"]), seconds=plan.pgbench_seconds)
    section = Section("send", "What send costs the business transaction", method)
    found: dict[tuple[str, str, int], list[pgbench.Outcome]] = {}
    with bench.servers.database() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(STATEMENTS["accounts"], {"accounts": plan.accounts})
        for name in ("accounts_key", "orders", "heap"):
            conn.execute(STATEMENTS[name])
        for writes in BUSINESS.values():
            for variant in VARIANTS:  # so that the first round finds warm pages
                _pgbench(bench, dsn, writes, variant, clients=min(plan.clients[-1], 4), seconds=1)
        for number in range(plan.rounds):
            conn.execute(STATEMENTS["settle"])
            bench.servers.settle()
            for clients in plan.clients:
                for business, writes in BUSINESS.items():
                    turn = number % len(VARIANTS)
                    for variant in (*VARIANTS[turn:], *VARIANTS[:turn]):
                        outcome = _pgbench(
                            bench, dsn, writes, variant, clients=clients, seconds=plan.pgbench_seconds
                        )
                        found.setdefault((business, variant, clients), []).append(outcome)
            bench.say(f"round {number + 1} of {plan.rounds}: {_last(found, plan.clients)}")
    for place, business in enumerate(BUSINESS):
        _report(bench, section, business, found, has_floor=place == 0)
    return section


def _pgbench(
    bench: Bench, dsn: str, writes: Sequence[str], variant: str, *, clients: int, seconds: int
) -> pgbench.Outcome:
    message = {ALONE: [], OUTBOX: [send_statement()], BARE: [STATEMENTS["bare"]]}[variant]
    return pgbench.run(
        bench.servers,
        dsn,
        ["BEGIN", *(STATEMENTS[name] for name in writes), *message, "END"],
        settings=[rf"\set account random(1, {bench.plan.accounts})", r"\set amount random(1, 1000)"],
        variables=VARIABLES,
        clients=clients,
        seconds=seconds,
    )


def _clients(count: int) -> str:
    return f"{count} client" + ("s" if count > 1 else "")


def send_statement() -> str:
    """The library's statement with pgbench's variables in place of its parameters."""
    return inserting(SEND, VALUES)


def _last(found: dict[tuple[str, str, int], list[pgbench.Outcome]], clients: Sequence[int]) -> str:
    business = next(iter(BUSINESS))
    tps = [found[business, variant, clients[-1]][-1].per_second for variant in VARIANTS]
    return f"{clients[-1]} clients: {' / '.join(f'{each:,.0f}' for each in tps)} tx/s"


def _report(
    bench: Bench,
    section: Section,
    business: str,
    found: dict[tuple[str, str, int], list[pgbench.Outcome]],
    *,
    has_floor: bool,
) -> None:
    clients = bench.plan.clients
    table = Table(
        f"Business transaction: {business}; transactions/s (share of business alone)",
        ["", *(_clients(count) for count in clients), f"PostgreSQL CPU µs each, {_clients(clients[-1])}"],
    )
    for variant in VARIANTS:
        cells = []
        for count in clients:
            tps = [one.per_second for one in found[business, variant, count]]
            alone = [one.per_second for one in found[business, ALONE, count]]
            share = ratio(tps, alone)
            section.figures[f"{business}, {variant}, {count} clients"] = {"tps": tps, "share": share}
            cells.append(f"{median(tps):,.0f}" + ("" if variant == ALONE else f" ({share:.2f})"))
            if has_floor and variant == OUTBOX and count == clients[-1]:
                what = f"business transactions kept at {count} clients"
                section.floors.append(Floor(what, share, 0.65, "of those without outbox", at_least=True))
        used = median(one.postgres_us for one in found[business, variant, clients[-1]])
        table.rows.append([variant, *cells, f"{used:.0f}"])
    section.tables.append(table)
