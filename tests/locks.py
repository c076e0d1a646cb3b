"""Who waits for a lock, as PostgreSQL tells it: how a test knows that a step is blocked, without waiting for luck."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tests.waiting import wait_until
from tests.writing import Connection

BLOCKED = "SELECT pg_blocking_pids(%s) <> '{}'"


def see_blocked(observer: Connection, waiting: Connection, step: Future[Any]) -> None:
    """Return when the other connection waits for a lock; fail when its step, run by a thread, has ended instead."""
    pid = waiting.info.backend_pid

    def blocked() -> bool:
        if observer.execute(BLOCKED, [pid]).fetchone() == (True,):
            return True
        assert not step.done(), f"a step that has to wait did not: {step.exception() or step.result()}"
        return False

    wait_until(blocked, "the step waits for a lock", seconds=30)
