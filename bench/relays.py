"""Relays: the rate of 1, 2 and 4 shards, take-over after a death, delays and rate during restarts."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import mean
from typing import Any

import psycopg

from bench.harness.relays import WATCH, RelayProcess, leader_and_standbys, sharded_relays
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, percentile, spread
from bench.load.backlog import STATEMENTS as BACKLOG
from bench.plan import PARTITIONS, Bench
from outbox import Message, Outbox
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/relays.sql")
LIMIT = 120.0
LEASE_S = 10.0
"""The relays' default."""
KEYS = 64
PACE_S = 0.01
METHOD = (
    "Rate: relay processes that lead a shard of one database each; bursts of {burst:,} messages, "
    "each committed by one transaction; the messages by the time from the commit to the last publication row; rounds "
    "alternate, medians. The rest: two relays with default options, one of which stands by. Take-over: the leader is "
    "killed (SIGKILL), or stopped (SIGSTOP) so that its database session stays and its lease of 10 s runs out; the "
    "time until the standby has recorded messages, at 100 transactions/s. Rolling restart: each of two relays is "
    "replaced, the new one first, at the same load; "
    "delay from a message's INSERT to its publication row, next to the same time without restarts before it. Restarts "
    "in turn: each of two relays is ended by SIGTERM, and another is started only when it has ended, under {rate:,} "
    "messages/s in transactions of {batch}; messages by second of their publication rows, from the first SIGTERM until "
    "the second new relay has joined, next to the time before."
)


def run(bench: Bench) -> Section:
    """Measure rates, take-over and the rolling restart."""
    method = METHOD.format(
        burst=bench.plan.burst, rate=bench.plan.roll_rate, batch=int(bench.plan.roll_rate * PACE_S)
    )
    section = Section("relays", "Relays: shards, take-over and restarts", method)
    _rates(bench, section)
    _take_over(bench, section)
    _rolling_restart(bench, section)
    _restarts_in_turn(bench, section)
    return section


def _rates(bench: Bench, section: Section) -> None:
    rates: dict[int, list[float]] = {count: [] for count in bench.plan.relay_counts}
    for _ in range(bench.plan.relay_rounds):
        for count, found in rates.items():
            topic = bench.servers.topic(PARTITIONS)
            with (
                bench.servers.database() as dsn,
                _connect(dsn) as conn,
                sharded_relays(bench.servers, dsn, count),
            ):
                _burst(conn, topic, bench.plan.burst)  # caches and the broker are warm after it
                found.append(_burst(conn, topic, bench.plan.burst))
            bench.say(f"{count} shards: {found[-1]:,.0f} messages/s")
    first = median(rates[bench.plan.relay_counts[0]])
    section.tables.append(
        Table(
            "Messages per second",
            ["shards", "median", "of one relay's"],
            [
                [f"{count}", f"{median(found):,.0f} ({spread(found)})", f"{median(found) / first:.2f} ×"]
                for count, found in rates.items()
            ],
        )
    )
    section.figures["rates"] = {str(count): found for count, found in rates.items()}


def _take_over(bench: Bench, section: Section) -> None:
    found = {
        name: _taken_over(bench, number)
        for name, number in (("killed (SIGKILL)", signal.SIGKILL), ("stopped (SIGSTOP)", signal.SIGSTOP))
    }
    section.tables.append(
        Table(
            "Until another relay has recorded messages of the lanes",
            ["", "seconds"],
            [[name, f"{seconds:.2f} s"] for name, seconds in found.items()],
        )
    )
    section.figures["take_over_s"] = found
    section.floors += [
        Floor(f"take-over, {name}", seconds, LEASE_S + 3, "s") for name, seconds in found.items()
    ]


def _taken_over(bench: Bench, number: signal.Signals) -> float:
    topic = bench.servers.topic(PARTITIONS)
    with (
        bench.servers.database() as dsn,
        _connect(dsn) as conn,
        leader_and_standbys(bench.servers, dsn, 2) as relays,
        _traffic(dsn, topic),
    ):
        time.sleep(1.0)
        lost = relays[0]
        lanes, epoch = (_row(conn, name, {"pid": lost.pid})[0] for name in ("lanes_of", "epoch_of"))
        since = time.time()
        lost.signal(number)
        deadline = time.monotonic() + LIMIT
        values = {"epoch": epoch, "lanes": lanes, "since": since}
        while (taken := _row(conn, "taken_over", values)[0]) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no relay took lanes {lanes} over within {LIMIT:.0f} s")
            time.sleep(0.02)
        if number == signal.SIGSTOP:
            lost.signal(signal.SIGCONT)
    bench.say(f"{number.name}: taken over after {taken - since:.2f} s")
    return float(taken - since)


def _rolling_restart(bench: Bench, section: Section) -> None:
    topic = bench.servers.topic(PARTITIONS)
    with (
        bench.servers.database() as dsn,
        _connect(dsn) as conn,
        ExitStack() as stack,
    ):
        old = stack.enter_context(leader_and_standbys(bench.servers, dsn, 2))
        with _traffic(dsn, topic) as sent:
            time.sleep(1.0)
            since = time.time()
            time.sleep(bench.plan.roll_seconds)
            rolled = time.time()
            for each in old:
                new = stack.enter_context(RelayProcess(bench.servers, dsn))
                while not _row(conn, "has_joined", {"pid": new.pid})[0]:
                    new.check()
                    time.sleep(0.02)
                each.signal(signal.SIGTERM)
                while each.is_running:
                    time.sleep(0.02)
            time.sleep(1.0)
            until = time.time()
        _wait_recorded(conn, 1, sent())
        calm, rolling = (
            [delay for (delay,) in conn.execute(STATEMENTS["delays"], {"since": a, "until": b}).fetchall()]
            for a, b in ((since, rolled), (rolled, until))
        )
    percents = (50, 99, 100)
    rows: list[Sequence[str]] = [
        [name, f"{len(delays):,}", *(f"{percentile(delays, percent):.1f} ms" for percent in percents)]
        for name, delays in (("without restarts", calm), ("during the restarts", rolling))
    ]
    ratios = [percentile(rolling, percent) / percentile(calm, percent) for percent in percents]
    rows.append(["ratio", "", *(f"{ratio:.1f} ×" for ratio in ratios)])
    section.tables.append(
        Table(
            "Delay to the record while both relays are replaced",
            ["", "messages", "p50", "p99", "longest"],
            rows,
        )
    )
    section.figures["rolling_restart_ms"] = {
        name: [percentile(delays, percent) for percent in percents]
        for name, delays in (("calm", calm), ("rolling", rolling))
    }


