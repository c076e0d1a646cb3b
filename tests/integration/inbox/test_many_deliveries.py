"""A message that is delivered again and again, and a member that is given more than it can hold."""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult
from outbox.inbox.core.partitions import Limits
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until

TIMES = 10


@pytest.mark.feature("S-91", "S-92")
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_ten_deliveries_have_one_effect(inbox: InboxStage, topic: str, orderly: bool) -> None:
    one, now = str(uuid4()), time.time()
    for number in range(TIMES):
        inbox.produce(topic, "k", "again", message_id=one, born_at=now, partition=number % 4)
    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, orderly=orderly) as consumer:
        wait_until(lambda: consumer.vitals().lag == 0, "all records are done")
        messages = consumer.vitals().messages
    assert (messages["applied"], messages["refused"]) == (9, TIMES - 1)
    assert inbox.applied("body").count("again") == 1
    assert inbox.count("applied") == 9


@pytest.mark.feature("S-92")
def test_an_id_with_another_time_of_birth_on_another_day_is_another_message(
    inbox: InboxStage, topic: str
) -> None:
    one, now = str(uuid4()), time.time()
    for born_at in (now, now, now - 86_400):  # the relay never changes it; a bridge may
        inbox.produce(topic, "k", "1", message_id=one, born_at=born_at)
    inbox.flush()
    with inbox.consumer(topic) as consumer:
        wait_until(lambda: consumer.vitals().lag == 0, "all records are done")
    assert inbox.applied("body") == ["1", "1"]


@pytest.mark.feature("S-96")
def test_a_partition_is_paused_while_its_buffer_is_full_and_others_are_read(
    inbox: InboxStage, topic: str
) -> None:
    go_on = threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.partition == 0:
            go_on.wait()
        return apply(conn, message)

    inbox.produce_numbered_in(topic, 200)
    limits = Limits(messages=10)
    with inbox.consumer(topic, listener, orderly=True, workers=2, limits=limits) as consumer:

        def is_paused() -> bool:
            return any(each.is_paused for each in consumer.vitals().partitions if each.partition == 0)

        try:
            wait_until(is_paused, "the partition is paused")
            inbox.produce_numbered_in(topic, 50, partition=1)
            inbox.wait_applied(50, seconds=60)
            assert is_paused()
            wait_until(
                lambda: (
                    not any(each.is_paused for each in consumer.vitals().partitions if each.partition != 0)
                ),
                "the others are read on",
            )
        finally:
            go_on.set()
        inbox.wait_applied(250)
        wait_until(lambda: not is_paused(), "it is read again")
