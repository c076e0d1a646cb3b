"""A listener that ends its transaction applies nothing twice, whatever it does afterwards.

For each way to end it, and each thing that happens then, at the first delivery and at a retry. A transaction that was
committed leaves a dead letter, because a part of the effect exists; one that was rolled back is a failed attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from outbox.errors import ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until

Ending = Callable[[Connection, threading.Event], ConsumeResult]


def commits_and_raises(conn: Connection, _: threading.Event) -> ConsumeResult:
    try:
        conn.execute("COMMIT")
    finally:
        raise ValueError("after the commit")


def commits_and_returns(conn: Connection, _: threading.Event) -> ConsumeResult:
    with pytest.raises(ListenerError):
        conn.execute("COMMIT")
    return ConsumeResult.SUCCESS


def commits_and_discards(conn: Connection, _: threading.Event) -> ConsumeResult:
    with pytest.raises(ListenerError):
        conn.execute("COMMIT")
    return ConsumeResult.DISCARD


def commits_and_comes_later(conn: Connection, _: threading.Event) -> ConsumeResult:
    conn.execute("COMMIT AND CHAIN")
    return ConsumeResult.RECONSUME_LATER


def commits_and_fails_in_the_next(conn: Connection, _: threading.Event) -> ConsumeResult:
    conn.execute("COMMIT AND CHAIN")
    conn.execute("SELECT 1 / 0")
    return ConsumeResult.SUCCESS


def commits_and_succeeds_in_the_next(conn: Connection, _: threading.Event) -> ConsumeResult:
    conn.execute("COMMIT AND CHAIN")
    return ConsumeResult.SUCCESS


def commits_and_swallows_an_error(conn: Connection, _: threading.Event) -> ConsumeResult:
    conn.execute("COMMIT AND CHAIN")
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("SELECT 1 / 0")
    return ConsumeResult.DISCARD


def commits_and_loses_its_session(conn: Connection, _: threading.Event) -> ConsumeResult:
    conn.execute("COMMIT AND CHAIN")
    conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    return ConsumeResult.SUCCESS


def commits_and_hangs(conn: Connection, ends: threading.Event) -> ConsumeResult:
    with pytest.raises(ListenerError):
        conn.execute("COMMIT")
    ends.wait()
    return ConsumeResult.SUCCESS


ENDINGS: list[Ending] = [
    commits_and_raises,
    commits_and_returns,
    commits_and_discards,
    commits_and_comes_later,
    commits_and_fails_in_the_next,
    commits_and_succeeds_in_the_next,
    commits_and_swallows_an_error,
    commits_and_loses_its_session,
    commits_and_hangs,
]


@pytest.mark.parametrize("attempt", [0, 1], ids=["delivery", "retry"])
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_a_listener_that_commits_by_itself_leaves_one_effect_and_a_dead_letter(
    inbox: InboxStage, topic: str, caplog: pytest.LogCaptureFixture, ending: Ending, attempt: int
) -> None:
    ends = threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body != b"1":
            return apply(conn, message)
        if message.reconsume_times < attempt:
            raise ValueError("to be parked")
        apply(conn, message)
        return ending(conn, ends)

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with inbox.consumer(topic, listener, timeout=1.0, delays=DelaySchedule.of([0] * 20)):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
        # A retry that were still due would run again while these are applied.
        inbox.produce_numbered(topic, 8, start=2)
        inbox.wait_applied(9)
        [(parked,)] = inbox.conn.execute("SELECT id FROM outbox.inbox_parked").fetchall()
        wait_until(lambda: f"next: outbox dlq show {parked}\n" in caplog.text, "it is logged")
        ends.set()
    assert inbox.applied("body").count("1") == 1
    assert inbox.conn.execute("SELECT state, attempts FROM outbox.inbox_parked").fetchall() == [
        ("dead", attempt + 1)
    ]
    assert inbox.count("outbox.inbox_parked", "error LIKE '%ended the transaction%'") == 1


@pytest.mark.parametrize("text", ["ROLLBACK", "ABORT", "COMMIT; BEGIN; ROLLBACK"])
def test_a_connection_whose_transaction_was_ended_refuses_the_next_statement(
    inbox: InboxStage, topic: str, text: str
) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.reconsume_times == 0:
            try:
                conn.execute(text.encode())
            except ListenerError:
                apply(conn, message)
                conn.execute("COMMIT")
        return apply(conn, message)

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with inbox.consumer(topic, listener):
        if text.startswith("COMMIT"):
            wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
        else:
            inbox.wait_applied(1)
            wait_until(lambda: not inbox.count("outbox.inbox_parked"), "nothing is parked")
    assert inbox.count("applied") == (0 if text.startswith("COMMIT") else 1)


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_commit_and_rollback_of_the_connection_end_nothing(
    inbox: InboxStage, topic: str, method: str
) -> None:
    seen: list[int] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        result = apply(conn, message)
        if message.reconsume_times == 0:
            with pytest.raises(ListenerError, match="leave out COMMIT"):
                getattr(conn, method)()
            raise ValueError("what was written so far is taken back")
        return result

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with inbox.consumer(topic, listener):
        inbox.wait_applied(1)
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "the retry is done")
    assert (inbox.count("applied"), seen) == (1, [0, 1])
