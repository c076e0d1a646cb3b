"""An orderly consumer applies messages in the order of their producer, by whatever that was given: both halves at once.

Each way to give an order sends twelve numbered messages of one order, and in between one of another order. The first
of the twelve waits in its listener for the other one, and the fifth fails once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from outbox import Message, Outbox
from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult
from outbox.inbox.messages import Source, identify
from outbox.rocketmq import DefaultMQProducer
from outbox.rocketmq.consumer import (
    ClientConfiguration,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    DefaultMQPushConsumer,
    FilterExpression,
    MessageListenerOrderly,
    SimpleConsumerBuilder,
)
from outbox_relay.operations.replay_source import History, Selection
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import clock, insert
from tests.support.relay_in_process import publish
from tests.support.waiting import wait_until

COUNT, PATIENCE = 12, 30.0
REGIONS = {"one": "eu", "other": "asia"}


class ByHash:
    """RocketMQ's own form of a selector."""

    def select(self, mqs: Any, msg: Message, arg: Any) -> Any:
        """Return a queue."""
        return mqs[len(arg) % len(mqs)]


def by_region(queues: int, message: Message, arg: object) -> int:
    """Choose by the argument only."""
    return list(REGIONS.values()).index(str(arg)) % queues


def by_body(queues: int, message: Message, arg: object) -> int:
    """Choose by the message only; it has neither key nor argument."""
    assert message.body_bytes is not None
    return 0 if b"/one/" in message.body_bytes else 3


OUTBOX = Outbox("orders", selectors={"by_region": by_region})
PRODUCER = DefaultMQProducer("orders", lambda: None)
WAYS: dict[str, Callable[..., dict[str, Any]]] = {
    "order key": lambda which: {"key": None, "order_key": f"plain-{which}"},
    "order key beside keys": lambda which: {"order_key": f"beside-{which}"},
    "order key of bytes": lambda which: {"order_key": b"\xff\x00" + which.encode()},
    "long order key": lambda which: {"order_key": "x" * 5000 + which},
    "murmur2": lambda which: {"selector": "murmur2", "order_key": f"murmur2-{which}"},
    "java_hash": lambda which: {"selector": "java_hash", "order_key": f"java-{which}"},
    "crc32": lambda which: {"selector": "crc32", "order_key": f"crc-{which}"},
    "modulo": lambda which: {"selector": "modulo", "order_key": {"one": 17, "other": 18}[which]},
    "registered selector": lambda which: {"selector": "by_region", "order_key": REGIONS[which]},
    "queue": lambda which: {"queue": {"one": 1, "other": 2}[which]},
    "key": lambda which: {"key": f"key-{which}"},
}
CALLS: dict[str, Callable[[Connection, Message, str], object]] = {
    "selector of a call": lambda conn, message, which: OUTBOX.send(
        conn,
        Message(message.topic, key=message.key, body=message.body, order_key=f"call-{which}"),
        selector=lambda queues, message, arg: len(arg) % queues,
    ),
    "selector by the message": lambda conn, message, which: OUTBOX.send(
        conn, Message(message.topic, body=message.body), selector=by_body
    ),
    "select(mqs, msg, arg)": lambda conn, message, which: PRODUCER.send(
        message, ByHash(), f"mq-{which}", conn=conn
    ),
}
NAMES = [*WAYS, *CALLS]


def send_all(conn: Connection, topic: str) -> int:
    """Send all messages in one transaction, in turn; return how many."""
    count = 0
    with PRODUCER, conn.transaction():
        OUTBOX.register_topic(conn, topic, 4)
        for number in range(COUNT):
            for name in NAMES:
                for which in ("one", "other") if number == 1 else ("one",):
                    body, key = f"{name}/{which}/{number}", f"k{number}"
                    if name in CALLS:
                        CALLS[name](conn, Message(topic, key=key, body=body), which)
                    else:
                        given = {"key": key, **WAYS[name](which)}
                        OUTBOX.send(conn, Message(topic, body=body, **given))
                    count += 1
    return count


class Observer:
    """A listener that notes overlaps, lets the first message of an order wait for the other order, and fails once."""

    def __init__(self) -> None:
        self._lock, self._running = threading.Lock(), Counter[str]()
        self.others = {name: threading.Event() for name in NAMES}
        self.overlapped: set[str] = set()
        self.starved: list[str] = []

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        """Write the row of the message."""
        assert message.body is not None
        name, which, number = message.body.decode().split("/")
        if which == "other":
            self.others[name].set()
            return apply(conn, message)
        with self._lock:
            self._running[name] += 1
            if self._running[name] > 1:
                self.overlapped.add(name)
        try:
            if number == "0" and not self.others[name].wait(PATIENCE):
                self.starved.append(name)
            if number == "4" and not message.reconsume_times:
                return ConsumeResult.RECONSUME_LATER
            return apply(conn, message)
        finally:
            with self._lock:
                self._running[name] -= 1


