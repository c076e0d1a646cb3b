"""RocketMQ's simple consumer: receive, acknowledge, change the invisible duration; over a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from outbox.drivers.psycopg_sync import run
from outbox.errors import ConfigurationError, InvalidReceiptError
from outbox.inbox import FIRST, leases, pause_group, resume_group
from outbox.inbox.leases import SQL, lacks
from outbox.rocketmq.consumer import (
    ClientConfiguration,
    FilterExpression,
    ReceivedView,
    SimpleConsumer,
    SimpleConsumerBuilder,
)
from outbox.rocketmq.consumer import simple as simple_consumer
from outbox.rocketmq.consumer.simple import MOST_TAKEN
from tests.support.inbox_stage import InboxStage, apply
from tests.support.plain_inserts import Connection
from tests.support.query_plans import rows_read
from tests.support.waiting import wait_until

LONG = timedelta(seconds=60)


@contextmanager
def simple(
    inbox: InboxStage,
    topic: str,
    *,
    wait: float = 10.0,
    fifo: bool = False,
    attempts: int = 17,
    tags: str = "*",
) -> Iterator[SimpleConsumer]:
    """A simple consumer of the group of a stage."""
    builder = (
        SimpleConsumerBuilder(inbox.dsn)
        .set_client_configuration(
            ClientConfiguration(inbox.bootstrap_servers, kafka={"session.timeout.ms": 6000})
        )
        .set_consumer_group(inbox.group)
        .set_subscription_expressions({topic: FilterExpression(tags)})
        .set_consume_from(FIRST)
        .set_await_duration(wait)
        .set_fifo(fifo)
        .set_max_attempts(attempts)
    )
    with builder.build() as consumer:
        yield consumer


def receive(consumer: SimpleConsumer, count: int, seconds: timedelta | float = LONG) -> list[ReceivedView]:
    """Receive so many messages, in as many calls as it takes."""
    found: list[ReceivedView] = []

    def enough() -> bool:
        found.extend(consumer.receive(count - len(found), seconds))
        return len(found) == count

    wait_until(enough, f"{count} messages are received")
    return found


def numbers(views: list[ReceivedView]) -> list[int]:
    return [int(view.body or b"") for view in views]


@pytest.mark.feature("H-23")
def test_acknowledged_messages_do_not_come_again(inbox: InboxStage, topic: str) -> None:
    ids = inbox.produce_numbered(topic, 30)
    with simple(inbox, topic) as consumer:
        views = receive(consumer, 30)
        assert sorted(str(view.message_id) for view in views) == sorted(ids)
        assert {view.delivery_attempt for view in views} == {1}
        for view in views:
            consumer.ack(view)
        with pytest.raises(InvalidReceiptError, match="do not acknowledge it"):
            consumer.ack(views[0])
    with simple(inbox, topic, wait=2) as consumer:
        assert consumer.receive(10, LONG) == []
    assert inbox.count("outbox.inbox_parked") == 0


@pytest.mark.feature("H-23")
def test_a_message_that_is_not_acknowledged_is_received_again(inbox: InboxStage, topic: str) -> None:
    """By another member, too; the receipt of before is worth nothing then."""
    inbox.produce_numbered(topic, 1)
    with simple(inbox, topic) as consumer, ExitStack() as stack:
        [first] = receive(consumer, 1, 1.0)
        # Not before: it could have the partition of the message, and reads nothing while nobody receives from it.
        other = stack.enter_context(simple(inbox, topic))
        [second] = receive(other, 1)
        assert (second.message_id, second.delivery_attempt, second.reconsume_times) == (
            first.message_id,
            2,
            1,
        )
        assert second.receipt_handle != first.receipt_handle
        with pytest.raises(InvalidReceiptError):
            consumer.ack(first)
        with pytest.raises(InvalidReceiptError):
            consumer.change_invisible_duration(first, LONG)
        other.ack(second)


def has_partitions(*consumers: SimpleConsumer) -> bool:
    """Whether each of these has a part of the four partitions, and all of them together have all."""
    counts = [len(consumer._intake.consumer.vitals().partitions) for consumer in consumers]
    return min(counts) > 0 and sum(counts) == 4


@pytest.mark.parametrize("fifo", [False, True])
def test_a_member_from_which_nobody_receives_keeps_no_message_from_the_others(
    inbox: InboxStage, topic: str, *, fifo: bool
) -> None:
    """Each member reads some of the partitions, and a caller of one of them receives the messages of all."""
    with simple(inbox, topic, fifo=fifo) as consumer, simple(inbox, topic, fifo=fifo) as other:
        wait_until(lambda: has_partitions(consumer, other), "both have partitions")
        inbox.produce_numbered(topic, 40, keys=40)
        views = receive(consumer, 40)
        assert {view.delivery_attempt for view in views} == {1}
        assert len({view.queue_id for view in views}) == 4
        for view in views:
            consumer.ack(view)
    assert inbox.count("outbox.inbox_parked") == 0


def test_no_more_is_parked_for_others_while_some_of_it_can_be_received(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def looked(group: int, places: Any) -> Any:
        looks.append(group)
        return lacks(group, places)

    monkeypatch.setattr(simple_consumer, "FEED_S", 0.01)
    monkeypatch.setattr(simple_consumer, "lacks", looked)
    inbox.produce_numbered(topic, 1000, keys=100)
    with simple(inbox, topic):
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "some are parked")
        goal = len(looks) + 20
        wait_until(lambda: len(looks) > goal, "it looks again")
    assert inbox.count("outbox.inbox_parked") <= MOST_TAKEN


@pytest.mark.feature("H-23")
def test_an_effect_and_its_acknowledgement_are_one_transaction(inbox: InboxStage, topic: str) -> None:
    """Two processes have the message; one effect is committed. While the transaction is open nobody receives it."""
    inbox.produce_numbered(topic, 1)
    with simple(inbox, topic, wait=1) as consumer, psycopg.connect(inbox.dsn) as conn:
        [first] = receive(consumer, 1, 0.5)
        apply(conn, first.message)
        consumer.ack(first, conn)
        time_out = time.monotonic() + 1
        while time.monotonic() < time_out:
            assert consumer.receive(1, LONG) == []
        conn.rollback()
        [second] = receive(consumer, 1)
        apply(conn, first.message)
        with pytest.raises(InvalidReceiptError):
            consumer.ack(first, conn)
        conn.rollback()
        apply(conn, second.message)
        consumer.ack(second, conn)
        conn.commit()
    assert len(inbox.applied()) == 1


@pytest.mark.feature("H-23")
def test_the_invisible_duration_can_be_changed(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 2)
    with simple(inbox, topic, wait=2) as consumer:
        shorter, longer = receive(consumer, 2, 3.0)
        consumer.change_invisible_duration(longer, LONG)
        consumer.change_invisible_duration(shorter, 0)
        [again] = receive(consumer, 1)
        assert again.message_id == shorter.message_id
        assert consumer.receive(1, LONG) == []
        consumer.ack(longer)


def test_messages_of_a_key_are_received_one_after_the_other(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 20, keys=4)
    with simple(inbox, topic, wait=1, fifo=True) as consumer:
        order: dict[bytes | None, list[int]] = {}
        views = receive(consumer, 4)
        assert len({view.message_group for view in views}) == 4
        assert consumer.receive(10, LONG) == []
        while views:
            for view in views:
                order.setdefault(view.message_group, []).append(int(view.body or b""))
                consumer.ack(view)
            done = sum(map(len, order.values()))
            views = receive(consumer, 4) if done < 20 else []
    assert sorted(order.values()) == [list(range(key, 20, 4)) for key in range(4)]
    assert inbox.count("outbox.inbox_held_key") == 0


def test_a_message_that_is_never_acknowledged_is_dead(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 1)
    with simple(inbox, topic, attempts=2, wait=1) as consumer:
        assert [receive(consumer, 1, 0)[0].delivery_attempt for _ in range(2)] == [1, 2]
        assert consumer.receive(1, 0) == []
    dead = inbox.conn.execute("SELECT state, attempts, fingerprint FROM outbox.inbox_parked").fetchall()
    assert dead == [("dead", 2, "received and not acknowledged")]


def test_no_more_is_read_than_callers_wait_for(inbox: InboxStage, topic: str) -> None:
    """What nobody asked for stays in Kafka; what is skipped by its tags moves the offset."""
    inbox.produce_numbered(topic, 1000, keys=100)
    with simple(inbox, topic) as consumer:
        receive(consumer, 1)
        assert inbox.count("outbox.inbox_parked") <= 400
    other = InboxStage(inbox.dsn, inbox.bootstrap_servers)
    with simple(other, topic, wait=1, tags="paid") as consumer:
        assert consumer.receive(1, LONG) == []
        wait_until(
            lambda: other.committed(topic) == other.end_of(topic), "the offset has passed what it skips"
        )
    other.close()


@pytest.mark.parametrize(
    ("most", "seconds"), [(0, 1), (1001, 1), (1, -1), (1, 12 * 3600 + 1), (1, float("nan"))]
)
def test_numbers_out_of_range_are_refused(most: int, seconds: float) -> None:
    consumer: Any = SimpleConsumer(*(None,) * 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="allowed"):
        consumer.receive(most, seconds)


def test_a_builder_names_what_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="set_client_configuration"):
        SimpleConsumerBuilder("postgresql://").build()


FILL = """
    INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t');
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, header_names,
            header_values, published_at, state, attempts, due_at)
        SELECT 1, gen_random_uuid(), '2026-11-01', 1, 0, n, 'd', '{}', '{}', now(), 'retry', 1,
            now() + n * interval '1 second' - interval '10 seconds'
        FROM generate_series(1, 10000) n;
    ANALYZE outbox.inbox_parked
