"""Consumers by RocketMQ's names: the page's examples, an orderly listener that suspends a key, members that differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox.errors import SubscriptionConflictError
from outbox.inbox import FIRST
from outbox.inbox.metrics import prometheus_text
from outbox.rocketmq.consumer import (
    ClientConfiguration,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumeResult,
    DefaultMQPushConsumer,
    FilterExpression,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    PushConsumerBuilder,
)
from tests.support.inbox_stage import InboxStage, apply
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "how-to" / "rocketmq.md"
EXAMPLES = [
    example
    for example in re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if "outbox.rocketmq.consumer" in example
]
TABLES = ("parcels", "points", "invoices")


@pytest.mark.feature("S-75", "S-97")
def test_examples_of_consumers_apply_what_they_subscribe_to(inbox: InboxStage, topic: str) -> None:
    assert len(EXAMPLES) == 3
    for table in TABLES:
        inbox.conn.execute(f"CREATE TABLE {table} (order_id text)".encode())
    for number, tags in enumerate(["paid", "sent", "refunded", None]):
        inbox.produce(topic, f"k{number}", str(number), tags=tags)
    inbox.flush()
    names: dict[str, Any] = {"dsn": inbox.dsn, "brokers": inbox.bootstrap_servers}
    for example in EXAMPLES:
        # The broker is shared with other tests, so topic and groups are this test's own.
        own = example.replace('"shop-orders"', repr(topic))
        own = own.replace('Consumer("parcels"', f'Consumer("{inbox.group}-parcels"')
        own = re.sub(r'group\("(points|invoices)"\)', rf'group("{inbox.group}-\1")', own)
        exec(own, names)
    try:
        wait_until(lambda: names["write_invoices"]() or inbox.count("invoices") >= 2, "invoices has its rows")
        for table in TABLES:
            wait_until(lambda table=table: inbox.count(table) >= 2, f"{table} has its rows")  # type: ignore[misc]
    finally:
        names["consumer"].shutdown()
        names["push_consumer"].close()
        names["simple_consumer"].close()
    for table in TABLES:
        rows = inbox.conn.execute(f"SELECT order_id FROM {table} ORDER BY 1".encode()).fetchall()
        assert rows == [("0",), ("2",)], table


class SuspendingA(MessageListenerOrderly):
    """Suspends the key `a` until all messages of the key `b` were handled."""

    def __init__(self) -> None:
        self.handled_b = 0

    def consume_message(self, msgs: Any, context: Any) -> ConsumeOrderlyStatus:
        """Write the row of the message."""
        (message,) = msgs
        if message.message_group == b"a" and self.handled_b < 2:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        self.handled_b += message.message_group == b"b"
        apply(message.connection, message.message)
        return ConsumeOrderlyStatus.SUCCESS


@pytest.mark.feature("S-103")
def test_an_orderly_listener_of_4x_suspends_its_key_only(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    consumer = DefaultMQPushConsumer(inbox.group, inbox.dsn)
    consumer.set_namesrv_addr(inbox.bootstrap_servers)
    consumer.subscribe(topic)
    consumer.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.set_consume_thread_max(20)
    consumer.register_message_listener(SuspendingA())
    for key, body in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2")]:
        inbox.produce(topic, key, body)
    inbox.flush()
    consumer.start()
    try:
        inbox.wait_applied(5)
        assert "outbox_member_messages_total" in prometheus_text([consumer])
    finally:
        consumer.shutdown()
    assert inbox.applied("body") == ["b1", "b2", "a1", "a2", "a3"]


class Acknowledging(MessageListenerConcurrently):
    """Applies the messages in front of the first one of the key `k3`, and those that come again."""

    def __init__(self) -> None:
        self.most = 0

    def consume_message(self, msgs: Any, context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        """Write the rows of the messages."""
        self.most = max(self.most, len(msgs))
        for place, message in enumerate(msgs):
            if message.message_group == b"k3" and not message.reconsume_times:
                context.ack_index = place - 1
                break
            apply(message.connection, message.message)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.mark.feature("S-97")
def test_a_batch_of_4x_is_applied_up_to_its_ack_index(inbox: InboxStage, topic: str) -> None:
    listener = Acknowledging()
    consumer = DefaultMQPushConsumer(inbox.group, inbox.dsn)
    consumer.set_namesrv_addr(inbox.bootstrap_servers)
    consumer.subscribe(topic)
    consumer.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.set_consume_thread_min(1)
    consumer.set_consume_thread_max(1)
    consumer.set_consume_message_batch_max_size(8)
    consumer.register_message_listener(listener)
    ids = inbox.produce_numbered(topic, 60)
    consumer.start()
    try:
        inbox.wait_applied(60)
    finally:
        consumer.shutdown()
    assert sorted(inbox.applied()) == sorted(ids)
    assert listener.most == 8


def test_a_member_that_differs_is_refused_at_its_start(inbox: InboxStage, topic: str) -> None:
    with inbox.consumer(topic):
        builder = (
            PushConsumerBuilder(inbox.dsn)
            .set_client_configuration(ClientConfiguration(inbox.bootstrap_servers))
            .set_consumer_group(inbox.group)
            .set_subscription_expressions({topic: FilterExpression("paid")})
            .set_consume_from(FIRST)
            .set_message_listener(lambda view: ConsumeResult.SUCCESS)
        )
        with pytest.raises(SubscriptionConflictError, match="would skip messages of each other"):
            builder.build()


def test_a_consumer_of_4x_whose_database_is_away_says_so_at_its_start(inbox: InboxStage, topic: str) -> None:
    consumer = DefaultMQPushConsumer(inbox.group, make_conninfo(inbox.dsn, dbname="no_such_database"))
    consumer.set_namesrv_addr(inbox.bootstrap_servers)
    consumer.subscribe(topic)
    consumer.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    consumer.register_message_listener(SuspendingA())
    with pytest.raises(psycopg.OperationalError, match="no_such_database"):
        consumer.start()
    consumer.shutdown()