def _restarts_in_turn(bench: Bench, section: Section) -> None:
    topic = bench.servers.topic(PARTITIONS)
    with bench.servers.database() as dsn, _connect(dsn) as conn, ExitStack() as stack:
        relays = stack.enter_context(leader_and_standbys(bench.servers, dsn, 2))
        with _batches(bench, dsn, topic) as sent:
            time.sleep(1.0)
            since = time.time()
            time.sleep(bench.plan.roll_seconds)
            rolled = time.time()
            for relay in relays:
                relay.stop()
                new = stack.enter_context(RelayProcess(bench.servers, dsn))
                while not _row(conn, "has_joined", {"pid": new.pid})[0]:
                    new.check()
                    time.sleep(0.02)
            seconds = max(math.ceil(time.time() - rolled), 1)
            time.sleep(max(rolled + seconds + 0.5 - time.time(), 0))
        _wait_recorded(conn, 1, sent())
        before, during = (
            [count for (count,) in conn.execute(STATEMENTS["recorded_between"], bounds).fetchall()]
            for bounds in (
                {"since": since, "seconds": int(bench.plan.roll_seconds)},
                {"since": rolled, "seconds": seconds},
            )
        )
    share = mean(during) / mean(before)
    rows: list[Sequence[str]] = [
        [name, f"{len(counts)}", f"{mean(counts):,.0f}", f"{min(counts):,}"]
        for name, counts in (("before the restarts", before), ("during the restarts", during))
    ]
    rows.append(["ratio", "", f"{share:.3f}", f"{min(during) / mean(before):.2f}"])
    section.tables.append(
        Table(
            "Published while both relays are restarted in turn",
            ["", "seconds", "messages/s", "slowest second"],
            rows,
        )
    )
    section.figures["restarts_in_turn"] = {"before": before, "during": during}
    what = "rate while two relays are restarted in turn"
    section.floors.append(Floor(what, share, 0.95, "of the rate before", at_least=True))


@contextmanager
def _batches(bench: Bench, dsn: str, topic: str) -> Iterator[Callable[[], int]]:
    """Send messages at the rate of the plan, a hundred transactions a second; yield what counts them."""
    size = int(bench.plan.roll_rate * PACE_S)

    def batches(stop: threading.Event) -> Iterator[int]:
        due, count = time.monotonic(), 0
        with _connect(dsn) as conn:
            while not stop.wait(max(due - time.monotonic(), 0)):
                conn.execute(BACKLOG["fill"], {"topic": topic, "first": count + 1, "last": count + size})
                count += size
                yield count
                due += PACE_S

    with _sending(batches) as sent:
        yield sent


@contextmanager
def _traffic(dsn: str, topic: str) -> Iterator[Callable[[], int]]:
    """Send one message per transaction, 100 a second, of keys in all lanes; yield what counts them."""

    def messages(stop: threading.Event) -> Iterator[int]:
        outbox, count = Outbox("bench"), 0
        with psycopg.connect(dsn) as conn:
            while not stop.wait(PACE_S):
                outbox.send(conn, Message(topic, key=f"k{count % KEYS}", body=b"{}"))
                conn.commit()
                count += 1
                yield count

    with _sending(messages) as sent:
        yield sent


@contextmanager
def _sending(messages: Callable[[threading.Event], Iterator[int]]) -> Iterator[Callable[[], int]]:
    """Send in a thread until the end of the block; yield what returns how many messages were committed."""
    stop = threading.Event()
    count = 0

    def send() -> None:
        nonlocal count
        for count in messages(stop):  # noqa: B007  (it is read by the function that is yielded)
            pass

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield lambda: count
    finally:
        stop.set()
        thread.join()


def _burst(conn: psycopg.Connection, topic: str, messages: int) -> float:
    """Commit messages by one transaction; return how many a second were recorded from then on."""
    newest = int(conn.execute(WATCH["newest"]).fetchone()[0])  # type: ignore[index]
    conn.execute(BACKLOG["fill"], {"topic": topic, "first": 1, "last": messages})
    began = time.time()
    return messages / (_wait_recorded(conn, newest + 1, messages) - began)


def _wait_recorded(conn: psycopg.Connection, first: int, messages: int) -> float:
    """Wait until so many messages are recorded from a position on; return when the last one was."""
    deadline = time.monotonic() + LIMIT
    while True:
        count, last = _row(conn, "recorded", {"first": first})
        if count >= messages:
            return float(last)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} of {messages} messages were recorded within {LIMIT:.0f} s")
        time.sleep(0.02)


def _connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)


def _row(conn: psycopg.Connection, name: str, values: dict[str, Any] | None = None) -> tuple[Any, ...]:
    row = conn.execute(STATEMENTS[name], values).fetchone()
    if row is None:
        raise RuntimeError(f"statement {name!r} found nothing")
    return tuple(row)
