"""Producers that never fail: each error of a send ends its thread and the test, unlike `concurrent_writers`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import psycopg

from outbox import Message, Outbox
from tests.support.waiting import wait_until

Connection = psycopg.Connection[Any]
PARK = """
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, header_names,
        header_values, published_at, state, attempts, due_at)
    VALUES (1, gen_random_uuid(), '2026-11-01', 1, 0, %(n)s, 'd', '{}', '{}', now(),
        CASE WHEN %(n)s %% 2 = 0 THEN 'dead' ELSE 'retry' END, 1, CASE WHEN %(n)s %% 2 = 1 THEN now() END)
"""
"""What a consumer writes for a message that failed; every second one is dead."""


ASKED = "asked"
"""The group whose half messages are left to the checker."""
LOCAL_TRANSACTION = "CREATE TABLE local_transaction (id text PRIMARY KEY, is_kept boolean NOT NULL)"
ASK = {"kind": "sql", "query": "SELECT is_kept FROM local_transaction WHERE id = %(biz_id)s"}
"""How the checker asks about them."""


class SteadyProducers:
    """Threads that send normal, ordered and half messages, and one more, until they are stopped.

    The last one parks messages as a consumer does, or, where a checker runs, leaves half messages to it: what it
    replies about each one is in LOCAL_TRANSACTION, whose rows have committed.

    `committed` holds (key, version) of each message whose transaction has committed; `done` counts rounds by thread,
    `slowest` holds the seconds of the longest one.
    """

    def __init__(self, dsn: str, topic: str, *, has_checker: bool = False) -> None:
        self.committed: list[tuple[str, int]] = []
        self._dsn, self._topic = dsn, topic
        self._outbox, self._asked = Outbox(producer_group="steady"), Outbox(producer_group=ASKED)
        self._stop = threading.Event()
        rounds: dict[str, Any] = {"normal": self._send, "ordered": self._send, "half": self._half}
        rounds |= {"asked": self._ask} if has_checker else {"parking": self._park}
        self.done = dict.fromkeys(rounds, 0)
        self.slowest = dict.fromkeys(rounds, 0.0)
        self._pool = ThreadPoolExecutor(len(rounds))
        self._threads = [self._pool.submit(self._run, name, each) for name, each in rounds.items()]

    def _run(self, name: str, one_round: Any) -> None:
        with psycopg.connect(self._dsn) as conn:
            while not self._stop.wait(0.005):
                began = time.monotonic()
                one_round(conn, name, self.done[name])
                self.slowest[name] = max(self.slowest[name], time.monotonic() - began)
                self.done[name] += 1

    def _message(self, key: str, version: int | str) -> Message:
        return Message(self._topic, body=f"{key}:{version}", key=key, order_key=key)

    def _send(self, conn: Connection, name: str, number: int) -> None:
        key = f"{name}{number % 5}"
        with conn.transaction():
            self._outbox.send(conn, self._message(key, number), ordered=name == "ordered")
        self.committed.append((key, number))

    def _half(self, conn: Connection, name: str, number: int) -> None:
        key, is_kept = f"{name}{number % 5}", number % 4 != 0
        with conn.transaction():
            half = self._outbox.prepare(conn, self._message(key, number if is_kept else "ghost"))
        with conn.transaction():
            if is_kept:
                self._outbox.commit(conn, half)
            else:
                self._outbox.rollback(conn, half)
        if is_kept:
            self.committed.append((key, number))

    def _ask(self, conn: Connection, name: str, number: int) -> None:
        # A checker decides in no order: each message has a key of its own.
        key, is_kept = f"{name}-{number}", number % 4 != 0
        message = Message(
            self._topic, body=f"{key}:{number if is_kept else 'ghost'}", key=key, biz_id=str(number)
        )
        with conn.transaction():
            self._asked.prepare(conn, message)
        with conn.transaction():
            conn.execute("INSERT INTO local_transaction VALUES (%s, %s)", [str(number), is_kept])
        if is_kept:
            self.committed.append((key, number))

    def _park(self, conn: Connection, name: str, number: int) -> None:
        with conn.transaction():
            conn.execute(PARK, {"n": number})

    def wait_for(self, more: int, *names: str) -> None:
        """Wait until each of these threads has done so many more rounds; all but the parking one unless named."""
        goals = {name: self.done[name] + more for name in names or ("normal", "ordered", "half")}
        wait_until(
            lambda: all(self.done[name] >= goal for name, goal in goals.items()) or self._failed(),
            f"{more} more rounds of {', '.join(goals)}",
        )
        self.require_success()

    def _failed(self) -> bool:
        return any(thread.done() for thread in self._threads)

    def require_success(self) -> None:
        """Raise the error of a thread that has ended."""
        for thread in self._threads:
            if thread.done():
                thread.result()

    def stop(self) -> None:
        """End the threads after their present round, and raise the error of any."""
        self._stop.set()
        self._pool.shutdown()
        self.require_success()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()
