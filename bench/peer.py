"""Peer: transactional messages per second next to Apache RocketMQ, with the same business transaction and client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psycopg

from bench.harness.cpu import Meter
from bench.harness.jars import fetched
from bench.harness.relays import WATCH, Recorded, RelayProcess
from bench.harness.report import Floor, Section, Table
from bench.harness.statistics import median, ratio
from bench.load import messages
from bench.load.sql import filling, inserting
from bench.plan import PARTITIONS, Bench
from bench.rocketmq.client import Client
from bench.rocketmq.java import compiled
from bench.rocketmq.servers import running
from outbox.operations.rows import load_rows
from outbox.statements import Statements, load

BUSINESS = Statements("bench/sql/send.sql")
WRITES = Statements("bench/sql/half.sql")
VERSION = "5.5.0"
DRIVER = "pgjdbc 42.7.14"
LIMIT = 60.0
PEER = "rocketmq"
VARIANTS = {
    "business": "business transaction alone, no message",
    PEER: f"RocketMQ {VERSION}, listener makes the transaction",
    "listener": "outbox: half message, then the transaction decides it",
    "prepare": "outbox: half with the first write, commit with the last",
    "send": "outbox: send in the transaction",
}
"""In the order of the tables; by turns in the measurement."""
FLOORS = {1: 1.4, 16: 0.9, 64: 0.8}
"""Times RocketMQ's rate that `COMPARED` must at least have, by threads."""
COMPARED = "listener"
"""The variant that does what RocketMQ's listener does: the message is stored before the local transaction begins."""
METHOD = (
    "One Java process ({driver}, prepared statements) is the client of both sides; each thread has its own database "
    "session and makes one transaction after the other: UPDATE of one of {accounts:,} accounts, INSERT of an order, "
    "COMMIT, and one message of {body} B with key, tag and header. RocketMQ: TransactionMQProducer, the business "
    "transaction in executeLocalTransaction; one broker, SYNC_FLUSH, heap 1 GiB, {partitions} queues. Outbox: the "
    "library's own statements, fsync on; its relay runs with default options and publishes to Kafka meanwhile. Rate: "
    "messages by the time from the first transaction's begin until consumers could read the last message (RocketMQ: in "
    "the queues' offsets; outbox: acknowledged by Kafka and recorded). Code and sessions are warm. Rounds of "
    "{seconds:.1f} s per cell, interleaved; × is the median over the rounds of the ratio to RocketMQ within a round. "
    "CPU: all processes of a side, Kafka and the relay included."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell of one round."""

    per_second: float
    wait: float
    """Seconds from the last transaction's end until consumers could read all."""
    cpu_us: dict[str, float]
    """CPU µs per transaction, by process."""


def run(bench: Bench) -> Section:
    """Measure all variants with each number of threads."""
    plan = bench.plan
    method = METHOD.format(
        driver=DRIVER,
        accounts=plan.accounts,
        body=len(messages.body(0)),
        partitions=PARTITIONS,
        seconds=plan.peer_round_seconds,
    )
    section = Section("peer", "Transactional messages next to Apache RocketMQ", method)
    found: dict[tuple[str, int], list[Outcome]] = {}
    names = list(VARIANTS)
    with _world(bench) as world:
        for name in names:  # Java compiles what it runs often, each session plans its statements
            longer = 3 if name == PEER else 1  # the broker is Java, too
            world.measure(name, plan.threads[-1], plan.peer_warm_up * longer)
        for number in range(plan.peer_rounds):
            bench.servers.settle()
            turn = number % len(names)
            for threads in plan.threads:
                for name in (*names[turn:], *names[:turn]):
                    outcome = world.measure(name, threads, plan.peer_round_seconds)
                    found.setdefault((name, threads), []).append(outcome)
                rates = {name: round(found[name, threads][-1].per_second) for name in names}
                bench.say(f"round {number + 1} of {plan.peer_rounds}, {threads} threads: {rates}")
    _report(section, found, plan.threads)
    return section


@contextmanager
def _world(bench: Bench) -> Iterator[_World]:
    """Everything that the variants need, running."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(dir=bench.servers.directory, prefix="peer-")))
        java = compiled(
            bench.servers.kafka.program,
            fetched("bench.rocketmq", f"rocketmq-{VERSION}", bench.say),
            directory / "classes",
        )
        peer = stack.enter_context(running(java, directory))
        bench.say(f"RocketMQ {VERSION} runs on {peer.namesrv}")
        dsn = stack.enter_context(bench.servers.database())
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute(BUSINESS["accounts"], {"accounts": bench.plan.accounts})
        for name in ("accounts_key", "orders", "settle"):
            conn.execute(BUSINESS[name])
        topic = bench.servers.topic(PARTITIONS)
        relay = stack.enter_context(RelayProcess(bench.servers, dsn))
        settings = _settings(bench, dsn, topic, peer.namesrv)
        client = stack.enter_context(Client(java, settings, directory))
        pids = {**bench.servers.pids, **peer.pids, "relay": relay.pid, "client": client.pid}
        yield _World(client, relay, conn, pids)


class _World:
    """The client and what it is measured with."""

    def __init__(
        self, client: Client, relay: RelayProcess, conn: psycopg.Connection, pids: dict[str, int]
    ) -> None:
        self._client, self._relay, self._conn, self._pids = client, relay, conn, pids

    def measure(self, name: str, threads: int, seconds: float) -> Outcome:
        """Let the client make transactions, and wait until all their messages can be read."""
        before, recorded = self._newest(), Recorded(self._conn)
        known = recorded.messages
        meter = Meter(self._pids)
        answer = self._client.run(name, threads, seconds)
        visible = answer.visible
        if name not in ("business", PEER):
            recorded.wait(self._relay, known + answer.transactions, LIMIT)
            visible = self._published(before, answer.transactions) - answer.began
        meter.wait_for_children()
        used = meter.seconds()
        return Outcome(
            answer.transactions / visible,
            visible - answer.seconds,
            {process: spent / answer.transactions * 1e6 for process, spent in used.items()},
        )

    def _published(self, before: int, transactions: int) -> float:
        """When the last of so many messages was recorded as published, in seconds since 1970."""
        row = self._conn.execute(WATCH["drained"], {"first": before + 1, "since": 0.0}).fetchone()
        if row is None or row[1] != transactions:
            raise RuntimeError(f"of {transactions} committed messages this was published: {row}")
        return float(row[4])

    def _newest(self) -> int:
        row = self._conn.execute(WATCH["newest"]).fetchone()
        return int(row[0]) if row else 0


def _settings(bench: Bench, dsn: str, topic: str, namesrv: str) -> dict[str, str]:
    parts = urlsplit(dsn)
    return {
        "jdbc": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "user": parts.username or "",
        "password": parts.password or "",
        "namesrv": namesrv,
        "topic": topic,
        "queues": str(PARTITIONS),
        "group": "bench",
        "tag": "created",
        "headers": '{"source": "bench"}',
        "body": messages.body(0).decode(),
        "accounts": str(bench.plan.accounts),
        "update": WRITES["update"].replace("%s", "?"),
        "insert": WRITES["insert"].replace("%s", "?"),
        **_statements(),
    }


def _statements() -> dict[str, str]:
    """The library's statements in JDBC's form."""
    send, prepare = load_rows("send.sql")["send"], load_rows("prepare.sql")["prepare"]
    decisions = load("decide.sql")
    message = dict.fromkeys(("topic", "key", "body", "headers", "tags", "producer_group", "lane"), "?")
    message["index_keys"] = "'{}'"
    named = {1: "?", 2: "?"}
    return {
        name: re.sub(r"\s+", " ", text)
        for name, text in {
            "send": inserting(send, message),
            "prepare": inserting(prepare, message),
            "join": filling(decisions["join"], named),
            "decide": filling(decisions["decide"], {**named, 3: "'COMMITTED'", 4: "NULL"}),
        }.items()
    }


def _report(section: Section, found: dict[tuple[str, int], list[Outcome]], threads: tuple[int, ...]) -> None:
    counts = [f"{count} thread" + ("s" if count > 1 else "") for count in threads]
    rates = Table("Messages per second (× RocketMQ)", ["", *counts])
    sides = ("client", "postgres", "relay", "broker")
    columns = ["", *(f"{side} CPU µs" for side in sides), "in all", "wait for the last, ms"]
    costs = Table(f"What one transaction takes, {counts[-1]}", columns)
    for name, title in VARIANTS.items():
        cells = []
        for count in threads:
            rate = [each.per_second for each in found[name, count]]
            times = ratio(rate, [each.per_second for each in found[PEER, count]])
            cells.append(f"{median(rate):,.0f}" + ("" if name == PEER else f" ({times:.2f})"))
            section.figures[f"{name}, {count} threads"] = {
                "rate": rate,
                "times": times,
                "cpu_us": [each.cpu_us for each in found[name, count]],
            }
            if name == COMPARED:
                what = f"half + transaction + decision, {count} threads"
                limit = FLOORS.get(count, FLOORS[16])
                section.floors.append(Floor(what, times, limit, f"× RocketMQ {VERSION}", at_least=True))
        rates.rows.append([title, *cells])
        costs.rows.append([title, *_cost(found[name, threads[-1]])])
    section.tables += [rates, costs]


def _cost(outcomes: list[Outcome]) -> list[str]:
    used = {process: median(each.cpu_us[process] for each in outcomes) for process in outcomes[0].cpu_us}
    broker = sum(used[name] for name in ("kafka", "namesrv", PEER))
    shares = [used["client"], used["postgres"], used["relay"], broker]
    wait = median(each.wait for each in outcomes) * 1e3
    return [*(f"{share:.0f}" for share in shares), f"{sum(shares):.0f}", f"{wait:.0f}"]
