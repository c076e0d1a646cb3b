"""Static members (KIP-345): a member that is started again within its session keeps its partitions."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.inbox import PushConsumer
from tests.support.inbox_stage import InboxStage
from tests.support.waiting import wait_until


def epochs_of(consumer: PushConsumer) -> dict[int, int]:
    """By partition, the number of its assignment to this member."""
    (topic,) = consumer.member.subscription
    with consumer._assignments as partitions:
        found = {part: partitions.find((topic, part)) for part in range(4)}
    return {part: each.epoch for part, each in found.items() if each is not None}


@pytest.mark.feature("S-75")
@pytest.mark.parametrize("is_static", [True, False], ids=["static", "dynamic"])
def test_a_static_member_that_starts_again_moves_no_partition(
    inbox: InboxStage, topic: str, *, is_static: bool
) -> None:
    def member(name: str) -> PushConsumer:
        kafka: dict[str, Any] = {"bootstrap.servers": inbox.bootstrap_servers, "session.timeout.ms": 45_000}
        if is_static:
            kafka["group.instance.id"] = name
        return inbox.consumer(topic, kafka=kafka, orderly=True)

    with member("b") as stays:
        first = member("a").start()
        wait_until(lambda: len(epochs_of(stays)) == len(epochs_of(first)) == 2, "both have two partitions")
        before, moved = epochs_of(stays), set(epochs_of(first))
        first.close()
        inbox.produce_numbered(topic, 40, keys=40)
        if not is_static:
            wait_until(lambda: len(epochs_of(stays)) == 4, "the other one gets all of them")
        with member("a") as again:
            wait_until(lambda: len(epochs_of(again)) == 2, "it has two partitions")
            inbox.wait_applied(40)
            if is_static:
                assert set(epochs_of(again)) == moved
                assert epochs_of(stays) == before, "nothing was given to the other one, or taken from it"
    assert sorted(map(int, inbox.applied("body"))) == [*range(40)]
