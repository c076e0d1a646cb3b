"""RocketMQ's DefaultMQProducer sends plain messages, in the caller's transaction or in one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outbox import Message
from outbox.errors import ConfigurationError, NoTransactionError, SelectorError
from outbox.rocketmq import DefaultMQProducer, MessageQueue, ProducerStateError, SendStatus

pytestmark = pytest.mark.feature("H-52")
SENT = (
    "SELECT convert_from(coalesce(order_key, key), 'UTF8'), selector, queue FROM outbox.message ORDER BY id"
)


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES ('orders', 4)")
        yield conn


@pytest.fixture
def producer(database: str) -> Iterator[DefaultMQProducer]:
    with DefaultMQProducer("shop", database) as made:
        yield made


class ByNumber:
    """A selector as RocketMQ's guides have it."""

    def select(self, mqs: list[MessageQueue], msg: Message, arg: Any) -> MessageQueue:
        return mqs[int(arg) % len(mqs)]


class Astray:
    """A selector that returns a queue of another topic."""

    def select(self, mqs: list[MessageQueue], msg: Message, arg: Any) -> MessageQueue:
        return MessageQueue("others", 0)


def test_a_message_sent_by_itself_is_committed_on_return(
    conn: psycopg.Connection[Any], producer: DefaultMQProducer
) -> None:
    result = producer.send(Message("orders:created", key="o-7", body=b"seven"))
    assert result.send_status is SendStatus.SEND_OK
    assert result.message_queue == MessageQueue("orders", None)
    found = conn.execute("SELECT message_id, id, state, producer_group, tags FROM outbox.message").fetchall()
    assert found == [(result.msg_id, result.row_id, "COMMITTED", "shop", ["created"])]


def test_a_message_sent_in_a_transaction_ends_with_it(
    database: str, conn: psycopg.Connection[Any], producer: DefaultMQProducer
) -> None:
    with psycopg.connect(database) as business:
        producer.send(Message("orders", key="o-1"), conn=business)
        business.rollback()
        producer.send(Message("orders", key="o-2"), conn=business)
    assert [row[0] for row in conn.execute(SENT)] == ["o-2"]
    with pytest.raises(NoTransactionError):
        producer.send(Message("orders", key="o-3"), conn=conn)


@pytest.mark.parametrize(
    ("selector", "arg", "row"),
    [
        (ByNumber(), 7, ("7", "ByNumber", 3)),
        (lambda queues, msg, arg: arg % queues, 6, ("6", "<lambda>", 2)),
        ("java_hash", "o-7", ("o-7", "java_hash", None)),
        ("modulo", 5, ("5", "modulo", None)),
    ],
    ids=["object", "function", "name", "modulo"],
)
def test_a_selector_places_the_message_by_its_arg(
    conn: psycopg.Connection[Any], producer: DefaultMQProducer, selector: Any, arg: Any, row: Any
) -> None:
    result = producer.send(Message("orders", key="k"), selector, arg)
    assert conn.execute(SENT).fetchall() == [row]
    assert result.message_queue == MessageQueue("orders", row[2])


def test_the_same_idempotency_key_sends_once(
    conn: psycopg.Connection[Any], producer: DefaultMQProducer
) -> None:
    first, second = (producer.send(Message("orders"), idempotency_key="once") for _ in range(2))
    assert (second.msg_id, first.duplicate, second.duplicate) == (first.msg_id, False, True)
    assert conn.execute("SELECT count(*) FROM outbox.message").fetchone() == (1,)


@pytest.mark.parametrize(
    ("selector", "arg", "wrong"),
    [
        (None, "o-7", (ConfigurationError, "arg: comes without a selector")),
        (7, None, (ConfigurationError, "selector: is int")),
        (Astray(), "o-7", (SelectorError, "'Astray' returned -1")),
        ("nearest", "o-7", (SelectorError, "'nearest' is not registered")),
    ],
)
def test_a_selector_that_is_wrong_is_named_and_nothing_is_sent(
    conn: psycopg.Connection[Any],
    producer: DefaultMQProducer,
    selector: Any,
    arg: Any,
    wrong: tuple[type[Exception], str],
) -> None:
    with pytest.raises(wrong[0], match=wrong[1]):
        producer.send(Message("orders"), selector, arg)
    assert conn.execute(SENT).fetchall() == []


def test_it_sends_between_start_and_shutdown_only(database: str) -> None:
    producer = DefaultMQProducer("shop", database)
    with pytest.raises(ProducerStateError, match="between start"):
        producer.send(Message("orders"))
    producer.start()
    with pytest.raises(ProducerStateError, match="started before"):
        producer.start()
    producer.shutdown()
    with pytest.raises(ProducerStateError):
        producer.send(Message("orders"))
