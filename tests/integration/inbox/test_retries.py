"""A retry is in one pair of hands until its attempt is counted, so it runs as often as is counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, plans
from outbox.inbox.handling import Handling, handle_due
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until

LATER, DISCARD, SUCCESS = ConsumeResult.RECONSUME_LATER, ConsumeResult.DISCARD, ConsumeResult.SUCCESS
AT_ONCE = DelaySchedule.of([0] * 8)


@dataclass(frozen=True)
class Watched(DelaySchedule):
    """Calls something between the end of a listener that failed and the count of its attempt."""

    between: Callable[[], object] = lambda: None

    def after(self, attempts: int) -> float | None:
        self.between()
        return super().after(attempts)


def park_one(inbox: InboxStage, topic: str) -> int:
    """Park one message, due now; return the number of the group."""
    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, lambda *_: LATER, delays=DelaySchedule.of([3600])):
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "it is parked")
    inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now()")
    [(group,)] = inbox.conn.execute("SELECT id FROM outbox.consumer_group").fetchall()
    return int(group)


def fails(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Write, and raise."""
    apply(conn, message)
    raise ValueError("no")


def fails_in_sql(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Write, and leave the transaction aborted."""
    apply(conn, message)
    conn.execute("SELECT 1 / 0")
    return SUCCESS


def reports(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Write, and ask for another attempt."""
    apply(conn, message)
    return LATER


def swallows(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Return SUCCESS after an error of PostgreSQL that it did not let pass."""
    try:
        return fails_in_sql(conn, message)
    except psycopg.errors.DivisionByZero:
        return SUCCESS


@pytest.mark.parametrize("listener", [fails, fails_in_sql, reports, swallows])
def test_no_other_member_takes_a_retry_between_its_failure_and_the_count(
    inbox: InboxStage, topic: str, listener: Callable[..., ConsumeResult]
) -> None:
    group, found = park_one(inbox, topic), []
    with psycopg.connect(inbox.dsn) as one, psycopg.connect(inbox.dsn) as other:

        def take() -> None:
            found.append(run(other, plans.next_due(group)))
            other.rollback()

        delays = Watched((3600.0,) * 3, take)
        assert handle_due(one, Handling(group, listener, delays)) is not None
    assert found == [None]
    states = inbox.conn.execute("SELECT state, attempts, due_at > now() FROM outbox.inbox_parked").fetchall()
    assert states == [("retry", 2, True)]
    assert inbox.count("applied") == 0


def test_no_other_member_takes_a_discarded_retry_before_it_is_removed(inbox: InboxStage, topic: str) -> None:
    group = park_one(inbox, topic)

    def discards(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        apply(conn, message)
        return DISCARD

    class Watching(psycopg.Connection[Any]):
        rolled_back = 0

        def rollback(self) -> None:
            Watching.rolled_back += 1  # the row would be due and free from here on
            super().rollback()

    with Watching.connect(inbox.dsn) as conn:
        assert handle_due(conn, Handling(group, discards, AT_ONCE)) is not None
        assert Watching.rolled_back == 0
    assert inbox.count("outbox.inbox_parked") == 0
    assert inbox.count("applied") == 0
    assert inbox.count("outbox.inbox") == 1


@pytest.mark.parametrize("result", [None, SUCCESS, DISCARD], ids=["raises", "success", "discard"])
@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ("ROLLBACK", ("retry", 2)),
        ("ROLLBACK AND CHAIN", ("retry", 2)),
        ("COMMIT", ("dead", 2)),
        ("COMMIT AND CHAIN", ("dead", 2)),
    ],
)
def test_a_retry_whose_listener_ends_the_transaction_is_counted_once(
    inbox: InboxStage, topic: str, ends: str, state: tuple[str, int], result: ConsumeResult | None
) -> None:
    group = park_one(inbox, topic)

    def listener(conn: Connection, _: ConsumedMessage) -> ConsumeResult:
        conn.execute(ends.encode())
        if result is None:
            raise ValueError("afterwards")
        return result

    with psycopg.connect(inbox.dsn) as conn:
        assert handle_due(conn, Handling(group, listener, DelaySchedule.of([3600] * 3))) is not None
    assert inbox.conn.execute("SELECT state, attempts FROM outbox.inbox_parked").fetchall() == [state]


def test_an_attempt_whose_connection_dies_before_its_count_is_not_counted(
    inbox: InboxStage, topic: str
) -> None:
    group = park_one(inbox, topic)
    with psycopg.connect(inbox.dsn) as conn:
        backend = conn.info.backend_pid
        delays = Watched((3600.0,), lambda: inbox.conn.execute("SELECT pg_terminate_backend(%s)", [backend]))
        with pytest.raises(psycopg.OperationalError):
            handle_due(conn, Handling(group, fails, delays))
    assert inbox.conn.execute("SELECT state, attempts FROM outbox.inbox_parked").fetchall() == [("retry", 1)]


def test_many_retries_at_a_time_run_as_often_as_they_are_counted(inbox: InboxStage, topic: str) -> None:
    runs: Counter[tuple[bytes | None, int]] = Counter()
    lock = threading.Lock()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        with lock:
            runs[(message.body, message.reconsume_times)] += 1
        apply(conn, message)
        if message.reconsume_times < 6:
            raise ValueError("not yet")
        return SUCCESS

    inbox.produce_numbered(topic, 20, keys=20)
    with inbox.consumer(topic, listener, retry_workers=6, delays=AT_ONCE):
        inbox.wait_applied(20)
    assert runs == {(str(number).encode(), times): 1 for number in range(20) for times in range(7)}
