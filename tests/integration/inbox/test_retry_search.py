"""Retries that run long: who searches for the others meanwhile, and what an interrupted retry costs.

One retry thread used to search for all of them, every half second, unless it was inside a listener. What fell due then
was found when that listener had returned.
"""

from __future__ import annotations

import threading
from collections import Counter
from time import monotonic

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, handling, retry_threads, threads
from outbox.inbox.core import retries
from outbox.inbox.core.hands import MOST_INTERRUPTIONS
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until

LATER = ConsumeResult.RECONSUME_LATER
MOST_LATE = 15.0
"""Seconds after which a retry that is due has run, on a slow machine; the slow ones run until the test lets them go."""


class SlowRetries:
    """A listener that fails each message once, and whose retries of some keys run until they may end."""

    def __init__(self, slow: int) -> None:
        self.keys = [f"slow{number}".encode() for number in range(slow)]
        self.may_end = threading.Event()
        self.begun: list[bytes | None] = []
        self.failed: dict[bytes | None, float] = {}
        self.applied: dict[bytes | None, float] = {}

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        key = message.key
        if message.reconsume_times == 0 and key != b"bystander":
            self.failed[key] = monotonic()
            return LATER
        if key in self.keys:
            self.begun.append(key)
            assert self.may_end.wait(120)
        self.applied[key] = monotonic()
        return apply(conn, message)


@pytest.mark.parametrize(("slow", "retry_workers"), [(1, 2), (3, 4)])
@pytest.mark.parametrize("orderly", [False, True])
def test_retries_that_run_long_leave_the_others_a_thread(
    inbox: InboxStage, topic: str, slow: int, retry_workers: int, *, orderly: bool
) -> None:
    listener = SlowRetries(slow)
    others = [b"a", b"b", b"c"]
    for key in listener.keys:
        inbox.produce(topic, key.decode(), "1")
    inbox.flush()
    delays = DelaySchedule.of([1.0] * 5)
    with inbox.consumer(topic, listener, orderly=orderly, retry_workers=retry_workers, delays=delays):
        try:
            wait_until(lambda: len(listener.begun) == slow, "the slow retries run")
            for key in [*others, b"bystander"]:
                inbox.produce(topic, key.decode(), "1", partition=1)
            inbox.flush()
            sent_at = monotonic()
            wait_until(
                lambda: set(listener.applied) >= {*others, b"bystander"}, "they are applied", seconds=40
            )
            assert not set(listener.applied) & set(listener.keys)
        finally:
            listener.may_end.set()
        inbox.wait_applied(slow + 4)
    assert max(listener.applied[key] - listener.failed[key] - 1.0 for key in others) < MOST_LATE
    assert listener.applied[b"bystander"] - sent_at < MOST_LATE


def test_the_search_goes_on_when_its_thread_ends(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it may in a callable of the application that connects; another thread takes its place."""
    ended: list[str] = []
    search = handling.handle_due

    def ends_once(*args: object, **options: object) -> object:
        if not ended:
            ended.append(threading.current_thread().name)
            raise SystemExit
        return search(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(retry_threads, "handle_due", ends_once)
    inbox.produce_numbered(topic, 4)
    with inbox.consumer(topic, SlowRetries(0), retry_workers=2):
        inbox.wait_applied(4, seconds=30)
    assert ended


def test_an_interrupted_retry_counts_as_failed_after_five_runs_of_all_threads(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: Counter[int] = Counter()

    def ends_its_session(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.reconsume_times == 0 and not runs[0]:
            runs[0] += 1
            return LATER
        if message.body == b"0":
            runs[message.reconsume_times] += 1
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return apply(conn, message)

    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(threads, "LAST_PAUSE", 0.5)
    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, ends_its_session, retry_workers=4, delays=DelaySchedule.of([0])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    # A lost connection makes it due at once: each of the other threads may have begun with it by then.
    assert 0 <= runs.pop(1) - MOST_INTERRUPTIONS < 4
    assert runs == {0: 1}
