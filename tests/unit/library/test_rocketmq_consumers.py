"""RocketMQ's names for consumers: settings are checked, and messages and results are translated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from outbox.codecs import Codec
from outbox.errors import ConfigurationError, InvalidSubscriptionError, ListenerError
from outbox.inbox import FIRST, ConsumedMessage, ReconsumeLater
from outbox.rocketmq.consumer import (
    ClientConfiguration,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumeResult,
    DefaultMQPushConsumer,
    FilterExpression,
    FilterExpressionType,
    MessageExt,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageModel,
    PushConsumerBuilder,
    StaticSessionCredentialsProvider,
)
from outbox.rocketmq.consumer.builder import ListenerOf5x
from outbox.rocketmq.consumer.mq_listeners import ListenerOf4x

BORN = datetime(2026, 1, 31, 12, 0, 0, 5000, UTC)
MESSAGE = ConsumedMessage(
    UUID(int=7),
    "orders",
    3,
    41,
    b"o-7",
    b"seven",
    (
        ("outbox-tags", b"paid||vip"),
        ("outbox-keys", b"a b"),
        ("x", b"1"),
        ("x", b"2"),
        ("bin", b"\xff"),
        ("n", None),
    ),
    BORN,
    BORN.replace(microsecond=9000),
    2,
)


class Concurrent(MessageListenerConcurrently):
    """Returns what it was made with."""

    def __init__(self, status: Any = ConsumeConcurrentlyStatus.CONSUME_SUCCESS) -> None:
        self.status, self.seen = status, []  # type: ignore[var-annotated]

    def consume_message(self, msgs: Any, context: Any) -> Any:
        self.seen.append((msgs, context))
        return self.status


class Orderly(MessageListenerOrderly):
    """Returns what it was made with."""

    def __init__(self, status: Any = ConsumeOrderlyStatus.SUCCESS) -> None:
        self.status = status

    def consume_message(self, msgs: Any, context: Any) -> Any:
        return self.status


def test_a_message_has_rocketmqs_names() -> None:
    found = MessageExt(MESSAGE, "connection")
    assert (found.msg_id, found.message_id, found.topic, found.body) == (
        UUID(int=7),
        UUID(int=7),
        "orders",
        b"seven",
    )
    assert (found.queue_id, found.queue_offset, found.message_group) == (3, 41, b"o-7")
    assert (found.tags, found.reconsume_times, found.delivery_attempt) == ("paid||vip", 2, 3)
    assert (found.born_timestamp % 1000, found.store_timestamp % 1000) == (5, 9)
    assert found.born_timestamp == int(BORN.timestamp() * 1000)
    assert found.properties["x"] == "1"
    assert not {"bin", "n"} & found.properties.keys()


@pytest.mark.parametrize(
    ("listener", "result"),
    [
        (Concurrent(), ConsumeResult.SUCCESS),
        (Concurrent(ConsumeConcurrentlyStatus.RECONSUME_LATER), ConsumeResult.RECONSUME_LATER),
        (Orderly(), ConsumeResult.SUCCESS),
        (Orderly(ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT), ConsumeResult.RECONSUME_LATER),
    ],
)
def test_a_status_of_4x_becomes_a_result(listener: Any, result: ConsumeResult) -> None:
    assert ListenerOf4x(listener)("connection", [MESSAGE]) == [result]


@pytest.mark.parametrize(
    "listener",
    [Concurrent(None), Concurrent(ConsumeOrderlyStatus.SUCCESS), Orderly(True), Orderly("SUCCESS")],
)
def test_a_listener_of_4x_that_returns_rubbish_fails(listener: Any) -> None:
    with pytest.raises(ListenerError, match=r"consume_message returned .*; allowed: a Consume"):
        ListenerOf4x(listener)("connection", [MESSAGE])


def test_a_listener_of_4x_gets_the_message_and_its_queue() -> None:
    listener = Concurrent()
    ListenerOf4x(listener)("connection", [MESSAGE])
    ((msgs, context),) = listener.seen
    assert [(each.message, each.connection) for each in msgs] == [(MESSAGE, "connection")]
    assert context.message_queue == ("orders", 3)


@pytest.mark.parametrize(("ack_index", "done"), [(None, 3), (2, 3), (9, 3), (1, 2), (0, 1), (-1, 0), (-7, 0)])
def test_messages_behind_the_ack_index_come_again(ack_index: int | None, done: int) -> None:
    class Acknowledging(MessageListenerConcurrently):
        def consume_message(self, msgs: Any, context: Any) -> Any:
            if ack_index is not None:
                context.ack_index = ack_index
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    results = ListenerOf4x(Acknowledging())("connection", [MESSAGE] * 3)
    assert results == [ConsumeResult.SUCCESS] * done + [ConsumeResult.RECONSUME_LATER] * (3 - done)


@pytest.mark.feature("H-61")
@pytest.mark.parametrize(
    ("level", "again"),
    [
        (0, ConsumeResult.RECONSUME_LATER),
        (-1, ConsumeResult.DEAD),
        (1, ReconsumeLater("1s")),
        (18, ReconsumeLater("2h")),
    ],
)
def test_a_concurrent_listener_of_4x_chooses_the_level_of_the_next_try(level: int, again: object) -> None:
    class Choosing(MessageListenerConcurrently):
        def consume_message(self, msgs: Any, context: Any) -> Any:
            context.ack_index, context.delay_level_when_next_consume = 0, level
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    results = ListenerOf4x(Choosing())("connection", [MESSAGE] * 2)
    assert results == [ConsumeResult.SUCCESS, again], "what is done stays done"


@pytest.mark.feature("H-61")
@pytest.mark.parametrize("level", [-2, 19, 1.5, True, None, "1s"])
def test_a_level_that_rocketmq_does_not_have_is_refused_by_name(level: Any) -> None:
    class Choosing(MessageListenerConcurrently):
        def consume_message(self, msgs: Any, context: Any) -> Any:
            context.delay_level_when_next_consume = level
            return ConsumeConcurrentlyStatus.RECONSUME_LATER

    with pytest.raises(ListenerError, match=r"delay_level_when_next_consume: .*; allowed: 1 to 18, 0 for"):
        ListenerOf4x(Choosing())("connection", [MESSAGE])


@pytest.mark.feature("H-61")
@pytest.mark.parametrize(
    ("given", "again"),
    [(-1, ConsumeResult.RECONSUME_LATER), (10, ReconsumeLater(0.01)), (30_000, ReconsumeLater(30))],
)
def test_an_orderly_listener_of_4x_chooses_how_long_its_key_waits(given: int, again: object) -> None:
    assert ListenerOf4x(Suspending(given))("connection", [MESSAGE]) == [again]


@pytest.mark.parametrize("given", [0, 9, 30_001, 10.5, -2, None])
def test_a_suspension_that_rocketmq_does_not_have_is_refused_by_name(given: Any) -> None:
    with pytest.raises(
        ListenerError, match=r"suspend_current_queue_time_millis: .*; allowed: 10 to 30000 mill"
    ):
        ListenerOf4x(Suspending(given))("connection", [MESSAGE])


class Suspending(MessageListenerOrderly):
    """Suspends for so many milliseconds."""

    def __init__(self, milliseconds: Any) -> None:
        self._milliseconds = milliseconds

    def consume_message(self, msgs: Any, context: Any) -> Any:
        context.suspend_current_queue_time_millis = self._milliseconds
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def test_failure_of_5x_is_reconsume_later() -> None:
    assert ConsumeResult["FAILURE"] is ConsumeResult.RECONSUME_LATER


def test_a_listener_of_5x_is_a_callable_or_has_consume() -> None:
    class Listener:
        def consume(self, message_view: MessageExt) -> ConsumeResult:
            return ConsumeResult.SUCCESS if message_view.queue_id == 3 else ConsumeResult.FAILURE

    assert ListenerOf5x(Listener())("connection", MESSAGE) is ConsumeResult.SUCCESS
    assert (
        ListenerOf5x(lambda view: ConsumeResult.FAILURE)("connection", MESSAGE)
        is ConsumeResult.RECONSUME_LATER
    )
    with pytest.raises(ConfigurationError, match="an object with a method consume"):
        ListenerOf5x(7)


def ready() -> DefaultMQPushConsumer:
    consumer = DefaultMQPushConsumer("logistics", "host=nowhere.invalid")
    consumer.set_namesrv_addr("one:9092;two:9092")
    consumer.subscribe("orders", "paid || sent")
    consumer.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.register_message_listener(Concurrent())
    return consumer


MISTAKES: list[tuple[str, Callable[[DefaultMQPushConsumer], object]]] = [
    ("allowed: a ConsumeFromWhere", lambda each: each.set_consume_from_where("first")),  # type: ignore[arg-type]
    ("a group of its own", lambda each: each.set_message_model(MessageModel.BROADCASTING)),
    ("yyyyMMddHHmmss in UTC", lambda each: each.set_consume_timestamp("yesterday")),
    ("with a time zone", lambda each: each.set_consume_timestamp(datetime(2026, 1, 1))),
    ("derived from MessageListenerConcurrently", lambda each: each.register_message_listener(print)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("text", "mistake"), MISTAKES)
def test_a_setter_of_4x_refuses_what_is_not_allowed(
    text: str, mistake: Callable[[DefaultMQPushConsumer], object]
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        mistake(ready())


LEFT_OUT: list[tuple[str, Callable[[DefaultMQPushConsumer], object]]] = [
    ("call register_message_listener", lambda each: setattr(each, "_listener", None)),
    ("RocketMQ's default is CONSUME_FROM_LAST_OFFSET", lambda each: setattr(each, "_where", None)),
    (
        "call set_consume_timestamp",
        lambda each: each.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
    ),
    ("above consume_thread_max", lambda each: each.set_consume_thread_min(21)),
    ("workers", lambda each: each.set_consume_thread_max(1001)),
    ("batch", lambda each: each.set_consume_message_batch_max_size(0)),
    ("retries: -2", lambda each: each.set_max_reconsume_times(-2)),
    ("'bootstrap.servers' is missing", lambda each: each.set_namesrv_addr("")),
    ("timeout", lambda each: each.set_consume_timeout(0)),
    (r"codecs\['orders'\]: is str", lambda each: each.set_codecs({"orders": "aes"})),  # type: ignore[dict-item]
    ("the group reads 'orders' itself", lambda each: each.set_dead_letter_topic("orders")),
]


@pytest.mark.parametrize(("text", "mistake"), LEFT_OUT)
def test_a_consumer_of_4x_does_not_start_without_what_it_needs(
    text: str, mistake: Callable[[DefaultMQPushConsumer], object]
) -> None:
    consumer = ready()
    mistake(consumer)
    with pytest.raises(ConfigurationError, match=text):
        consumer.start()


def test_a_consumer_of_4x_that_was_not_started_shows_nothing() -> None:
    with pytest.raises(ConfigurationError, match="call start before vitals"):
        ready().vitals()


def test_an_expression_of_4x_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(InvalidSubscriptionError, match="tag expression"):
        ready().subscribe("orders", "a || || b")


def test_a_subscription_that_was_taken_back_is_missing() -> None:
    consumer = ready()
    consumer.unsubscribe("orders")
    with pytest.raises(InvalidSubscriptionError, match="topics: is empty"):
        consumer.start()


def built(left_out: str = "") -> PushConsumerBuilder:
    """A builder of which one setter was not called."""
    builder = PushConsumerBuilder("host=nowhere.invalid")
    steps: dict[str, Any] = {
        "set_client_configuration": ClientConfiguration("broker:9092"),
        "set_consumer_group": "logistics",
        "set_subscription_expressions": {"orders": FilterExpression("paid")},
        "set_message_listener": lambda view: ConsumeResult.SUCCESS,
        "set_consume_from": FIRST,
    }
    for name, value in steps.items():
        if name != left_out:
            getattr(builder, name)(value)
    return builder


def test_a_builder_of_5x_refuses_a_topic_of_dead_letters_that_the_group_reads() -> None:
    with pytest.raises(ConfigurationError, match="the group reads 'orders' itself"):
        built().set_dead_letter_topic("orders").build()


def test_a_builder_of_5x_refuses_a_codec_of_another_topic() -> None:
    class Plain(Codec):
        encode = decode = None  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match="does not read topic 'others'"):
        built().set_codecs({"others": Plain()}).build()


@pytest.mark.parametrize(
    "left_out",
    [
        "set_client_configuration",
        "set_consumer_group",
        "set_subscription_expressions",
        "set_message_listener",
        "set_consume_from",
    ],
)
def test_a_builder_of_5x_names_the_setter_that_is_missing(left_out: str) -> None:
    with pytest.raises(ConfigurationError, match=f"call {left_out} before build"):
        built(left_out).build()


def test_a_filter_expression_of_sql_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="allowed: TAG"):
        FilterExpression("a > 1", FilterExpressionType.SQL92)
    with pytest.raises(InvalidSubscriptionError, match="tag expression"):
        FilterExpression("a b")


def test_credentials_become_a_login_over_tls() -> None:
    login = StaticSessionCredentialsProvider("me", "secret")
    assert "secret" not in repr(ClientConfiguration("broker:9092", login))
    found = ClientConfiguration("one:9092;two:9092", login, kafka={"ssl.ca.location": "ca.pem"}).librdkafka
    assert found == {
        "bootstrap.servers": "one:9092,two:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "secret",
        "ssl.ca.location": "ca.pem",
    }
    plain = ClientConfiguration("broker:9092", login, ssl_enabled=False).librdkafka
    assert plain["security.protocol"] == "SASL_PLAINTEXT"
    assert ClientConfiguration("broker:9092").librdkafka == {"bootstrap.servers": "broker:9092"}
