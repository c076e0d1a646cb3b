"""Kafka stands still for longer than the sessions of its members: they come back soon after others have it again.

A broker that goes on after 21 to 28 s has fenced itself, and replies for a moment with metadata that list no broker. A
client of librdkafka that hears that at the wrong moment has no broker left to connect to, reports nothing, and never
comes back: about one of twelve rounds. The bound holds in every round.
"""

from __future__ import annotations

from contextlib import closing
from time import monotonic

import pytest

from outbox.inbox.core.contact import CONFIRM, PATIENCE
from outbox_local.stack.api import Stack
from tests.support.inbox_stage import InboxStage
from tests.support.kafka_records import read_topic
from tests.support.waiting import wait_until

SESSION_S = 6.0
BOUND_S = SESSION_S + PATIENCE + CONFIRM + 30.0
"""The silence, two questions, and a rebalance on a busy machine; from when an observer reads again."""
FROZEN_S = (24.6, 23.8, 26.2, 22.4, 25.3, 27.1, 23.2, 25.8)


@pytest.mark.feature("S-96")
@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="short"), pytest.param(16, id="long", marks=pytest.mark.long)]
)
def test_members_come_back_after_each_time_that_kafka_stood_still(
    private_stack: Stack, private_database: str, private_topic: str, rounds: int
) -> None:
    topic = private_topic
    with closing(InboxStage(private_database, private_stack.bootstrap_servers)) as inbox:
        session = {"session.timeout.ms": int(SESSION_S * 1000)}
        kafka = {"bootstrap.servers": inbox.bootstrap_servers, **session}
        members = [inbox.consumer(topic, kafka=kafka) for _ in range(2)]

        def read() -> list[int]:
            return [len(member.vitals().partitions) for member in members]

        def is_back() -> bool:
            return read() == [2, 2] and {member.vitals().trouble for member in members} == {None}

        with members[0], members[1]:
            wait_until(is_back, "both members read")
            for number in range(rounds):
                freeze(private_stack, FROZEN_S[number % len(FROZEN_S)])
                inbox.produce_numbered(topic, 40, start=40 * number)
                assert len(read_topic(inbox.bootstrap_servers, topic)) == 40 * (number + 1)
                since = monotonic()
                wait_until(is_back, f"both members are back in round {number}", seconds=BOUND_S)
                inbox.wait_applied(40 * (number + 1), seconds=max(1.0, since + BOUND_S - monotonic()))
        assert sorted(map(int, inbox.applied("body"))) == [*range(40 * rounds)]


def freeze(stack: Stack, seconds: float) -> None:
    """Stop the broker's process for so long."""
    until = monotonic() + seconds
    stack.pause_kafka()
    try:
        wait_until(lambda: monotonic() >= until, "the time is over", seconds=seconds + 30)
    finally:
        stack.resume_kafka()
