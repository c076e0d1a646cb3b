"""A key goes to a new partition only after its messages in the old one are acknowledged, however long that takes.

The old partitions are on a broker that is paused, as a machine that swaps; the new ones are on another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox.partitioning.lanes import lane_of
from outbox.partitioning.selectors import partition_of
from outbox_local.stack.api import Stack
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import Record, read_topic
from tests.support.moved_keys import grow, moved, wrong_of_moved
from tests.support.plain_inserts import Connection, connect, insert, wait_published
from tests.support.relay_session import loop_of
from tests.support.relay_thread import RelayThread
from tests.support.second_broker import SecondBroker
from tests.support.waiting import wait_until

BEFORE, AFTER = 2, 4
MOVES = "topic moves its keys"
BOUND_S = 15.0
"""For a machine that is busy with other tests."""
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"
WAITING = "SELECT count(*) FROM outbox.waiting"
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


def flow_beside(conn: Connection, topic: str, version: int) -> None:
    """Send a message of another topic, and require that it is published soon."""
    began = time.monotonic()
    insert(conn, topic, "x", f"x:{version}")
    wait_until(lambda: conn.execute(PUBLISHED, [topic]).fetchone() == (version + 1,), "another topic flows")
    assert time.monotonic() - began < BOUND_S, "it waits for no partition of another topic"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_key_moves_when_the_old_partition_has_acknowledged(
    private_database: str, broker: SecondBroker, *, is_held: bool
) -> None:
    """Whether the relay waits for the old partition, or holds it because it acknowledged nothing for too long."""
    with connect(private_database) as conn:
        moving, other = Moving(conn, broker), broker.make_topic(on=1)
        with RelayThread(private_database, moving.servers, ack_timeout=3.0 if is_held else 300.0) as relay:
            moving.send()
            flow_beside(conn, other, 0)  # the producer is connected to both brokers
            wait_published(conn)
            moving.grow()
            with broker.paused():
                moving.send()
                wait_until(lambda: session_of(relay).unsettled == 1, "it is on the wire")
                moving.move()
                wait_until(
                    lambda: (
                        moving.topic in loop_of(session_of(relay)).core.topics.moving or relay.find(MOVES)
                    ),
                    "the relay knows of the change, and its producer of the new partitions",
                )
                moving.send()
                if is_held:
                    relay.wait_for("partition is held", topic=moving.topic)
                flow_beside(conn, other, 1)
                assert loop_of(session_of(relay)).gates.behind == [moving.topic], (
                    "it states that it has moved"
                )
                if relay.find(MOVES):
                    wait_until(moving.new_records, "the next message is in the log before this one")
            relay.wait_for(MOVES, topic=moving.topic, before=BEFORE, partitions=AFTER)
            moving.send()  # what waited for a partition that was held is published there
            wait_published(conn)
        assert relay.error is None
        moving.require_moved_in_order()


def test_a_successor_knows_by_which_count_a_partition_is_held(
    private_database: str, broker: SecondBroker
) -> None:
    """The topic moves when the old partition has what waits for it, though it was asked to while no relay ran."""
    with connect(private_database) as conn:
        moving, other = Moving(conn, broker), broker.make_topic(on=1)
        with RelayThread(private_database, moving.servers, ack_timeout=3.0) as relay:
            moving.send()
            flow_beside(conn, other, 0)
            wait_published(conn)
            moving.grow()
            with ExitStack() as paused:
                paused.enter_context(broker.paused())
                moving.send()
                relay.wait_for("partition is held", topic=moving.topic)
                relay.stop()
                moving.move()
                with RelayThread(private_database, moving.servers, ack_timeout=3.0) as successor:
                    moving.send()
                    insert(conn, other, "x", "x:1")
                    wait_until(
                        lambda: conn.execute(PUBLISHED, [other]).fetchone() == (2,), "another topic flows"
                    )
                    wait_until(
                        lambda: conn.execute(WAITING).fetchone() == (2,), "it waits behind what is held"
                    )
                    paused.close()
                    successor.wait_for(MOVES, topic=moving.topic, before=BEFORE, partitions=AFTER)
                    moving.send()
                    wait_published(conn)
        moving.require_moved_in_order()


def session_of(relay: RelayThread) -> Session:
    """Return the relay's present session."""
    assert relay.session is not None
    return relay.session
