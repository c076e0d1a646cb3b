"""Fewer connections than threads: what a thread that gets none had taken is done by those that have one.

PostgreSQL refuses sessions beyond `max_connections` or a role's CONNECTION LIMIT, and a pooler those beyond its pool.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import psycopg
import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

MOST_LATE = 15.0
"""Seconds; messages in the hands of threads without a connection were not applied at all."""


class Few:
    """Opens so many connections at a time for listeners, and refuses others as PostgreSQL does."""

    def __init__(self, dsn: str, most: int) -> None:
        self._dsn, self.most = dsn, most
        self._lock, self._open = threading.Lock(), list[Connection]()
        self.refused = 0

    def __call__(self) -> Connection:
        if not threading.current_thread().name.startswith("outbox-listener"):
            return psycopg.connect(self._dsn)
        with self._lock:
            self._open = [conn for conn in self._open if not conn.closed]
            if len(self._open) >= self.most:
                self.refused += 1
                raise psycopg.OperationalError("FATAL: too many connections for role")
            self._open.append(psycopg.connect(self._dsn))
            return self._open[-1]

    def lose(self, most: int) -> None:
        """Lose all connections, and allow fewer from now on."""
        with self._lock, psycopg.connect(self._dsn, autocommit=True) as other:
            self.most = most
            # By PostgreSQL: a thread may be in a statement, and this one must not free its connection.
            pids = [conn.info.backend_pid for conn in self._open if not conn.closed]
            other.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) pid", [pids])
            self._open.clear()


@pytest.mark.parametrize(
    "options", [{}, {"orderly": True}, {"orderly": True, "batch": 5}], ids=["independent", "orderly", "batch"]
)
def test_threads_without_a_connection_hold_no_message(
    inbox: InboxStage, topic: str, make_topic: MakeTopic, options: dict[str, Any]
) -> None:
    quiet, few = make_topic(1), Few(inbox.dsn, 2)
    listener: Callable[..., Any] = apply_all if "batch" in options else apply
    options = {**options, "workers": 12, "dsn": few}
    with inbox.consumer({topic: "*", quiet: "*"}, listener, **options) as consumer:
        wait_until(lambda: len(consumer.vitals().partitions) == 5, "all are read")
        for number in range(60):
            inbox.produce(topic, f"k{number % 20}", str(number), partition=number % 4)
            inbox.flush()
            wait_for_a_thread(inbox, few, number)
        since = monotonic()
        inbox.produce(quiet, "quiet", "0")
        inbox.flush()
        inbox.wait_applied(61, seconds=60)
        assert monotonic() - since < MOST_LATE
        assert few.refused, "some threads had none"
        wait_until(lambda: consumer.vitals().lag == 0, "all positions move")
    assert inbox.count("applied") == 61
    if "orderly" in options:
        assert all(numbers == sorted(numbers) for numbers in inbox.by_key().values())


def wait_for_a_thread(inbox: InboxStage, few: Few, applied: int) -> None:
    """Wait until a message has woken up a thread: it is applied, or some threads got no connection by now."""
    wait_until(lambda: few.refused or inbox.count("applied") > applied, "a thread was woken up")


@pytest.mark.parametrize("batch", [None, 4])
def test_messages_whose_threads_get_no_new_connection_are_done_by_others(
    inbox: InboxStage, topic: str, make_topic: MakeTopic, batch: int | None
) -> None:
    """All sessions are lost while listeners run, and only one comes back."""
    quiet, few = make_topic(1), Few(inbox.dsn, 6)
    running, goes_on = threading.Semaphore(0), threading.Event()

    def listener(conn: Connection, given: Any) -> ConsumeResult:
        messages: list[ConsumedMessage] = given if isinstance(given, list) else [given]
        if any(each.topic == topic for each in messages) and not goes_on.is_set():
            running.release()
            assert goes_on.wait(60)
        return apply_all(conn, messages)

    options: dict[str, Any] = {"workers": 6, "dsn": few, "orderly": True, "batch": batch}
    with inbox.consumer({topic: "*", quiet: "*"}, listener, **options) as consumer:
        wait_until(lambda: len(consumer.vitals().partitions) == 5, "all are read")
        for number in range(12):
            inbox.produce(topic, f"k{number}", str(number), partition=number % 4)
        inbox.flush()
        assert all(running.acquire(timeout=60) for _ in range(2)), "listeners run"
        few.lose(1)
        goes_on.set()
        since = monotonic()
        inbox.produce(quiet, "quiet", "0")
        inbox.flush()
        wait_until(lambda: "quiet" in inbox.applied("key"), "the other topic is applied", seconds=60)
        inbox.wait_applied(13, seconds=60)
        assert monotonic() - since < MOST_LATE
        wait_until(lambda: consumer.vitals().lag == 0, "all positions move")
    assert inbox.count("applied") == 13
    assert inbox.count("outbox.inbox_parked") == 0, "no attempt was counted"
