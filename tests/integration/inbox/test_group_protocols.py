"""Both protocols of consumer groups: the classic one, and the broker's own (KIP-848, `group.protocol=consumer`)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outbox.errors import ConfigurationError
from outbox.inbox import PushConsumer, kafka_offsets
from outbox.inbox.repeats import QuietLog
from tests.support.consumer_process import ConsumerProcess
from tests.support.inbox_stage import InboxStage
from tests.support.members import member_of
from tests.support.waiting import wait_until

QUIET = QuietLog(logging.getLogger("outbox.inbox"))
COUNT = 200


def member(inbox: InboxStage, topic: str, protocol: str, **options: Any) -> PushConsumer:
    """A member of the group by a protocol, in an orderly group."""
    kafka = {"bootstrap.servers": inbox.bootstrap_servers, "group.protocol": protocol}
    return inbox.consumer(topic, kafka=kafka, orderly=True, **options)


def parts(*members: PushConsumer) -> list[int]:
    """How many partitions each of them reads."""
    return [len(each.vitals().partitions) for each in members]


@pytest.mark.feature("S-90")
@pytest.mark.parametrize("protocols", [("consumer", "consumer"), ("classic", "consumer")], ids="-".join)
def test_members_share_partitions_and_apply_each_message_once_in_order(
    inbox: InboxStage, topic: str, protocols: tuple[str, str]
) -> None:
    """Also a member of the new protocol beside one of the old one: a rolling change of it."""
    first, second = (member(inbox, topic, protocol) for protocol in protocols)
    with first:
        inbox.produce_numbered(topic, COUNT)
        wait_until(lambda: parts(first) == [4], "one member reads all")
        with second:
            wait_until(lambda: sorted(parts(first, second)) == [2, 2], "they share", seconds=120)
            inbox.produce_numbered(topic, COUNT, start=COUNT)
            inbox.wait_applied(2 * COUNT)
        wait_until(lambda: parts(first) == [4], "the first one has all again", seconds=120)
        inbox.produce_numbered(topic, COUNT, start=2 * COUNT)
        inbox.wait_applied(3 * COUNT)
    assert inbox.by_key() == {f"k{key}": [*range(key, 3 * COUNT, 10)] for key in range(10)}
    assert inbox.committed(topic) == inbox.end_of(topic), "Kafka has the offsets"


@pytest.mark.feature("S-90")
def test_a_killed_member_of_the_new_protocol_is_followed_by_another_one(
    inbox: InboxStage, topic: str
) -> None:
    """After the session of 45 s that the broker has: clients cannot shorten it."""
    inbox.produce_numbered(topic, COUNT)
    dies: dict[str, Any] = {"dies": "after the write", "body": "50", "group_protocol": "consumer"}
    with ConsumerProcess(inbox, topic, "first", **dies) as lost:
        wait_until(lambda: lost.process.poll() is not None, "it has killed itself", seconds=120)
    with member(inbox, topic, "consumer") as other:
        inbox.produce_numbered(topic, COUNT, start=COUNT)
        inbox.wait_applied(2 * COUNT, seconds=240)
        wait_until(lambda: parts(other) == [4], "it reads all")
    assert inbox.by_key() == {f"k{key}": [*range(key, 2 * COUNT, 10)] for key in range(10)}


def test_kafka_states_whether_it_knows_a_member_of_the_new_protocol(inbox: InboxStage, topic: str) -> None:
    """Of one that it does not know the client is replaced: docs/adr/0019."""
    with member(inbox, topic, "consumer") as known:
        wait_until(lambda: parts(known) == [4], "it reads all")
        assert kafka_offsets._is_known(known.member, QUIET)
        assert not kafka_offsets._is_known(member(inbox, topic, "consumer").member, QUIET)


@pytest.mark.parametrize(
    "name", ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"]
)
def test_settings_that_the_broker_has_under_the_new_protocol_are_refused(name: str) -> None:
    kafka = {"bootstrap.servers": "nowhere:1", "group.protocol": "consumer"}
    assert "partition.assignment.strategy" not in member_of("points", {"orders": "*"}, kafka=kafka).librdkafka
    with pytest.raises(
        ConfigurationError, match=f"{name} = 1; allowed: leave it out with group.protocol=consumer"
    ):
        member_of("points", {"orders": "*"}, kafka={**kafka, name: 1})
