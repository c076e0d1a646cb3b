"""A rolling change of a subscription: members of before and after run at once, and each message is applied once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.support.inbox_stage import Connection, InboxStage, Listener, apply
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

COUNT = 60


def listener_of(name: str) -> Listener:
    """A listener that fails with every third message once, and states whose effect it is."""

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if int(message.body or b"") % 3 == 0 and not message.reconsume_times:
            return ConsumeResult.RECONSUME_LATER
        return apply(conn, message, f"{name} {message.topic}")

    return listener


def subscription(inbox: InboxStage) -> set[str]:
    """The topics that the group reads."""
    rows = inbox.conn.execute("SELECT subscription::text FROM outbox.consumer_group").fetchall()
    return {topic for (text,) in rows for topic in json.loads(text)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("keeps", [True, False], ids=["a to a and b", "a to b"])
def test_members_that_read_other_topics_run_at_once(
    inbox: InboxStage, make_topic: MakeTopic, protocol: str, keeps: bool
) -> None:
    first, second = make_topic(partitions=2), make_topic(partitions=2)
    after = {first: "*", second: "*"} if keeps else {second: "*"}
    kafka = {"bootstrap.servers": inbox.bootstrap_servers, "group.protocol": protocol}
    options: dict[str, Any] = {"orderly": True, "delays": DelaySchedule.of([0.1] * 50), "kafka": kafka}

    def produce(topic: str, start: int) -> None:
        for number in range(start, start + COUNT):
            inbox.produce(topic, f"{topic} {number % 4}", str(number), partition=number % 2)
        inbox.flush()

    def bodies(topic: str) -> list[int]:
        rows = inbox.conn.execute("SELECT body FROM applied WHERE key LIKE %s || ' %%' ORDER BY n", [topic])
        return [int(body) for (body,) in rows]

    produce(first, 0)
    old = inbox.consumer({first: "*"}, listener_of("old"), **options)
    with old:
        wait_until(lambda: len(bodies(first)) == COUNT, "the old member reads its topic")
        new = inbox.consumer(after, listener_of("new"), **options)
        with new:
            produce(second, 0)
            produce(first, COUNT)
            wait_until(lambda: len(bodies(first)) == 2 * COUNT, "the old topic goes on", seconds=180)
            wait_until(lambda: len(bodies(second)) == COUNT, "the new topic is read", seconds=180)
            assert subscription(inbox) == {first, second}
            assert old.vitals().defect is new.vitals().defect is None
            old.close()
            wait_until(lambda: subscription(inbox) == set(after), "it is that of the new member", seconds=60)
            produce(second, COUNT)
            wait_until(lambda: len(bodies(second)) == 2 * COUNT, "the new member goes on", seconds=180)
            if keeps:
                produce(first, 2 * COUNT)
                wait_until(lambda: len(bodies(first)) == 3 * COUNT, "also with the old topic", seconds=180)
    by_key = inbox.by_key()
    assert all(numbers == sorted(set(numbers)) for numbers in by_key.values()), "once, in order"
    assert inbox.count("applied", f"member = 'old {second}'") == 0, "no retry of a topic that is not its own"
    assert inbox.count("outbox.inbox_parked") == 0
