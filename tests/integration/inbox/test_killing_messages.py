"""A message whose listener kills its process, in its first run or in a retry: a dead letter after three runs.

Counted in the transaction of the run, it would come again with each new process, and nothing else would get on.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import InboxStage
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

HEALTHY = 200
KEYS = 50
BOUND_S = 60.0
"""Until all is applied, on a busy machine: four starts of a process."""


def consume(inbox: InboxStage, topic: str, step: str, count: int, batch: int | None = None) -> int:
    """Start one process after the other until so many effects are applied; return how many killed themselves."""
    for kills in range(20):
        with ConsumerProcess(
            inbox, topic, str(kills), dies=step, body="poison", group_instance_id="only", batch=batch
        ) as consumer:
            wait_until(
                lambda: consumer.process.poll() is not None or is_done(inbox, count),
                "it was killed, or all is applied",
                seconds=BOUND_S,
            )
            if consumer.process.poll() is None:
                consumer.stop()
                return kills
            consumer.wait_killed()
    raise AssertionError("it was killed again and again")


def is_done(inbox: InboxStage, count: int) -> bool:
    """Whether so many effects are applied, and a message is dead."""
    return inbox.count("applied") >= count and inbox.count("outbox.inbox_parked", "state = 'dead'") == 1


def dead_letters(inbox: InboxStage) -> list[tuple[object, ...]]:
    rows = inbox.conn.execute(
        "SELECT convert_from(key, 'UTF8'), state, attempts, fingerprint FROM outbox.inbox_parked ORDER BY id"
    )
    return rows.fetchall()


@pytest.mark.feature("S-95")
@pytest.mark.parametrize("batch", [None, 20], ids=["single", "batches"])
@pytest.mark.parametrize("step", ["before the write", "in the retry"])
def test_a_message_that_kills_its_process_is_dead_after_three_runs(
    inbox: InboxStage, make_topic: MakeTopic, step: str, batch: int | None
) -> None:
    topic = make_topic(partitions=1)
    inbox.produce(topic, "poison", "poison")
    for number in range(HEALTHY):
        inbox.produce(topic, f"k{number % KEYS}", str(number))
    inbox.flush()
    assert consume(inbox, topic, step, HEALTHY, batch=batch) == 3
    [(key, state, attempts, fingerprint)] = dead_letters(inbox)
    runs = 3 if step == "before the write" else 2
    assert (key, state, attempts) == ("poison", "dead", runs)
    assert fingerprint == "its process ended while the listener ran, time after time"
    assert {key: sorted(found) for key, found in inbox.by_key().items()} == {
        f"k{key}": [*range(key, HEALTHY, KEYS)] for key in range(KEYS)
    }


def test_members_that_take_over_from_each_other_count_the_same_message(inbox: InboxStage, topic: str) -> None:
    """Four members run at a time; three of them are killed, and the last one applies all else."""
    inbox.produce(topic, "poison", "poison")
    inbox.produce_numbered(topic, HEALTHY)
    with ExitStack() as running:
        members = [
            running.enter_context(
                ConsumerProcess(inbox, topic, str(number), dies="before the write", body="poison")
            )
            for number in range(4)
        ]
        wait_until(lambda: is_done(inbox, HEALTHY), "all is applied, and one is dead", seconds=2 * BOUND_S)
        [last] = [member for member in members if member.process.poll() is None]
        for member in members:
            if member is not last:
                member.wait_killed()
        last.stop()
    assert [row[:3] for row in dead_letters(inbox)] == [("poison", "dead", 3)]
    assert inbox.by_key() == {f"k{key}": [*range(key, HEALTHY, 10)] for key in range(10)}


def test_runs_are_not_counted_behind_a_member_that_ended_well(inbox: InboxStage, topic: str) -> None:
    for round_ in range(3):
        inbox.produce_numbered(topic, 40, start=40 * round_)
        with inbox.consumer(topic):
            inbox.wait_applied(40 * (round_ + 1))
            assert inbox.count("outbox.inbox_position", "reader IS NOT NULL") == 4
        assert inbox.count("outbox.inbox_position", "reader IS NOT NULL") == 0
    assert inbox.count("outbox.inbox_run") == 0


def test_messages_that_run_while_a_process_is_killed_from_outside_are_applied(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    """Each process stands still in one message, and is killed then; that message succeeds in the next process."""
    topic = make_topic(partitions=1)
    for number in range(5):
        for key in range(10):
            inbox.produce(topic, f"k{key}", str(10 * number + key))
        inbox.flush()
        body = str(10 * number + 5)
        with ConsumerProcess(
            inbox, topic, "a", dies="stops" if number < 4 else "", body=body, group_instance_id="only"
        ) as consumer:
            consumer.wait_for(body)
            inbox.wait_applied(10 * number + 9)
            if number == 4:
                inbox.wait_applied(50)
                consumer.stop()
    assert inbox.by_key() == {f"k{key}": [*range(key, 50, 10)] for key in range(10)}
    assert dead_letters(inbox) == []
