"""A partition whose broker is away, or silent, waits by itself: a member begins with all others.

One question after the other was asked about the partitions that were assigned, and the first one without a reply ended
the round. Nothing of the topic, or of a topic that comes later in the alphabet, was read until the broker was back; and
nothing at all was fetched for five seconds of each round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from time import monotonic

import pytest

from outbox.inbox import FIRST, LAST, PushConsumer
from outbox.inbox.starts import ConsumeFrom
from outbox_local.stack.api import Stack
from tests.support.inbox_stage import InboxStage
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

BOUND_S = 20.0
"""For a machine that is busy with other tests; the partitions were not read at all."""
MOST_STILL_S = 3.0
"""The thread that fetches stood still for five seconds at a time."""


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    """A second broker, running."""
    with SecondBroker(private_stack) as broker:
        yield broker


@pytest.fixture
def inbox(private_database: str, private_stack: Stack) -> Iterator[InboxStage]:
    """A database and a consumer group of this test, beside the private broker."""
    with closing(InboxStage(private_database, private_stack.bootstrap_servers)) as stage:
        yield stage


class Topics:
    """A topic on each broker, and one on both; the one on the second broker is in the middle of the alphabet."""

    def __init__(self, broker: SecondBroker) -> None:
        self.well, self.sick = broker.make_topic(on=1), broker.make_topic(on=2)
        self.both = broker.make_spread_topic()
        assert self.well < self.sick < self.both
        self.everything = dict.fromkeys((self.well, self.sick, self.both), "*")

    def produce(self, inbox: InboxStage, word: str, *, sick: bool = False) -> float:
        """Produce a message into each partition of the first broker, or of the second one; return when."""
        topic, partition = (self.sick, 1) if sick else (self.well, 0)
        inbox.produce(topic, "k", f"{word}-one")
        inbox.produce(self.both, "k", f"{word}-both", partition=partition)
        inbox.flush()
        return monotonic()


def wait_for(inbox: InboxStage, word: str, since: float) -> None:
    """Wait until both messages are applied, and see that it was soon."""
    want = {f"{word}-one", f"{word}-both"}
    wait_until(lambda: want <= set(inbox.applied("body")), f"both of {word} are applied")
    assert monotonic() - since < BOUND_S


class Pulse:
    """The longest time for which the thread that fetches stood still, as far as it was looked at."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer, self.longest = consumer, 0.0

    def watch(self, seconds: float) -> None:
        until = monotonic() + seconds

        def is_over() -> bool:
            poller = self._consumer._poller
            assert poller is not None
            self.longest = max(self.longest, monotonic() - poller.polled_at)
            return monotonic() >= until

        wait_until(is_over, "the time is over")


@pytest.mark.feature("S-96")
@pytest.mark.parametrize("begins", [FIRST, LAST], ids=["new", "known"])
def test_a_partition_without_a_leader_waits_alone(
    inbox: InboxStage, broker: SecondBroker, begins: ConsumeFrom
) -> None:
    """With LAST, the group has positions when the broker dies: a restart, or a rebalance."""
    topics = Topics(broker)
    if begins is LAST:
        with inbox.consumer(topics.everything, consume_from=begins) as consumer:
            wait_until(lambda: len(consumer.vitals().partitions) == 4, "all are read")
            topics.produce(inbox, "before")
            inbox.wait_applied(2)
    topics.produce(inbox, "sick", sick=True)
    broker.kill()
    since = topics.produce(inbox, "well")
    with inbox.consumer(topics.everything, consume_from=begins) as consumer:
        wait_for(inbox, "well", since)
        pulse = Pulse(consumer)
        pulse.watch(6.0)
        wait_for(inbox, "later", topics.produce(inbox, "later"))
        assert len(consumer.vitals().partitions) == 2
        broker.start()
        wait_for(inbox, "sick", monotonic())
    assert pulse.longest < MOST_STILL_S
    assert len(inbox.applied("body")) == len(set(inbox.applied("body"))), "once each"


def test_a_new_group_begins_at_the_end_of_a_topic_when_all_its_ends_are_known(
    inbox: InboxStage, broker: SecondBroker
) -> None:
    """A partition of which the group has no position, beside others, would be read from its beginning later."""
    topics = Topics(broker)
    topics.produce(inbox, "old", sick=True)
    broker.kill()
    with inbox.consumer(topics.everything, consume_from=LAST) as consumer:
        wait_until(
            lambda: [part.topic for part in consumer.vitals().partitions] == [topics.well], "one is read"
        )
        inbox.produce(topics.well, "k", "well")
        inbox.flush()
        wait_until(lambda: "well" in inbox.applied("body"), "the other topic is applied", seconds=BOUND_S)
        broker.start()
        wait_until(lambda: len(consumer.vitals().partitions) == 4, "all are read")
        topics.produce(inbox, "new", sick=True)
        wait_for(inbox, "new", monotonic())
    assert not [body for body in inbox.applied("body") if body.startswith("old")]


def test_a_broker_that_is_silent_holds_up_its_own_partitions(inbox: InboxStage, broker: SecondBroker) -> None:
    topics = Topics(broker)
    topics.produce(inbox, "sick", sick=True)
    since = topics.produce(inbox, "well")
    with broker.paused(), inbox.consumer(topics.everything) as consumer:
        wait_for(inbox, "well", since)
        pulse = Pulse(consumer)
        pulse.watch(6.0)
        wait_for(inbox, "later", topics.produce(inbox, "later"))
    assert pulse.longest < MOST_STILL_S
