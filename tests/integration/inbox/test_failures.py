"""Messages that fail are parked, tried again, and dead after the last attempt; their keys are held in order."""

from __future__ import annotations

import contextlib
import threading
from time import monotonic

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, plans, threads
from outbox.inbox.failures import reported
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def test_a_failing_message_is_tried_again_and_applied_once(inbox: InboxStage, topic: str) -> None:
    seen: list[int] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        result = apply(conn, message)
        if message.body == b"3":
            seen.append(message.reconsume_times)
            if len(seen) < 3:
                raise ValueError(f"attempt {len(seen)}")
        return result

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, listener, retry_workers=4):
        inbox.wait_applied(8)
    assert seen == [0, 1, 2]
    assert sorted(map(int, inbox.applied("body"))) == list(range(8))
    assert inbox.count("outbox.inbox_parked") == 0
    assert sum(inbox.committed(topic, part) for part in range(4)) == 8


@pytest.mark.feature("S-99")
@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (None, "the listener returned NoneType; allowed: a ConsumeResult"),
        (ConsumeResult.RECONSUME_LATER, "the listener returned RECONSUME_LATER"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=["nothing", "later", "exit"],
)
def test_a_message_is_dead_after_its_last_attempt(
    inbox: InboxStage, topic: str, returned: object, error: str
) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        apply(conn, message)
        if isinstance(returned, BaseException):
            raise returned
        return returned  # type: ignore[return-value]

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([0])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    row = inbox.conn.execute("SELECT attempts, error, due_at FROM outbox.inbox_parked").fetchone()
    assert row is not None
    assert (row[0], row[2]) == (2, None)
    assert error in row[1]
    assert inbox.count("applied") == 0


def test_a_discarded_message_has_no_effect_and_does_not_come_again(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        apply(conn, message)
        return ConsumeResult.DISCARD if message.body == b"1" else ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 3, keys=1)
    with inbox.consumer(topic, listener):
        inbox.wait_applied(2)
    assert sorted(inbox.applied("body")) == ["0", "2"]
    assert inbox.count("outbox.inbox") == 3
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_failing_key_is_held_in_order_while_others_flow(inbox: InboxStage, topic: str) -> None:
    repaired = threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.key == b"k2" and message.body == b"12" and not repaired.is_set():
            raise ValueError("not yet")
        return apply(conn, message)

    inbox.produce_numbered(topic, 100)
    with inbox.consumer(topic, listener, orderly=True, delays=DelaySchedule.of([0.05] * 1000)):
        inbox.wait_applied(91)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 9, "the key is held with its successors")
        assert inbox.by_key()["k2"] == [2]
        repaired.set()
        inbox.produce_numbered(topic, 100, start=100)
        inbox.wait_applied(200)
    assert inbox.by_key() == {f"k{key}": [*range(key, 200, 10)] for key in range(10)}
    assert inbox.count("outbox.inbox_held_key") == inbox.count("outbox.inbox_parked") == 0


def test_a_dead_message_keeps_its_key_held(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"2":
            raise ValueError("never")
        return apply(conn, message)

    inbox.produce_numbered(topic, 20, keys=2)
    with inbox.consumer(topic, listener, orderly=True, delays=DelaySchedule.of([0])):
        inbox.wait_applied(11)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 9, "its successors wait")
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert inbox.by_key() == {"k0": [0], "k1": [*range(1, 20, 2)]}
    assert inbox.count("outbox.inbox_parked", "state = 'dead'") == 1
    assert inbox.count("outbox.inbox_parked", "state = 'waiting'") == 8


