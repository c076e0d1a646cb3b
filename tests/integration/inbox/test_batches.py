"""Batch listeners: one transaction for many messages, and only those that failed come again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.errors import ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, HeaderFilter, Limits
from tests.support.inbox_stage import Connection, InboxStage, apply_all
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

SUCCESS, LATER, DISCARD = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER, ConsumeResult.DISCARD
BATCH: dict[str, Any] = {"batch": 50, "linger": 1.0, "workers": 1}
"""One thread, so that what is produced before the consumer starts comes in few batches."""


def bodies(messages: Sequence[ConsumedMessage]) -> list[int]:
    return [int(message.body or b"-1") for message in messages]


def transactions(inbox: InboxStage) -> list[int]:
    """How many effects each transaction has, the first one first."""
    rows = inbox.conn.execute("SELECT count(*) FROM applied GROUP BY xmin ORDER BY min(n)").fetchall()
    return [row[0] for row in rows]


def test_a_batch_is_one_transaction(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_numbered_in(topic, 120)
    with inbox.consumer(topic, apply_all, **BATCH):
        inbox.wait_applied(120)
        wait_until(lambda: inbox.committed(topic) == 120, "the offset follows")
    assert sorted(map(int, inbox.applied("body"))) == list(range(120))
    assert max(transactions(inbox)) == 50
    assert len(transactions(inbox)) < 12
    rows = inbox.conn.execute("SELECT count(*) FROM outbox.inbox GROUP BY xmin").fetchall()
    assert sorted(row[0] for row in rows) == sorted(transactions(inbox))


def test_messages_that_were_applied_are_refused_in_batches(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 100)
    with inbox.consumer(topic, apply_all, batch=30):
        inbox.wait_applied(100)
    inbox.set_committed(topic, dict.fromkeys(range(4), 0))
    inbox.produce_numbered(topic, 10, start=100)
    with inbox.consumer(topic, apply_all, batch=30):
        inbox.wait_applied(110)
        wait_until(lambda: sum(inbox.committed(topic, part) for part in range(4)) == 110, "offsets follow")
    assert inbox.count("applied") == inbox.count("outbox.inbox") == 110


def test_an_orderly_batch_has_one_message_of_a_key(inbox: InboxStage, topic: str) -> None:
    seen: list[int] = []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        seen.append(len(messages))
        assert len({message.key for message in messages}) == len(messages)
        return apply_all(conn, messages)

    inbox.produce_numbered(topic, 200, keys=20)
    with inbox.consumer(topic, listener, orderly=True, batch=50, linger=0.02):
        inbox.wait_applied(200)
    assert inbox.by_key() == {f"k{key}": [*range(key, 200, 20)] for key in range(20)}
    assert 1 < max(seen) <= 20


@pytest.mark.feature("H-07")
@pytest.mark.parametrize("orderly", [False, True])
def test_only_the_message_that_raises_comes_again(inbox: InboxStage, topic: str, orderly: bool) -> None:
    runs: Counter[int] = Counter()
    times: list[int] = []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        runs.update(bodies(messages))
        apply_all(conn, messages)
        for message in messages:
            if message.body == b"13":
                times.append(message.reconsume_times)
                if message.reconsume_times < 2:
                    raise ValueError("not yet")
        return SUCCESS

    inbox.produce_numbered(topic, 40, keys=40)
    with inbox.consumer(topic, listener, orderly=orderly, retry_workers=4, **BATCH):
        inbox.wait_applied(40)
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "nothing is parked")
    assert sorted(map(int, inbox.applied("body"))) == list(range(40))
    assert set(times) == {0, 1, 2}
    assert Counter(times)[1] == Counter(times)[2] == 1
    assert max(runs.values()) <= 2 + 6 + 2
    assert inbox.count("outbox.inbox_held_key") == 0


@pytest.mark.feature("H-07")
def test_only_messages_that_are_reported_as_failed_are_parked(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic, calls = make_topic(partitions=1), []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        calls.append(bodies(messages))
        apply_all(conn, messages)
        kinds = {0: LATER, 1: DISCARD}
        return [
            SUCCESS if each.reconsume_times else kinds.get(int(each.body or b"") % 10, SUCCESS)
            for each in messages
        ]

    inbox.produce_numbered_in(topic, 50)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([0.5]), **BATCH):
        inbox.wait_applied(45)
        wait_until(lambda: inbox.committed(topic) == 50, "the offset follows")
    assert sorted(map(int, inbox.applied("body"))) == [each for each in range(50) if each % 10 != 1]
    assert inbox.count("outbox.inbox") == 50
    assert inbox.count("outbox.inbox_parked") == 0
    firsts = [call for call in calls if len(call) > 1]
    assert max(Counter(body for call in firsts for body in call).values()) == 2, "the rest is run once more"
    assert sorted(call for call in calls if len(call) == 1) == [[number] for number in range(0, 50, 10)]


@pytest.mark.parametrize("result", [DISCARD, LATER])
def test_one_result_is_that_of_all_messages_of_a_batch(
    inbox: InboxStage, make_topic: MakeTopic, result: ConsumeResult
) -> None:
    topic = make_topic(partitions=1)

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        apply_all(conn, messages)
        return result

    inbox.produce_numbered_in(topic, 12)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([]), **BATCH):
        wait_until(lambda: inbox.count("outbox.inbox") == 12, "all are handled")
        wait_until(lambda: inbox.committed(topic) == 12, "the offset follows")
    assert inbox.count("applied") == 0
    assert inbox.count("outbox.inbox_parked", "state = 'dead'") == (0 if result is DISCARD else 12)


def test_a_wrong_number_of_results_parks_with_that_error(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        apply_all(conn, messages)
        return [SUCCESS] * (len(messages) + (b"3" in [each.body for each in messages]))

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([]), **BATCH):
        inbox.wait_applied(7)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one is dead")
    assert inbox.count("outbox.inbox_parked", "error LIKE '%returned 2 results for 1 messages%'") == 1
    assert sorted(map(int, inbox.applied("body"))) == [0, 1, 2, 4, 5, 6, 7]


def test_a_key_that_is_held_leaves_its_batch_and_delays_no_other(inbox: InboxStage, topic: str) -> None:
    repaired = threading.Event()

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        apply_all(conn, messages)
        return [LATER if each.body == b"12" and not repaired.is_set() else SUCCESS for each in messages]

    inbox.produce_numbered(topic, 100)
    delays = DelaySchedule.of([0.05] * 1000)
    with inbox.consumer(topic, listener, orderly=True, delays=delays, batch=20, linger=0.02):
        inbox.wait_applied(91)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 9, "the key is held with its successors")
        assert inbox.by_key()["k2"] == [2]
        repaired.set()
        inbox.produce_numbered(topic, 100, start=100)
        inbox.wait_applied(200)
    assert inbox.by_key() == {f"k{key}": [*range(key, 200, 10)] for key in range(10)}
    assert inbox.count("outbox.inbox_held_key") == inbox.count("outbox.inbox_parked") == 0


def test_two_copies_of_a_message_in_one_batch_are_applied_once(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    ids = [inbox.produce(topic, "k", str(number), born_at=1_700_000_000) for number in range(5)]
    for number in range(5):
        inbox.produce(topic, "k", str(number), message_id=ids[number], born_at=1_700_000_000)
    inbox.produce(topic, "k", "other", message_id=ids[0], born_at=1_700_000_000)
    inbox.flush()
    with inbox.consumer(topic, apply_all, **BATCH):
        wait_until(lambda: inbox.committed(topic) == 11, "all are handled")
    assert sorted(inbox.applied("body")) == ["0", "1", "2", "3", "4", "other"]
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_batch_that_hangs_costs_two_threads_and_parks_one_message(inbox: InboxStage, topic: str) -> None:
    goes_on, hung = threading.Event(), []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        apply_all(conn, messages)
        if 7 in bodies(messages) and not messages[0].reconsume_times:
            hung.append(len(messages))
            goes_on.wait(100)
        return SUCCESS

    inbox.produce_numbered(topic, 20, keys=20)
    with inbox.consumer(topic, listener, timeout=1.0, orderly=True, **BATCH):
        inbox.wait_applied(20)
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "nothing is parked")
        goes_on.set()
    assert sorted(map(int, inbox.applied("body"))) == list(range(20))
    assert len(hung) == 2
    assert hung[1] == 1


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"])
def test_a_batch_listener_that_ends_its_transaction_applies_nothing_twice(
    inbox: InboxStage, topic: str, ending: str
) -> None:
    calls: list[int] = []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        apply_all(conn, messages)
        calls.append(len(messages))
        if len(messages) > 1 or ending != "ROLLBACK":
            conn.execute(ending.encode())
        return SUCCESS

    inbox.produce_numbered(topic, 10, keys=10)
    with inbox.consumer(topic, listener, **BATCH):
        wait_until(lambda: inbox.count("outbox.inbox") == 10, "all are handled")
        wait_until(lambda: sum(inbox.committed(topic, part) for part in range(4)) == 10, "offsets follow")
    assert sorted(map(int, inbox.applied("body"))) == list(range(10))
    dead = inbox.count("outbox.inbox_parked", "state = 'dead' AND error LIKE '%ended the transaction%'")
    assert dead == (0 if ending == "ROLLBACK" else 10), "a part of the effect of each of them may be missing"
    assert calls[0] > 1


def test_commit_in_a_batch_listener_ends_nothing(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        apply_all(conn, messages)
        with pytest.raises(ListenerError, match="leave out COMMIT"):
            conn.commit()
        assert inbox.count("applied") == 0
        return LATER

    inbox.produce_numbered(topic, 4)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([]), **BATCH):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 4, "all are dead")
    assert inbox.count("applied") == 0


def test_a_session_that_is_lost_in_a_batch_counts_no_attempt(inbox: InboxStage, topic: str) -> None:
    seen: list[int] = []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        seen.extend(message.reconsume_times for message in messages)
        apply_all(conn, messages)
        if len(seen) == len(messages):
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return SUCCESS

    inbox.produce_numbered(topic, 20, keys=20)
    with inbox.consumer(topic, listener, orderly=True, **BATCH):
        inbox.wait_applied(20)
    assert set(seen) == {0}
    assert len(seen) > 20
    assert inbox.count("applied") == 20
    assert inbox.count("outbox.inbox_parked") == 0


def test_one_message_that_ends_its_session_each_time_is_parked_alone(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outbox.inbox.core import hands

    monkeypatch.setattr(hands, "MOST_INTERRUPTIONS", 2)

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        apply_all(conn, messages)
        if 5 in bodies(messages):
            conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return SUCCESS

    inbox.produce_numbered(topic, 10, keys=10)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([]), **BATCH):
        inbox.wait_applied(9)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one is dead")
    assert sorted(map(int, inbox.applied("body"))) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_message_that_the_inbox_cannot_take_is_singled_out_of_its_batch(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    inbox.conn.execute("ALTER TABLE outbox.inbox ADD CONSTRAINT refuses_three CHECK (off <> 3)")
    inbox.produce_numbered_in(topic, 6)
    with inbox.consumer(topic, apply_all, **BATCH):
        inbox.wait_applied(4)
        inbox.conn.execute("ALTER TABLE outbox.inbox DROP CONSTRAINT refuses_three")
        inbox.wait_applied(6)
    assert sorted(map(int, inbox.applied("body"))) == list(range(6))


@pytest.mark.feature("H-14")
def test_what_a_batch_sends_leaves_with_its_effects(inbox: InboxStage, topic: str) -> None:
    outbox = Outbox(producer_group="points")

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        apply_all(conn, messages)
        outbox.send_many(conn, [Message("points", body=each.body) for each in messages])
        return [LATER if each.body == b"2" else SUCCESS for each in messages]

    inbox.produce_numbered(topic, 5)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([]), **BATCH):
        inbox.wait_applied(4)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one is dead")
    sent = inbox.conn.execute("SELECT convert_from(body, 'UTF8') FROM outbox.message ORDER BY 1").fetchall()
    assert sent == [("0",), ("1",), ("3",), ("4",)]


def test_batches_that_have_messages_in_common_do_not_deadlock(inbox: InboxStage, topic: str) -> None:
    """Two members read the same messages in two orders: as a zombie and the new owner of its partitions do."""
    inbox.produce_numbered(topic, 400, keys=400)
    states: list[str | None] = []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        return apply_all(conn, messages)

    def connected() -> Connection:
        return Watched.connect(inbox.dsn, application_name="outbox consumer")

    class Watched(psycopg.Connection[Any]):
        def wait(self, *args: Any, **options: Any) -> Any:
            try:
                return super().wait(*args, **options)
            except psycopg.Error as error:
                states.append(error.sqlstate)
                raise

    options: dict[str, Any] = {"batch": 40, "dsn": connected, "limits": Limits(), "workers": 3}
    with inbox.consumer(topic, listener, **options):
        inbox.wait_applied(100)
        with inbox.consumer(topic, listener, **options):
            inbox.wait_applied(250)
            inbox.produce_numbered(topic, 200, keys=200, start=400)
        inbox.wait_applied(600)
    assert inbox.count("applied") == 600
    assert "40P01" not in states


def test_members_with_and_without_batches_share_a_group(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 200, keys=20)
    with (
        inbox.consumer(topic, apply_all, orderly=True, batch=10),
        inbox.consumer(topic, orderly=True),
    ):
        inbox.wait_applied(100)
        inbox.produce_numbered(topic, 100, keys=20, start=200)
        inbox.wait_applied(300)
    assert inbox.by_key() == {f"k{key}": [*range(key, 300, 20)] for key in range(20)}


def test_a_filter_that_raises_takes_its_message_out_of_the_batch(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    seen: list[int] = []

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        seen.extend(bodies(messages))
        return apply_all(conn, messages)

    for number in range(10):
        inbox.produce(topic, "k", str(number), headers=(("n", str(number % 5).encode()),))
    inbox.flush()
    # Of each five, one is skipped and one cannot be decided on.
    chosen = HeaderFilter("chosen", lambda headers: {b"1": False, b"2": None}.get(headers["n"], True))  # type: ignore[arg-type,return-value]
    with inbox.consumer({topic: chosen}, listener, delays=DelaySchedule.of([]), **BATCH):
        inbox.wait_applied(6)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 2, "two are dead")
        wait_until(lambda: inbox.committed(topic) == 10, "the offset follows")
    assert sorted(seen) == [0, 3, 4, 5, 8, 9]
