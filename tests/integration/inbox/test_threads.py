"""The threads of a member: replaced when they end by themselves, gone at its end; and what its log warns of."""

from __future__ import annotations

import logging
import threading
from time import monotonic

import psycopg
import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, seats
from outbox.inbox.assignments import Assignments
from outbox.inbox.keeper import Keeper
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until


@pytest.mark.parametrize("kind", ["listener", "retry"])
def test_a_thread_that_ends_by_itself_is_replaced(inbox: InboxStage, topic: str, kind: str) -> None:
    ended: list[int] = []

    def connected() -> Connection:
        if threading.current_thread().name.startswith(f"outbox-{kind}") and len(ended) < 6:
            ended.append(1)
            raise SystemExit("no token")
        return psycopg.connect(inbox.dsn)

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        return apply(conn, message) if message.reconsume_times else ConsumeResult.RECONSUME_LATER

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, listener, dsn=connected, orderly=True):
        inbox.wait_applied(8)
    assert len(ended) == 6
    assert inbox.by_key() == {f"k{key}": [key] for key in range(8)}


class Hanging:
    """A listener that hangs once: at the first delivery of a message, or at its first retry."""

    def __init__(self, kind: str) -> None:
        self.thread = f"outbox-{kind}"
        self._attempt = 1 if kind == "retry" else 0
        self.hangs, self.goes_on = threading.Event(), threading.Event()
        self.seen: list[int] = []

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        self.seen.append(message.reconsume_times)
        if message.reconsume_times < self._attempt:
            return ConsumeResult.RECONSUME_LATER
        if message.reconsume_times == self._attempt and not self.hangs.is_set():
            self.hangs.set()
            self.goes_on.wait(100)
        return apply(conn, message)

    def is_replacing(self) -> bool:
        """Whether this is called where a thread takes the place of the one that hangs."""
        return self.hangs.is_set() and threading.current_thread().name.startswith(self.thread)


@pytest.mark.parametrize("kind", ["listener", "retry"])
def test_a_message_outlives_a_replacement_that_cannot_be_started(
    inbox: InboxStage,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """The schedule: given up, refused by the system twice, started at the third time."""
    listener = Hanging(kind)
    refused: list[str] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if listener.hangs.is_set() and thread.name.startswith(listener.thread) and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener, timeout=1.0, workers=1, retry_workers=1, orderly=True):
        inbox.wait_applied(1)
        listener.goes_on.set()
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "nothing is parked")
    assert listener.seen == ([0, 1, 2] if kind == "retry" else [0, 1])
    assert len(refused) == 2
    assert "is not replaced yet: can't start new thread" in _warnings(caplog)


@pytest.mark.parametrize("kind", ["listener", "retry"])
def test_a_replacement_that_ends_hands_over_why_it_parks_the_message(
    inbox: InboxStage, topic: str, kind: str
) -> None:
    """The schedule: given up; the replacement ends before it has parked the message, and so does the next one."""
    listener = Hanging(kind)
    ended: list[int] = []

    def connected() -> Connection:
        if listener.is_replacing() and len(ended) < 2:
            ended.append(1)
            raise SystemExit("no token")
        return psycopg.connect(inbox.dsn)

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener, dsn=connected, timeout=1.0, workers=1, retry_workers=1):
        inbox.wait_applied(1)
        listener.goes_on.set()
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "nothing is parked")
    assert len(ended) == 2
    expected = [0, 1, 2] if kind == "retry" else [0, 1]
    assert listener.seen == expected, "the attempt that hung is counted, and is not run again"


def test_no_thread_is_replaced_while_the_member_ends(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The schedule: the threads were asked to end; a listener passes its time-out; the keeper sees that, and ends."""
    listener, passed = Hanging("listener"), 0.0
    end_work, end_keeper = Assignments.end, Keeper.end

    def time_passes(assignments: Assignments) -> None:
        nonlocal passed
        end_work(assignments)
        passed = 1000.0

    def wait_for_the_keeper(keeper: Keeper) -> None:
        wait_until(lambda: "is given up" in caplog.text, "the listener is given up")
        end_keeper(keeper)

    monkeypatch.setattr(seats, "monotonic", lambda: monotonic() + passed)
    monkeypatch.setattr(Assignments, "end", time_passes)
    monkeypatch.setattr(Keeper, "end", wait_for_the_keeper)
    inbox.produce_numbered(topic, 1)
    before = set(threading.enumerate())
    consumer = inbox.consumer(topic, listener, timeout=900.0, drain=0.2).start()
    assert listener.hangs.wait(60)
    assert "is given up" not in caplog.text
    consumer.close()
    left = [
        thread.name
        for thread in set(threading.enumerate()) - before
        if thread.name.startswith("outbox-listener")
    ]
    listener.goes_on.set()
    assert len(left) == 1, "only the listener that hangs is left"


def test_a_topic_that_does_not_exist_is_a_warning(
    inbox: InboxStage, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with inbox.consumer({topic: "*", f"{topic}-missing": "*"}):
        wait_until(lambda: f"{topic}-missing" in _warnings(caplog), "it is logged")


def test_positions_that_cannot_be_stored_are_a_warning(
    inbox: InboxStage, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def connected() -> Connection:
        if inbox.count("outbox.consumer_member") and threading.current_thread().name.endswith("keeper"):
            raise psycopg.OperationalError("no route to the database")
        return psycopg.connect(inbox.dsn, application_name="outbox consumer")

    with inbox.consumer(topic, dsn=connected):
        wait_until(lambda: inbox.count("outbox.inbox_position"), "its partitions are open")
        inbox.end_sessions()
        inbox.produce_numbered(topic, 1)
        wait_until(lambda: "no route to the database" in _warnings(caplog), "it is logged")


def _warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
