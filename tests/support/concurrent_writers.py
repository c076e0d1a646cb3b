"""Writers for tests: concurrent business transactions that send, roll back, use savepoints, and stay open."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import psycopg

from outbox.statements import Statements
from tests.support.waiting import wait_until

SQL = Statements("tests.support/concurrent_writers.sql")
TIMEOUT_MS = 20_000
POISON_BYTES = 10_000


class Writers:
    """Threads that write until they are stopped; servers may be killed under them.

    What they committed is `committed()`: read from the business table, because after a crash only PostgreSQL
    knows which transactions it kept.

    Args:
        asynchronous: share of transactions that commit with synchronous_commit = off.
        pace: average seconds between two transactions of a thread.
        others: further topics; the keys are shared out among all of them, and a transaction may write to several.
        poison: share of messages that are larger than their topic takes while its limit is `POISON_BYTES`.
    """

    def __init__(
        self,
        dsn: str,
        topic: str,
        *,
        seed: int,
        threads: int = 4,
        keys: int = 100,
        halves: int = 20,
        asynchronous: float = 0.7,
        pace: float = 0.002,
        others: Sequence[str] = (),
        poison: float = 0.0,
    ) -> None:
        self._dsn, self._topics, self._poison = dsn, [topic, *others], poison
        self._keys, self._halves = keys, halves
        self._asynchronous, self._pace = asynchronous, pace
        self._stop = threading.Event()
        self.done = [0] * threads
        with psycopg.connect(dsn, autocommit=True) as conn:
            statements = SQL["create"] % {"keys": int(keys), "halves": int(halves)}
            conn.execute(statements)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="writer")
        self._running = [
            self._pool.submit(self._run, number, random.Random(seed * 1000 + number))
            for number in range(threads)
        ]

    @property
    def transactions(self) -> int:
        """Transactions done so far, rolled back ones included."""
        return sum(self.done)

    def wait_for(self, more: int) -> None:
        """Wait until so many more transactions are done."""
        goal = self.transactions + more
        wait_until(
            lambda: self.transactions >= goal or any(thread.done() for thread in self._running),
            f"{more} more transactions",
        )
        self._raise()

    def stop(self) -> None:
        """End the writers between two transactions."""
        self._stop.set()
        self._pool.shutdown()
        self._raise()

    def committed(self) -> list[tuple[str, int]]:
        """Every (key, version) that was committed with a message."""
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            return [(row[0], row[1]) for row in conn.execute(SQL["truth"]).fetchall()]

    def topic_of(self, key: str) -> str:
        """Return the topic of a key."""
        return self._topics[int(key[1:]) % len(self._topics)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _raise(self) -> None:
        for thread in self._running:
            if thread.done():
                thread.result()

    def _run(self, number: int, chance: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._dsn,
                    autocommit=True,
                    connect_timeout=5,
                    options=f"-c statement_timeout={TIMEOUT_MS}",
                ) as conn:
                    while not self._stop.wait(chance.expovariate(1 / self._pace)):
                        self._transaction(conn, chance)
                        self.done[number] += 1
            except psycopg.OperationalError:
                self._stop.wait(0.1)  # the server is gone, or a deadlock ended the transaction

    def _transaction(self, conn: psycopg.Connection[Any], chance: random.Random) -> None:
        commit = "off" if chance.random() < self._asynchronous else "on"
        conn.execute("SELECT set_config('synchronous_commit', %s, false)", [commit])
        if self._halves and chance.random() < 0.15:
            self._half(conn, chance)
            return
        with conn.transaction(force_rollback=chance.random() < 0.1):
            if chance.random() < 0.2:
                conn.execute("SELECT pg_current_xact_id()")
            count = 3 if chance.random() < 0.2 else 1
            for key in sorted(chance.sample(range(self._keys), count)):
                if chance.random() < 0.2:
                    with conn.transaction(force_rollback=True):
                        self._send(conn, f"k{key}", "ghost")
                if chance.random() < 0.3:
                    with conn.transaction():
                        self._advance(conn, f"k{key}", chance)
                else:
                    self._advance(conn, f"k{key}", chance)
            if chance.random() < 0.05:
                self._stop.wait(chance.uniform(0.02, 0.3))

    def _advance(self, conn: psycopg.Connection[Any], key: str, chance: random.Random) -> None:
        row = conn.execute(SQL["advance"], {"key": key}).fetchone()
        assert row is not None
        if self._poison and chance.random() < self._poison:
            values = {"topic": self.topic_of(key), "key": key, "version": str(row[0]), "much": POISON_BYTES}
            conn.execute(SQL["poison"], values)
        else:
            self._send(conn, key, str(row[0]))

    def _send(self, conn: psycopg.Connection[Any], key: str, version: str) -> None:
        conn.execute(SQL["send"], {"topic": self.topic_of(key), "key": key, "version": version})

    def _half(self, conn: psycopg.Connection[Any], chance: random.Random) -> None:
        key = f"h{chance.randrange(self._halves)}"
        with conn.transaction():
            row = conn.execute(SQL["lock"], {"key": key}).fetchone()
            assert row is not None
            version, half = row
            if half is None:
                conn.execute(
                    SQL["prepare"], {"topic": self.topic_of(key), "key": key, "version": str(version + 1)}
                )
                return
            committed = chance.random() < 0.8
            state = "COMMITTED" if committed else "ROLLED_BACK"
            rows = conn.execute(SQL["decide"], {"half": half, "state": state}).rowcount
            assert rows == 1, f"half message {half} was not undecided"
            conn.execute(SQL["decided"], {"key": key, "committed": int(committed)})
