"""What a side leaves of the business transactions of clients that make one after the other while it publishes."""

from __future__ import annotations

from contextlib import ExitStack

import psycopg

from bench.load import pgbench
from bench.load.snapshot import held_snapshot
from bench.outboxes.drain import publish_first
from bench.outboxes.sides import Side
from bench.plan import PARTITIONS, Bench
from bench.send import STATEMENTS

BUSINESS = ("update", "insert")
"""The transaction of the benchmark `send` that its floor speaks of."""


def kept(bench: Bench, side: Side, *, held: bool) -> dict[str, float]:
    """Return transactions per second without messages, with them, and the share."""
    first, topic = (bench.servers.topic(PARTITIONS) for _ in range(2))
    with side.prepared(bench) as dsn, ExitStack() as stack:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(STATEMENTS["accounts"], {"accounts": bench.plan.accounts})
            for name in ("accounts_key", "orders", "settle"):
                conn.execute(STATEMENTS[name])
        if held:
            stack.enter_context(held_snapshot(dsn))
        _run(bench, side, dsn, topic, seconds=1, sends=False)  # so that both find warm pages
        bench.servers.settle()
        alone = _run(bench, side, dsn, topic, seconds=bench.plan.compared_pgbench_seconds, sends=False)
        publisher = stack.enter_context(side.running(bench, dsn, [first, topic]))
        publish_first(bench, side, dsn, first, [publisher])
        bench.servers.settle()
        with_messages = _run(bench, side, dsn, topic, seconds=bench.plan.compared_pgbench_seconds, sends=True)
        publisher.check()
    return {"alone": alone, "with": with_messages, "share": with_messages / alone}


def _run(bench: Bench, side: Side, dsn: str, topic: str, *, seconds: int, sends: bool) -> float:
    return pgbench.run(
        bench.servers,
        dsn,
        ["BEGIN", *(STATEMENTS[name] for name in BUSINESS), *([side.send_text] if sends else []), "END"],
        settings=[rf"\set account random(1, {bench.plan.accounts})", r"\set amount random(1, 1000)"],
        variables={**side.variables, "topic": topic},
        clients=bench.plan.compared_clients,
        seconds=seconds,
    ).per_second
