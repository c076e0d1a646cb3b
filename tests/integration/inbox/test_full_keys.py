"""What waits behind a dead message is bounded: the rest stays in Kafka, in order, and other partitions go on."""

from __future__ import annotations

import threading

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, Limits
from outbox.inbox.metrics import prometheus_text
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.outbox_command import outbox, succeed
from tests.support.scraping import samples
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

PER_KEY, MESSAGES = 20, 120
LIMITS = Limits(messages=40, width=60, behind_key=PER_KEY)
NEVER = DelaySchedule.of([])


def produce_of_key(inbox: InboxStage, topic: str, key: str, count: int, partition: int) -> None:
    """Produce messages of one key, each with its number as the body."""
    for number in range(count):
        inbox.produce(topic, key, str(number), partition=partition)
    inbox.flush()


@pytest.mark.feature("S-100", "S-103")
@pytest.mark.parametrize("batch", [None, 10])
def test_what_waits_behind_a_dead_message_is_bounded_and_applied_in_order_later(
    inbox: InboxStage, make_topic: MakeTopic, batch: int | None
) -> None:
    topic, is_repaired = make_topic(partitions=2), threading.Event()

    def one(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.key == b"sick" and message.body == b"0" and not is_repaired.is_set():
            raise ValueError("not yet")
        return apply(conn, message)

    def many(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        return [one(conn, message) for message in messages]

    produce_of_key(inbox, topic, "sick", MESSAGES, 0)
    produce_of_key(inbox, topic, "neighbour", 1, 0)
    listener = one if batch is None else many
    with inbox.consumer(topic, listener, orderly=True, delays=NEVER, limits=LIMITS, batch=batch) as consumer:
        wait_until(lambda: consumer.vitals().full_keys == 1, "the key is full")
        produce_of_key(inbox, topic, "innocent", MESSAGES, 1)
        wait_until(
            lambda: inbox.count("applied", "key = 'innocent'") == MESSAGES, "another partition goes on"
        )
        assert inbox.count("applied", "key = 'sick'") == 0
        assert inbox.count("outbox.inbox_parked", "state = 'waiting'") <= PER_KEY
        assert samples(prometheus_text([consumer]))["outbox_member_full_keys", inbox.group] == 1
        wait_until(
            lambda: inbox.count("outbox.consumer_member", "full_keys = 1") == 1,
            "the member states it",
            seconds=60,
        )
        status = outbox("status", "--json", "--dsn", inbox.dsn).json
        assert "full_keys" in [problem["kind"] for problem in status["problems"]]
        is_repaired.set()
        succeed("dlq", "redrive", "--group", inbox.group, "--yes", "--dsn", inbox.dsn)
        inbox.wait_applied(2 * MESSAGES + 1, seconds=240)
        wait_until(lambda: consumer.vitals().lag == 0, "nothing is left")
    assert inbox.by_key() == {
        "innocent": [*range(MESSAGES)],
        "sick": [*range(MESSAGES)],
        "neighbour": [0],
    }
    assert inbox.count("outbox.inbox_parked") == inbox.count("outbox.inbox_held_key") == 0


def test_a_group_has_a_bound_for_all_its_keys(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.partition == 0 and message.body == b"0":
            return ConsumeResult.DEAD
        return apply(conn, message)

    for key in range(6):
        produce_of_key(inbox, topic, f"k{key}", 10, 0)
    limits = Limits(behind_group=20)
    with inbox.consumer(topic, listener, orderly=True, limits=limits) as consumer:
        wait_until(lambda: consumer.vitals().full_keys > 0, "the group is full")
        produce_of_key(inbox, topic, "innocent", 50, 1)
        inbox.wait_applied(50)
        assert inbox.count("outbox.inbox_parked", "state = 'waiting'") <= 20
        assert inbox.count("applied", "key <> 'innocent'") == 0
