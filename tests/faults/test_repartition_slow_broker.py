"""A key goes to a new partition only after its messages in the old one are acknowledged, however long that takes.

The old partitions are on a broker that is paused, as a machine that swaps; the new ones are on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox.partitioning.lanes import lane_of
from outbox.partitioning.selectors import partition_of
from outbox_local.stack.api import Stack
from outbox_relay.publisher import overdue
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import Record, read_topic
from tests.support.moved_keys import grow, moved, wrong_of_moved
from tests.support.plain_inserts import Connection, connect, insert, wait_published
from tests.support.relay_session import relay_session
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("private stack")

BEFORE, AFTER = 2, 4
MOVES = "topic moves its keys"
MOVE = f"UPDATE outbox.topic SET partitions = {AFTER} WHERE name = %s"


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecondBroker]:
    with SecondBroker(private_stack) as second:
        yield second


class Moving:
    """A topic whose old partitions are on broker 2, and a key that moves to one on broker 1."""

    def __init__(self, conn: Connection, broker: SecondBroker) -> None:
        self.conn, self.servers = conn, broker.bootstrap_servers
        self.topic = broker.make_topic(on=2, partitions=BEFORE, message_timestamp_type="LogAppendTime")
        self.key = next(
            key
            for key in (f"k{number}" for number in count())
            if partition_of(None, key.encode(), AFTER) >= BEFORE
        )
        self.committed: list[tuple[str, int]] = []

    def send(self, key: str | None = None) -> None:
        key = key or self.key
        version = len(self.committed)
        insert(self.conn, self.topic, key, f"{key}:{version}", lane=lane_of(self.topic, None, key.encode()))
        self.committed.append((key, version))

    def grow(self) -> None:
        grow(self.servers, self.topic, AFTER, [[1], [1]])

    def move(self) -> None:
        self.conn.execute(MOVE, [self.topic])

    def new_records(self) -> int:
        """How many records the new partitions hold."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "none", "log_level": 0})
        try:
            new = (TopicPartition(self.topic, number) for number in range(BEFORE, AFTER))
            return sum(consumer.get_watermark_offsets(one, timeout=15)[1] for one in new)
        finally:
            consumer.close()

    def records(self) -> list[Record]:
        """Read the topic; the broker that was paused may not have heard of the new partitions yet."""
        found: list[list[Record]] = []

        def read() -> bool:
            with suppress(KafkaException):
                found.append(read_topic(self.servers, self.topic))
            return bool(found)

        wait_until(read, "all partitions are read")
        return found[0]

    def require_moved_in_order(self) -> None:
        """Compare what is in Kafka with what was sent."""
        records = self.records()
        assert moved(records, BEFORE)
        assert wrong_of_moved(records, self.committed, BEFORE, AFTER) == ""


def test_a_key_moves_when_the_old_partition_has_acknowledged(
    private_database: str, broker: SecondBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "LATE_S", 60.0)  # no lane is set aside: it would keep the key back by itself
    with connect(private_database) as conn:
        moving = Moving(conn, broker)
        with RelayThread(private_database, moving.servers) as relay:
            moving.send()
            insert(conn, broker.make_topic(on=1), "x", "x:0")  # the producer is connected to both brokers
            wait_published(conn)
            moving.grow()
            with broker.paused():
                moving.send()
                wait_until(lambda: session_of(relay).unsettled == 1, "it is on the wire")
                moving.move()
                wait_until(
                    lambda: bool(session_of(relay)._publisher.topics.changes._listed or relay.find(MOVES)),
                    "the relay knows of the change, and its producer of the new partitions",
                )
                moving.send()
                if relay.find(MOVES):
                    wait_until(moving.new_records, "the next message is in the log before this one")
            relay.wait_for(MOVES, topic=moving.topic, before=BEFORE, partitions=AFTER)
            wait_published(conn)
        assert relay.error is None
        moving.require_moved_in_order()


def session_of(relay: RelayThread) -> Session:
    """The relay's present session."""
    session: Session = relay.session
    assert session is not None
    return session


def take_turns(session: Session, condition: Callable[[], bool], what: str) -> None:
    """Let the relay take turns until something is true; a request to the paused broker is repeated, as by its loop."""

    def after_a_turn() -> bool:
        with suppress(KafkaUnavailableError):
            session.run_once(0.005)
        return condition()

    wait_until(after_a_turn, what)


def test_a_lane_set_aside_keeps_its_topic_back_and_no_other(
    private_database: str, broker: SecondBroker
) -> None:
    """A session that has just taken a lane does not take keys back to the old count: it starts over instead."""
    with (
        connect(private_database) as conn,
        relay_session(private_database, broker.bootstrap_servers) as session,
    ):
        moving = Moving(conn, broker)
        other = broker.make_topic(on=1)
        moving.send()
        insert(conn, other, "x", "x:0")
        take_turns(session, lambda: session.counts.recorded == 2, "the first ones are recorded")
        moving.grow()
        with broker.paused():
            moving.send()
            take_turns(session, lambda: bool(session._publisher.aside), "its lane is set aside")
            moving.move()
            topics = session._publisher.topics
            take_turns(session, lambda: bool(topics.changes), "the session knows of the change")
            insert(conn, other, "x", "x:1", lane=(lane_of(moving.topic, None, moving.key.encode()) + 1) % 8)
            take_turns(session, lambda: session.counts.recorded == 3, "another topic flows")
            assert topics.changes
            assert topics.generation is None, "it states that it has moved"
            # As after a take-over: another relay may have published by the new count.
            session._read_topics_anew()
            far = next(
                key
                for key in (f"f{number}" for number in count())
                if lane_of(moving.topic, None, key.encode())
                != lane_of(moving.topic, None, moving.key.encode())
                and partition_of(None, key.encode(), AFTER) >= BEFORE
            )
            moving.send(far)
            take_turns(
                session, lambda: session.counts.recorded == 5, "both are published to the new partitions"
            )
            assert session._publisher.topics is not topics
        moving.require_moved_in_order()
