"""Members with a batch listener that are killed and stopped: each effect once.

The schedule of each test is in its parameters: between which two lines of `outbox/inbox/batches.py` the process dies,
or between which two transactions of one batch.
"""

from __future__ import annotations

import pytest

from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import InboxStage
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

STEPS = [
    "before the write",
    "after the write",
    "before commit",
    "after commit",
    "before Kafka's offset",
    "after a half",
    "after a report",
    "after the rest",
    "before the park",
    "after the park",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_between_two_lines_of_a_batch_applies_each_effect_once(
    inbox: InboxStage, make_topic: MakeTopic, step: str
) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_numbered_in(topic, 16)
    with ConsumerProcess(inbox, topic, "a", dies=step, body="4", batch=16, group_instance_id="only") as first:
        first.wait_killed()
    before = inbox.count("applied")
    # The process prints what the listener gets.
    assert len(first.lines) > 3, "more than one message was in its batch"
    inbox.produce_numbered_in(topic, 2)
    with ConsumerProcess(inbox, topic, "b", batch=5, group_instance_id="only") as second:
        inbox.wait_applied(18)
        wait_until(lambda: inbox.committed(topic) == 18, "the offset follows")
        second.stop()
    assert before < 16 or step in ("after commit", "before Kafka's offset")
    assert sorted(map(int, inbox.applied("body"))) == sorted([*range(16), 0, 1])
    assert inbox.count("outbox.inbox") == 18
    assert inbox.count("outbox.inbox_parked") == inbox.count("outbox.inbox_held_key") == 0


def test_a_stopped_member_that_goes_on_later_applies_nothing_of_its_batch(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_numbered_in(topic, 10)
    with ConsumerProcess(inbox, topic, "a", dies="stops", body="1", batch=10) as first:
        first.wait_for("1")
        first.pause()
        # Batches of another size have other messages in common with the one that is stopped.
        with ConsumerProcess(inbox, topic, "b", batch=4) as second:
            inbox.wait_applied(10)
            first.go_on()
            inbox.produce_numbered_in(topic, 1)
            inbox.wait_applied(11)
            second.stop()
    assert sorted(map(int, inbox.applied("body"))) == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert set(inbox.applied("member")) <= {"a", "b"}
    assert inbox.count("applied", "member = 'b'") >= 10
