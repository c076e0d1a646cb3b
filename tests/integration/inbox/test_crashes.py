"""Consumers that are killed, stopped and replaced: each effect once, in the order of its key.

The schedule of each test is in its parameters: between which two lines of `outbox/inbox/handling.py` the process dies.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

STEPS = [
    "after the fetch",
    "before the write",
    "after the write",
    "before commit",
    "after commit",
    "after the row of the next one",
    "before Kafka's offset",
    "before the park",
    "after the park",
    "before the followers",
    "before the commit of the followers",
    "after the followers",
]


@pytest.mark.feature("S-90", "S-91", "S-92", "S-94", "S-95")
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_applies_each_effect_once(
    inbox: InboxStage, make_topic: MakeTopic, step: str
) -> None:
    topic = make_topic(partitions=1)
    for number in range(8):
        inbox.produce(topic, f"k{number % 2}", str(number))
    inbox.flush()
    with ConsumerProcess(inbox, topic, "a", dies=step, body="4", group_instance_id="only") as first:
        first.wait_killed()
    inbox.produce(topic, "k0", "8")
    inbox.produce(topic, "k1", "9")
    inbox.flush()
    with ConsumerProcess(inbox, topic, "b", group_instance_id="only") as second:
        inbox.wait_applied(10)
        second.stop()
    assert inbox.by_key() == {"k0": [0, 2, 4, 6, 8], "k1": [1, 3, 5, 7, 9]}
    assert inbox.count("outbox.inbox") == 10
    assert inbox.count("outbox.inbox_parked") == inbox.count("outbox.inbox_held_key") == 0
    assert inbox.committed(topic) == 10


@pytest.mark.feature("H-61")
@pytest.mark.parametrize("step", [step for step in STEPS if "park" in step or "followers" in step])
def test_a_kill_around_a_death_leaves_one_dead_letter_with_its_key_behind_it(
    inbox: InboxStage, make_topic: MakeTopic, step: str
) -> None:
    topic = make_topic(partitions=1)
    for number in range(10):
        inbox.produce(topic, f"k{number % 2}", str(number))
    inbox.flush()
    options: dict[str, Any] = {"fails": 4, "never_retries": True, "group_instance_id": "only"}
    with ConsumerProcess(inbox, topic, "a", dies=step, body="4", **options) as first:
        first.wait_killed()
    with ConsumerProcess(inbox, topic, "b", **options) as second:
        inbox.wait_applied(7)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 3, "its successors wait behind it")
        wait_until(lambda: inbox.committed(topic) == 10, "all are done")
        second.stop()
    assert inbox.by_key() == {"k0": [0, 2], "k1": [1, 3, 5, 7, 9]}
    found = inbox.conn.execute(
        "SELECT convert_from(body, 'UTF8'), state, attempts FROM outbox.inbox_parked ORDER BY id"
    ).fetchall()
    assert found == [("4", "dead", 1), ("6", "waiting", 0), ("8", "waiting", 0)]
    assert inbox.count("outbox.inbox_held_key") == 1


@pytest.mark.feature("S-92")
def test_a_stopped_member_that_goes_on_later_applies_nothing(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    for number in range(4):
        inbox.produce(topic, "k", str(number))
    inbox.flush()
    with ConsumerProcess(inbox, topic, "a", dies="stops", body="1") as first:
        first.wait_for("1")
        first.pause()
        with ConsumerProcess(inbox, topic, "b") as second:
            inbox.wait_applied(4)
            first.go_on()
            inbox.produce(topic, "k", "4")
            inbox.flush()
            inbox.wait_applied(5)
            second.stop()
    assert inbox.applied("body") == ["0", "1", "2", "3", "4"]
    assert inbox.applied("member") == ["a", "b", "b", "b", "b"]


def test_members_that_come_and_go_keep_order_and_repeat_nothing(inbox: InboxStage, topic: str) -> None:
    stop = threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        stop.wait(0.005)
        return apply(conn, message)

    inbox.produce_numbered(topic, 300, keys=20)
    settings = {"orderly": True, "workers": 3}
    with inbox.consumer(topic, listener, **settings):
        inbox.wait_applied(20)
        with inbox.consumer(topic, listener, **settings) as second:
            inbox.wait_applied(60)
            with inbox.consumer(topic, listener, **settings):
                inbox.wait_applied(150)
                second.stop()
                inbox.produce_numbered(topic, 100, keys=20, start=300)
                inbox.wait_applied(250)
            inbox.wait_applied(400)
    assert inbox.by_key() == {f"k{key}": [*range(key, 400, 20)] for key in range(20)}


def test_sessions_that_postgresql_ends_lose_and_repeat_nothing(inbox: InboxStage, topic: str) -> None:
    ended = 0
    inbox.produce_numbered(topic, 300, keys=20)
    with inbox.consumer(topic, orderly=True):
        for count in range(20, 220, 20):
            inbox.wait_applied(count)
            # Threads that pause after the last time have none.
            ended += wait_until(inbox.end_sessions, "there is a session to end")
        inbox.wait_applied(300)
        wait_until(lambda: inbox.count("outbox.inbox") == 300, "all are in the inbox")
    assert ended > 9
    assert inbox.by_key() == {f"k{key}": [*range(key, 300, 20)] for key in range(20)}
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_member_that_stood_still_is_refused_beside_members_that_differ(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic, goes_on = make_topic(partitions=1), threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        goes_on.wait(100)
        return apply(conn, message, "b")

    def position() -> object:
        return inbox.conn.execute("SELECT next_off FROM outbox.inbox_position").fetchone()

    inbox.produce(topic, "k", "0", tags="a")
    inbox.flush()
    with ConsumerProcess(inbox, topic, "a", tags="a") as first:
        inbox.wait_applied(1)
        wait_until(lambda: position() == (1,), "its position is stored")
        first.pause()
        for number in range(1, 4):
            inbox.produce(topic, "k", str(number), tags="b")
        inbox.flush()
        # As if it stood still for a minute.
        inbox.conn.execute("UPDATE outbox.consumer_member SET seen_at = seen_at - interval '61 seconds'")
        with inbox.consumer({topic: "b"}, listener, orderly=True):
            wait_until(lambda: inbox.count("outbox.consumer_member") == 2, "the other member is listed")
            first.go_on()
            assert first.process.wait(60) == 1
            assert "SubscriptionConflictError" in first.output()
            assert position() == (1,), "it passed what is not its own"
            goes_on.set()
            inbox.wait_applied(4)
    assert inbox.applied("member") == ["a", "b", "b", "b"]
