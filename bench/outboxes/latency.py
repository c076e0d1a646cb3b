"""How late a side is, from before the commit of a business transaction to a stock consumer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from bench.latency import Load, Missing, measure
from bench.load.snapshot import held_snapshot
from bench.outboxes.drain import publish_first
from bench.outboxes.sides import Side
from bench.plan import PARTITIONS, Bench

AFTERWARDS = 20.0
"""Seconds that a side has to publish what is left when the last transaction has ended."""


def latency(bench: Bench, side: Side, rate: int, *, held: bool) -> dict[str, Any]:
    """Measure a side at so many transactions per second.

    Returns:
        What `bench.latency.measure` returns; or the number of messages as `count`, and as `missing` of those that
        reached no consumer in time.
    """

    def publisher(stack: ExitStack, bench: Bench, dsn: str, topic: str) -> dict[str, int]:
        side.prepare(dsn)
        stack.callback(side.release, dsn)
        first = bench.servers.topic(PARTITIONS)
        if held:
            stack.enter_context(held_snapshot(dsn))
        running = stack.enter_context(side.running(bench, dsn, [first, topic]))
        publish_first(bench, side, dsn, first, [running])
        return {"publisher": running.pid}

    load = Load(rate, bench.plan.compared_seconds, bench.plan.compared_warm_up, AFTERWARDS)
    try:
        return measure(bench, load, side.way, publisher)
    except Missing as error:
        return {"missing": error.missing, "count": error.count}
