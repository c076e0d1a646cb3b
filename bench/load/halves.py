"""Clients of half messages in Python: processes of threads, each making one transaction after another."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psycopg

from bench.load import messages
from outbox import Message, Outbox
from outbox.checking import LocalTransactionState
from outbox.rocketmq import LocalMessage, TransactionMQProducer
from outbox.statements import Statements

WRITES = Statements("bench/sql/half.sql")
HEADERS = {"source": "bench"}
THREADS = 16
"""Threads of a process at most."""


@dataclass(frozen=True, slots=True)
class Job:
    """Where the clients work; `index` tells the processes apart."""

    dsn: str
    accounts: int
    index: int


class Order(NamedTuple):
    """What a process is told to do: a variant, by so many threads, for so many seconds."""

    variant: str
    threads: int
    seconds: float


class Done(NamedTuple):
    """What it did."""

    transactions: int
    seconds: float
    cpu: float
    """CPU seconds of the process."""


def work(pipe: Connection, job: Job) -> None:
    """Job of a worker: say "ready", then answer each `Order` with what was `Done`, until the pipe is closed."""
    with TransactionMQProducer(
        "bench-listener", job.dsn, listener=Listener(job.accounts), connections=THREADS
    ) as producer:
        clients = Clients(job, producer)
        pipe.send("ready")
        while True:
            pipe.send(clients.run(pipe.recv()))


class Listener:
    """The local transaction, as RocketMQ's users write it."""

    def __init__(self, accounts: int) -> None:
        self._accounts = accounts

    def execute_local_transaction(self, msg: LocalMessage, arg: Any) -> LocalTransactionState:
        write_account(msg.connection, self._accounts)
        write_order(msg.connection, self._accounts)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, msg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


class Clients:
    """The transactions; sessions are kept for all rounds, as a pool keeps them."""

    def __init__(self, job: Job, producer: TransactionMQProducer) -> None:
        self._job, self._producer = job, producer
        self._outbox = Outbox("bench-half")
        self._sessions: list[psycopg.Connection[Any]] = []
        self._threads = ThreadPoolExecutor(THREADS)

    def run(self, order: Order) -> Done:
        """Make transactions of one variant."""
        while len(self._sessions) < order.threads:
            self._sessions.append(psycopg.connect(self._job.dsn))
        make: Callable[[psycopg.Connection[Any], Message], None] = getattr(self, order.variant)
        began, cpu = time.monotonic(), time.process_time()

        def repeat(place: int) -> int:
            session, count = self._sessions[place], 0
            while time.monotonic() < began + order.seconds:
                number = (count * THREADS + place) * 64 + self._job.index
                make(
                    session,
                    Message(
                        "bench",
                        messages.key(number),
                        messages.body(number),
                        headers=HEADERS,
                        tags=["created"],
                    ),
                )
                count += 1
            return count

        transactions = sum(self._threads.map(repeat, range(order.threads)))
        return Done(transactions, time.monotonic() - began, time.process_time() - cpu)

    def insert(self, session: psycopg.Connection[Any], message: Message) -> None:
        """One plain INSERT."""
        write_order(session, self._job.accounts)
        session.commit()

    def send(self, session: psycopg.Connection[Any], message: Message) -> None:
        """Local writes and a message in one transaction."""
        write_account(session, self._job.accounts)
        write_order(session, self._job.accounts)
        self._outbox.send(session, message)
        session.commit()

    def prepare(self, session: psycopg.Connection[Any], message: Message) -> None:
        """The half message with the first local write, the decision with the last."""
        write_order(session, self._job.accounts)
        half = self._outbox.prepare(session, message)
        session.commit()
        write_account(session, self._job.accounts)
        self._outbox.commit(session, half)
        session.commit()

    def listener(self, session: psycopg.Connection[Any], message: Message) -> None:
        """RocketMQ 4.x's model, on the producer's own sessions."""
        result = self._producer.send_message_in_transaction(message)
        if result.local_transaction_state is not LocalTransactionState.COMMIT_MESSAGE:
            raise RuntimeError(f"not committed: {result}")


def write_account(session: psycopg.Connection[Any], accounts: int) -> None:
    """Business write: an account."""
    session.execute(WRITES["update"], (random.randint(1, 1000), random.randint(1, accounts)), prepare=True)


def write_order(session: psycopg.Connection[Any], accounts: int) -> None:
    """Business write: an order."""
    session.execute(WRITES["insert"], (random.randint(1, accounts), random.randint(1, 1000)), prepare=True)