"""


def test_a_group_lacks_what_cannot_be_received_unless_it_is_full(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(part: int) -> bool:
        with conn.transaction():
            return run(conn, lacks(1, [(1, part)]))

    conn.execute(FILL)
    assert [answer(0), answer(1)] == [False, False], "10,000 are too many"
    monkeypatch.setattr(leases, "MOST_PARKED", 10_001)
    assert [answer(0), answer(1)] == [False, True], "some of partition 0 can be received"
    conn.execute("UPDATE outbox.inbox_parked SET due_at = due_at + interval '1 hour'")
    assert [answer(0), answer(1)] == [True, True]
    conn.execute("UPDATE outbox.inbox_parked SET state = 'waiting', order_key = 'k', due_at = NULL")
    assert answer(0)
    monkeypatch.setattr(leases, "MOST_PARKED", 10_000)
    assert not answer(0), "those that wait behind another one count"


@pytest.mark.plan("outbox/sql/inbox_leases.sql", "receive", "lacks", "lock_lease", "change_lease")
def test_leases_are_found_by_their_indexes(conn: Connection) -> None:
    conn.execute(FILL)
    with psycopg.RawCursor(conn) as cursor:

        def explain(name: str, *values: object) -> Any:
            row = cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL[name]}".encode(), values).fetchone()
            assert row is not None
            return row[0][0]["Plan"]

        assert rows_read(explain("receive", 1, 5, 60.0, 17, 0.0, [], ["t1"]), "inbox_parked") <= 10
        assert rows_read(explain("lacks", 1, "{1}", "{1}", 100), "inbox_parked") <= 110
        assert rows_read(explain("lock_lease", 7, 1), "inbox_parked") <= 1
        assert rows_read(explain("change_lease", 7, 1, 1.0), "inbox_parked") <= 1


@pytest.mark.parametrize("by_topic", [True, False])
def test_nothing_of_what_is_paused_is_received(inbox: InboxStage, topic: str, by_topic: bool) -> None:
    with simple(inbox, topic) as consumer:
        inbox.produce_numbered_in(topic, 2)
        [first] = receive(consumer, 1)
        consumer.change_invisible_duration(first, 0)
        assert pause_group(inbox.conn, inbox.group, topic=topic if by_topic else None, reason="later")
        wait_until(lambda: consumer._intake.paused, "it is seen", seconds=60)
        assert consumer.receive(2, LONG) == []
        assert resume_group(inbox.conn, inbox.group, topic=topic if by_topic else None)
        wait_until(lambda: not consumer._intake.paused, "it is seen", seconds=60)
        assert sorted(numbers(receive(consumer, 2))) == [0, 1]