def test_what_a_listener_sends_leaves_with_its_effect_or_not_at_all(inbox: InboxStage, topic: str) -> None:
    outbox = Outbox(producer_group="points")

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        result = apply(conn, message)
        outbox.send(conn, Message("points", body=message.body))
        if message.body == b"1":
            raise ValueError("after it was sent")
        return result

    inbox.produce_numbered(topic, 3, keys=1)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        inbox.wait_applied(2)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 1, "one has failed")
    sent = inbox.conn.execute("SELECT convert_from(body, 'UTF8') FROM outbox.message ORDER BY 1").fetchall()
    assert sent == [("0",), ("2",)]


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_listener_that_ends_its_transaction_is_an_error(inbox: InboxStage, topic: str, ending: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        conn.execute(ending)
        return apply(conn, message)

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert inbox.count("applied") == 0
    assert inbox.count("outbox.inbox_parked", "error LIKE '%ended the transaction%'") == 1


def test_an_error_of_postgresql_that_a_listener_swallows_is_a_failure(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        apply(conn, message)
        with contextlib.suppress(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1 / 0")
        return ConsumeResult.SUCCESS

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert inbox.count("outbox.inbox_parked", "error LIKE '%did not let pass%'") == 1


@pytest.mark.feature("S-99")
def test_a_listener_that_hangs_is_given_up_and_its_message_parked(inbox: InboxStage, topic: str) -> None:
    hangs = threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        result = apply(conn, message)
        if message.body == b"1" and message.reconsume_times == 0:
            hangs.wait()
        return result

    inbox.produce_numbered(topic, 3, keys=1)
    with inbox.consumer(topic, listener, timeout=1.0, workers=1, orderly=True):
        inbox.wait_applied(3)
        hangs.set()
    assert inbox.applied("body") == ["0", "1", "2"]


def test_waiting_for_a_zombie_is_not_time_of_the_listener(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The zombie is held for 7 s. PostgreSQL ends a transaction after 8 s, so the listener needs a new one.
    monkeypatch.setattr(threads, "MARGIN", 2.0)
    seen: list[int] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        conn.execute("SELECT pg_sleep(1.5)")
        return apply(conn, message)

    inbox.conn.execute("SELECT outbox.ensure_inbox_partition('2023-11-14')")
    with psycopg.connect(inbox.dsn) as zombie, inbox.consumer(topic, listener, timeout=6.0):
        wait_until(lambda: inbox.count("outbox.consumer_group"), "the group is registered")
        number = "00000000-0000-0000-0000-000000000001"
        zombie.execute(
            "INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest) "
            "SELECT id, %s, '2023-11-14', 1, 0, 0, '' FROM outbox.consumer_group",
            [number],
        )
        inbox.produce(topic, "k", "1", message_id=number, born_at=1_700_000_000)
        inbox.flush()
        until = monotonic() + 7.0
        wait_until(lambda: monotonic() > until, "it has waited")
        zombie.rollback()
        inbox.wait_applied(1)
    assert seen == [0]
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_message_that_cannot_be_parked_is_not_taken_over(
    inbox: InboxStage, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(partitions=1)

    def fail(_: Connection, message: ConsumedMessage) -> ConsumeResult:
        raise ValueError(f"never {message.offset}")

    with inbox.consumer(topic, fail, orderly=True, delays=DelaySchedule.of([]), drain=2.0):
        inbox.produce_numbered_in(topic, 1)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
        # By hand: its key is free, and it is still the first one of its key.
        inbox.conn.execute("DELETE FROM outbox.inbox_held_key")
        inbox.produce_numbered_in(topic, 1)
        wait_until(lambda: "inbox_parked_head" in caplog.text, "the second one cannot be parked")
        assert (inbox.count("outbox.inbox"), inbox.count("outbox.inbox_parked")) == (1, 1)
    assert inbox.conn.execute("SELECT next_off FROM outbox.inbox_position").fetchone() == (1,)


def test_members_try_different_retries_at_the_same_time(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 2)
    delays = DelaySchedule.of(["1h"])
    with inbox.consumer(topic, lambda *_: ConsumeResult.RECONSUME_LATER, delays=delays):
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 2, "both are parked")
    inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = clock_timestamp()")
    row = inbox.conn.execute("SELECT id FROM outbox.consumer_group").fetchone()
    assert row is not None
    with psycopg.connect(inbox.dsn) as one, psycopg.connect(inbox.dsn) as other:
        other.execute("SET lock_timeout = '5s'")
        first, second, third = (run(conn, plans.next_due(row[0])) for conn in (one, other, other))
        assert first is not None
        assert second is not None
        assert first.id != second.id
        assert third is None


def test_a_retry_that_another_member_counted_is_not_postponed(inbox: InboxStage, topic: str) -> None:
    delays = DelaySchedule.of(["1h", "1h", "1h"])
    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, lambda *_: ConsumeResult.RECONSUME_LATER, delays=delays):
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "it is parked")
    inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = clock_timestamp()")
    group = inbox.conn.execute("SELECT id FROM outbox.consumer_group").fetchone()
    assert group is not None
    with psycopg.connect(inbox.dsn) as conn:
        retry = run(conn, plans.next_due(group[0]))
        assert retry is not None
        conn.rollback()  # its session was lost, and another member tries it
        assert run(conn, plans.failed_again(retry, reported("x"), delays)) == "retry"
        run(conn, plans.postpone(retry, 0.5))
    assert inbox.count(
        "outbox.inbox_parked", "attempts = 2 AND due_at > clock_timestamp() + interval '50 min'"
    )


def test_a_discarded_retry_that_is_in_other_hands_is_left_to_them(inbox: InboxStage, topic: str) -> None:
    """Between the listener's rollback and the removal another member has locked the row, or has run it."""
    with inbox.consumer(
        topic, lambda *_: ConsumeResult.RECONSUME_LATER, orderly=True, delays=DelaySchedule.of([3600] * 3)
    ):
        inbox.produce_numbered(topic, 2, keys=1)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 2, "one is parked, and one behind it")
    inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now() WHERE state = 'retry'")
    [(group,)] = inbox.conn.execute("SELECT group_id FROM outbox.inbox_held_key").fetchall()
    with psycopg.connect(inbox.dsn) as one, psycopg.connect(inbox.dsn) as other:
        retry = run(one, plans.next_due(group))
        one.rollback()
        theirs = run(other, plans.next_due(group))
        assert retry is not None
        assert theirs is not None
        assert theirs.id == retry.id
        run(one, plans.take_out_discarded(group, retry))
        one.commit()
        run(other, plans.take_out(group, theirs))
        other.commit()
        inbox.conn.execute("DELETE FROM outbox.inbox_parked")
        run(one, plans.take_out_discarded(group, retry))
        one.commit()
    assert inbox.count("outbox.inbox_held_key") == 1, "the key is another message's by now"


@pytest.mark.parametrize("retries", [0, 1], ids=["delivery", "retry"])
def test_a_message_that_becomes_dead_is_logged_with_the_next_command(
    inbox: InboxStage, topic: str, caplog: pytest.LogCaptureFixture, retries: int
) -> None:
    def fail(_: Connection, message: ConsumedMessage) -> ConsumeResult:
        raise ValueError(f"attempt {message.reconsume_times}")

    [number] = inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, fail, delays=DelaySchedule.of([0] * retries)):
        wait_until(lambda: "is dead" in caplog.text, "it is logged")
    [(parked, failure)] = inbox.conn.execute(
        "SELECT id, fingerprint FROM outbox.inbox_parked WHERE state = 'dead'"
    ).fetchall()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [f"{number} is dead: {failure}; next: outbox dlq show {parked}"]
    assert failure.startswith("ValueError at ")
