"""How fast a side publishes a backlog, by the times at which the broker appended the records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import psycopg

from bench.harness.cpu import Meter
from bench.harness.topics import append_times, reader, record_count
from bench.load.backlog import fill
from bench.load.snapshot import held_snapshot
from bench.outboxes.sides import Publishing, Side
from bench.plan import PARTITIONS, Bench

START_LIMIT = 120.0
"""Seconds after which a side has published nothing."""


def drain(bench: Bench, side: Side, *, held: bool) -> dict[str, float]:
    """Let a side publish a backlog, or what it can in the plan's time; return rates and CPU per message in µs.

    Args:
        bench: servers and plan.
        side: what publishes.
        held: whether a snapshot is held open since before the backlog was written.
    """
    messages = bench.plan.backlog
    topic = bench.servers.topic(PARTITIONS, message_timestamp_type="LogAppendTime")
    with side.prepared(bench) as dsn:
        with ExitStack() as stack:
            if held:
                stack.enter_context(held_snapshot(dsn))
            if side.is_filled_while_running:
                publishers = stack.enter_context(side.draining(bench, dsn, [topic]))
                publish_first(bench, side, dsn, topic, publishers)
                writer = stack.enter_context(psycopg.connect(dsn))
                bench.say(f"{side.name}: writing {messages:,} messages")
                writer.execute(side.fill, {"topic": topic, "first": 1, "last": messages})
                bench.servers.settle()
                meter = Meter(bench.servers.pids | _pids(publishers))
                writer.commit()
            else:
                with side.draining(bench, dsn, [topic]) as publishers:
                    publish_first(bench, side, dsn, topic, publishers)
                    time.sleep(1.5)  # each notes how far it is: Connect once a second
                bench.say(f"{side.name}: writing {messages:,} messages")
                fill(dsn, topic, messages, statement=side.fill)
                bench.servers.settle()
                meter = Meter(bench.servers.pids)
                publishers = stack.enter_context(side.draining(bench, dsn, [topic]))
            there = wait_for(bench, topic, messages + 1, publishers, bench.plan.compared_drain_seconds)
            used = Meter(_pids(publishers)).totals() | meter.seconds()
            peak = sum(each.peak_bytes for each in publishers)
        with reader(bench.servers.bootstrap_servers) as consumer:
            count = record_count(consumer, topic, PARTITIONS)  # some end their work before they stop
            appended = append_times(consumer, topic, PARTITIONS, count)[1:]
    if count > messages + 1:
        raise RuntimeError(f"{side.name}: {count:,} records are there, {messages + 1:,} were sent")
    middle = len(appended) // 2
    publisher = sum(used.pop(name) for name in _pids(publishers))
    return {
        "messages": len(appended),
        "rate": (len(appended) - 1) / (appended[-1] - appended[0]),
        "warm_rate": (len(appended) - 1 - middle) / (appended[-1] - appended[middle]),
        "peak_mb": peak / 1e6,
        **{name: seconds / (there - 1) * 1e6 for name, seconds in (used | {"publisher": publisher}).items()},
    }


def publish_first(bench: Bench, side: Side, dsn: str, topic: str, publishers: Sequence[Publishing]) -> None:
    """Send a message, and wait until it is published.

    Raises:
        RuntimeError: it was not.
    """
    with psycopg.connect(dsn) as conn:
        side.send(conn, topic)
    if wait_for(bench, topic, 1, publishers, 0) != 1:
        raise RuntimeError(f"{side.name}: more than one record is there, one was sent")


def wait_for(
    bench: Bench, topic: str, messages: int, publishers: Sequence[Publishing], seconds: float
) -> int:
    """Wait until a topic holds so many records, or until so long after more than the first; return how many there are.

    Raises:
        TimeoutError: nothing came.
    """
    start_by = time.monotonic() + START_LIMIT
    end_by = None
    with reader(bench.servers.bootstrap_servers) as consumer:
        while (there := record_count(consumer, topic, PARTITIONS)) < messages:
            for publisher in publishers:
                publisher.check()
            now = time.monotonic()
            if end_by is None and there > 1:
                end_by = now + seconds
            if end_by is not None and now > end_by:
                break
            if end_by is None and now > start_by:
                raise TimeoutError(f"{there:,} of {messages:,} records are there after {START_LIMIT:.0f} s")
            time.sleep(0.1)
    return there


def _pids(publishers: Sequence[Publishing]) -> dict[str, int]:
    return {f"publisher{number}": each.pid for number, each in enumerate(publishers)}
