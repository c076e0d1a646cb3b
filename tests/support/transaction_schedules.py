"""Schedules of concurrent transactions, to be run step by step against PostgreSQL.

A script is one transaction, a letter per step:

    X  an unrelated write: the transaction gets its xid       S  send a message
    L  lock the row of the key, waiting if another has it     C  commit         R  roll back
    ( ) savepoint set, released     [ ] savepoint set, rolled back
    P  PREPARE TRANSACTION          K  COMMIT PREPARED

A schedule is an interleaving of scripts: the numbers of the transactions in the order they take their steps. A
step that has to wait is started, seen to wait in PostgreSQL, and finished by the step that lets it go on.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support.plain_inserts import connect, insert

Schedule = tuple[int, ...]
ENDS = "CRK"
PLAIN = {
    "X": "SELECT pg_current_xact_id()",
    "(": "SAVEPOINT kept",
    ")": "RELEASE kept",
    "[": "SAVEPOINT dropped",
    "]": "ROLLBACK TO dropped",
    "C": "COMMIT",
    "R": "ROLLBACK",
    "P": "PREPARE TRANSACTION '{name}'",
    "K": "COMMIT PREPARED '{name}'",
}


@dataclass(frozen=True, slots=True)
class Lock:
    """Who has the key's row, and who waits for it, in order."""

    holder: int | None = None
    waiting: tuple[int, ...] = ()

    def after(self, number: int, letter: str) -> Lock:
        """What a step makes of it."""
        if letter == "L" and self.holder is None:
            return Lock(number)
        if letter == "L" and self.holder != number:
            return Lock(self.holder, (*self.waiting, number))
        if letter in ENDS and self.holder == number:
            heir, *rest = self.waiting or (None,)
            return Lock(heir, tuple(rest))
        return self


def interleavings(scripts: Sequence[str]) -> Iterator[Schedule]:
    """Yield every order of the steps; a transaction that waits for the lock takes none."""

    def walk(at: tuple[int, ...], lock: Lock, done: Schedule) -> Iterator[Schedule]:
        ready = [n for n, script in enumerate(scripts) if at[n] < len(script) and n not in lock.waiting]
        if not ready:
            yield done
        for number in ready:
            after = (*at[:number], at[number] + 1, *at[number + 1 :])
            yield from walk(after, lock.after(number, scripts[number][at[number]]), (*done, number))

    return walk((0,) * len(scripts), Lock(), ())


def sample(scripts: Sequence[str], count: int, seed: int) -> list[Schedule]:
    """Draw schedules at random, where there are too many to run all of them."""
    chance = random.Random(seed)
    drawn = set()
    for _ in range(count):
        at, lock = [0] * len(scripts), Lock()
        done: list[int] = []
        while ready := [n for n, s in enumerate(scripts) if at[n] < len(s) and n not in lock.waiting]:
            number = chance.choice(ready)
            lock = lock.after(number, scripts[number][at[number]])
            at[number] += 1
            done.append(number)
        drawn.add(tuple(done))
    return sorted(drawn)


@dataclass(slots=True)
class Transaction:
    """One running script: what it sent, and what was committed when it sent it and when it had the lock."""

    script: str
    key: str
    conn: psycopg.Connection[Any]
    name: str
    early_xid: bool
    """Whether it gets its xid before it waits for the lock, as by an UPDATE, or after, as by FOR UPDATE."""
    sent: list[tuple[str, set[str]]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    waiting: Future[Any] | None = None


class Stage:
    """Connections for the transactions of schedules, used again for each of them."""

    def __init__(self, dsn: str, size: int) -> None:
        self.observer = connect(dsn)
        self.observer.execute("CREATE TABLE key_row (key text PRIMARY KEY)")
        self.observer.execute("INSERT INTO key_row VALUES ('k')")
        self._conns = [connect(dsn) for _ in range(size)]
        self._threads = ThreadPoolExecutor(size)
        self._base = 0

    def run(self, scripts: Sequence[str], keys: str, schedule: Schedule) -> Iterator[list[Transaction]]:
        """Run one schedule; yield after every step, and before the first."""
        row = self.observer.execute("SELECT coalesce(max(id), 0) FROM outbox.message").fetchone()
        assert row is not None
        self._base = row[0]
        running = [
            Transaction(script, key, conn, uuid.uuid4().hex, early_xid=number % 2 == 0)
            for number, (script, key, conn) in enumerate(zip(scripts, keys, self._conns, strict=False))
        ]
        for transaction in running:
            transaction.conn.execute("BEGIN")
        lock, at = Lock(), [0] * len(scripts)
        yield running
        for number in schedule:
            letter = scripts[number][at[number]]
            at[number] += 1
            before, lock = lock, lock.after(number, letter)
            self._step(running[number], letter, waits=number in lock.waiting)
            if lock.holder is not None and lock.holder != before.holder and letter in ENDS:
                self._inherit(running[lock.holder])
            yield running

    def _step(self, transaction: Transaction, letter: str, *, waits: bool) -> None:
        conn = transaction.conn
        if letter == "L":
            # A row that is only locked wakes its waiters in order; one that was updated, in any.
            statement = "SELECT FROM key_row WHERE key = 'k' FOR UPDATE"
            if transaction.early_xid:
                conn.execute(PLAIN["X"])
            if waits:
                transaction.waiting = self._threads.submit(conn.execute, statement)
                self._see_waiting(transaction)
            else:
                conn.execute(statement)
                transaction.seen = set(self.visible())
        elif letter == "S":
            seen = transaction.seen | set(self.visible())
            transaction.sent.append((insert(conn, "t", transaction.key, b""), seen))
        else:
            conn.execute(PLAIN[letter].format(name=transaction.name))

    def _see_waiting(self, transaction: Transaction) -> None:
        query = "SELECT pg_blocking_pids(%s) <> '{}'"
        pid = transaction.conn.info.backend_pid
        while self.observer.execute(query, [pid]).fetchone() != (True,):
            assert transaction.waiting is not None
            assert not transaction.waiting.done(), "a step that has to wait did not"

    def _inherit(self, transaction: Transaction) -> None:
        assert transaction.waiting is not None
        done, _ = wait([transaction.waiting], timeout=20, return_when=FIRST_COMPLETED)
        assert done, "the lock was released and its heir still waits"
        transaction.waiting.result()
        transaction.waiting = None
        transaction.seen = set(self.visible())

    def visible(self) -> dict[str, int]:
        """The committed messages of this schedule with their positions."""
        rows = self.observer.execute(
            "SELECT message_id::text, position FROM outbox.message WHERE id > %s AND state = 'COMMITTED'",
            [self._base],
        )
        return dict(rows.fetchall())

    def close(self) -> None:
        """End whatever still runs."""
        for conn in (*self._conns, self.observer):
            conn.close()
        self._threads.shutdown()