class Orderly(MessageListenerOrderly):
    """The same, for RocketMQ's names."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def consume_message(self, msgs: Any, context: Any) -> ConsumeOrderlyStatus:
        """Write the row of the message."""
        (message,) = msgs
        if self._observer(message.connection, message.message) is ConsumeResult.SUCCESS:
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@pytest.fixture
def published(inbox: InboxStage, topic: str) -> int:
    """All messages in Kafka; how many."""
    count = send_all(inbox.conn, topic)
    publish(inbox.dsn, inbox.bootstrap_servers, count)
    return count


def orders(inbox: InboxStage) -> dict[str, list[int]]:
    """The numbers that were applied, by the way in which their order was given."""
    found: dict[str, list[int]] = {name: [] for name in NAMES}
    for body in inbox.applied("body"):
        name, which, number = body.split("/")
        if which == "one":
            found[name].append(int(number))
    return found


@pytest.mark.feature("S-100", "S-101", "S-104")
def test_an_orderly_consumer_applies_each_order_as_it_was_sent(
    inbox: InboxStage, topic: str, published: int
) -> None:
    observer = Observer()
    with inbox.consumer(topic, observer, orderly=True, workers=2 * len(NAMES)):
        inbox.wait_applied(published)
    assert orders(inbox) == {name: list(range(COUNT)) for name in NAMES}
    assert (observer.overlapped, observer.starved) == (set(), [])
    assert inbox.count("outbox.inbox_held_key") == 0


@pytest.mark.feature("S-100", "S-103", "S-104")
def test_an_orderly_listener_of_rocketmq_gets_what_a_selector_sends_in_its_order(
    inbox: InboxStage, topic: str, published: int
) -> None:
    observer = Observer()
    consumer = DefaultMQPushConsumer(inbox.group, inbox.dsn)
    consumer.set_namesrv_addr(inbox.bootstrap_servers)
    consumer.subscribe(topic)
    consumer.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.set_consume_thread_max(2 * len(NAMES))
    consumer.register_message_listener(Orderly(observer))
    consumer.start()
    try:
        inbox.wait_applied(published)
    finally:
        consumer.shutdown()
    assert orders(inbox) == {name: list(range(COUNT)) for name in NAMES}
    assert (observer.overlapped, observer.starved) == (set(), [])


def test_a_fifo_group_receives_the_first_message_of_each_order_only(
    inbox: InboxStage, topic: str, published: int
) -> None:
    builder = (
        SimpleConsumerBuilder(inbox.dsn)
        .set_client_configuration(ClientConfiguration(inbox.bootstrap_servers))
        .set_consumer_group(inbox.group)
        .set_subscription_expressions({topic: FilterExpression("*")})
        .set_consume_from(FIRST)
        .set_await_duration(10.0)
        .set_fifo(True)
    )
    received: list[str] = []
    with builder.build() as consumer:

        def all_orders() -> bool:
            found = consumer.receive(32, timedelta(seconds=60))
            received.extend((view.body or b"").decode() for view in found)
            return len(received) >= 2 * len(NAMES)

        wait_until(all_orders, "the first message of each order is received")
    firsts = {f"{name}/one/0" for name in NAMES} | {f"{name}/other/1" for name in NAMES}
    assert sorted(received) == sorted(firsts)


def test_a_replay_orders_messages_as_their_records_are_ordered(
    inbox: InboxStage, topic: str, published: int
) -> None:
    history, source = History(inbox.conn), Source(1, "c/t")
    chosen = history.choose(Selection(topic), clock(inbox.conn))
    replayed = {str(each.message_id): each for each in chosen}
    records = {
        str(each.message_id): made
        for each, made in zip(chosen, history.records(topic, chosen), strict=True)
        if made is not None
    }
    read = read_topic(inbox.bootstrap_servers, topic)
    assert len(read) == len(records) == published
    for record in read:
        assert records[record.message_id].headers == record.headers
        delivery = identify(source, records[record.message_id], orderly=True)
        assert replayed[record.message_id].order_key == delivery.order_key


def test_only_messages_with_an_order_of_their_own_carry_its_header(inbox: InboxStage, topic: str) -> None:
    given: dict[str, dict[str, Any]] = {
        "none": {},
        "same": {"order_key": b"k"},
        "own": {"order_key": "订单".encode()},
        "bytes": {"order_key": b"\xff"},
        "queue": {"queue": 3, "order_key": b"o"},
        "chosen": {"queue": 3, "order_key": b"o", "selector": "mine"},
    }
    for body, columns in given.items():
        insert(inbox.conn, topic, "k", body, **columns)
    publish(inbox.dsn, inbox.bootstrap_servers, len(given))
    found = {
        (record.value or b"").decode(): {
            name: value for name, value in record.headers if name in ("outbox-order-key", "outbox-queue")
        }
        for record in read_topic(inbox.bootstrap_servers, topic)
    }
    assert found == {
        "none": {},
        "same": {},
        "own": {"outbox-order-key": "订单".encode()},
        "bytes": {"outbox-order-key": b"hex:ff"},
        "queue": {"outbox-queue": b"3"},
        "chosen": {"outbox-order-key": b"o"},
    }


def test_records_of_a_relay_that_states_no_order_are_ordered_by_their_key(
    inbox: InboxStage, topic: str
) -> None:
    inbox.produce(topic, "k", "1")
    inbox.produce(topic, "k", "2", headers=(("outbox-order-key", b"k"),))
    inbox.flush()
    with inbox.consumer(
        topic, lambda conn, message: ConsumeResult.RECONSUME_LATER, orderly=True, delays=None
    ):
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 2, "both are parked")
    assert inbox.count("outbox.inbox_parked", "state = 'waiting'") == 1
