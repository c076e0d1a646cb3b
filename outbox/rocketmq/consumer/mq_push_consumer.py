"""RocketMQ 4.x's programming model of consumers.

consumer = DefaultMQPushConsumer("logistics", dsn)
consumer.set_namesrv_addr("broker:9092")
consumer.subscribe("orders", "paid")
consumer.set_consume_from_where(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.register_message_listener(LogisticsListener())
consumer.start()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from outbox.codecs.codec import Codec
from outbox.errors import ConfigurationError
from outbox.inbox import (
    FIRST,
    LAST,
    ConsumeFrom,
    ConsumerVitals,
    DelaySchedule,
    Limits,
    PushConsumer,
    TagExpression,
)
from outbox.inbox.delays import FIRST_LEVEL
from outbox.rocketmq.consumer.mq_listeners import (
    ListenerOf4x,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from outbox.tracing import Tracing

RETRIES = 16
"""RocketMQ's maxReconsumeTimes of concurrent listeners; orderly ones have no limit there, and this one here."""
FIRST_ORDERLY_LEVEL = 1
"""RocketMQ suspends a queue for 1 s; its concurrent retries start at 10 s."""


class ConsumeFromWhere(Enum):
    """Where a group begins that has no position in a topic."""

    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """At `set_consume_timestamp`."""


class MessageModel(Enum):
    """How members of a group share messages."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"
    """Refused: give each process a group of its own, so that it has retries and a position, too."""


class DefaultMQPushConsumer:
    """RocketMQ's DefaultMQPushConsumer: settings by its setters, then `start`.

    The setters are RocketMQ's in snake case. Settings are checked by the setter, and at the latest by `start`.
    """

    def __init__(
        self,
        consumer_group: str,
        connect: str | Callable[[], Any],
        *,
        kafka: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare a consumer; nothing is opened before `start`.

        Args:
            consumer_group: its name, in Kafka and in PostgreSQL.
            connect: the database in which the listener writes: a DSN, or a callable that returns a connection.
            kafka: settings of librdkafka, such as those of SASL and TLS.
        """
        self.consumer_group = consumer_group
        self._connect, self._kafka = connect, dict(kafka or {})
        self._topics: dict[str, TagExpression] = {}
        self._listener: MessageListenerConcurrently | MessageListenerOrderly | None = None
        self._where: ConsumeFromWhere | None = None
        self._timestamp: ConsumeFrom | None = None
        self._threads_min, self._threads_max = 20, 20
        self._batch = 1
        self._retries = RETRIES
        self._timeout = 900.0
        self._limits = Limits()
        self._dead_letter_topic: str | None = None
        self._codecs: Mapping[str, Codec] | None = None
        self._tracing: Tracing | None = None
        self._consumer: PushConsumer | None = None

    def set_namesrv_addr(self, addresses: str) -> None:
        """State Kafka's bootstrap servers; RocketMQ's `;` between them is read as a comma."""
        self._kafka["bootstrap.servers"] = addresses.replace(";", ",")

    def subscribe(self, topic: str, sub_expression: str = "*") -> None:
        """Subscribe to messages of a topic that have one of the tags.

        Args:
            topic: its name.
            sub_expression: `*`, or tags that are joined by `||`.

        Raises:
            InvalidSubscriptionError: the expression cannot be parsed.
        """
        self._topics[topic] = TagExpression.parse(sub_expression)

    def unsubscribe(self, topic: str) -> None:
        """Take a subscription back, before `start`."""
        self._topics.pop(topic, None)

    def set_consume_from_where(self, where: ConsumeFromWhere) -> None:
        """State where a group begins that is new to a topic: there is no default here, RocketMQ's is the last offset.

        Raises:
            ConfigurationError: it is not a ConsumeFromWhere.
        """
        if not isinstance(where, ConsumeFromWhere):
            raise ConfigurationError(f"consume_from_where: {where!r}; allowed: a ConsumeFromWhere")
        self._where = where

    def set_consume_timestamp(self, timestamp: str | datetime) -> None:
        """State from which time CONSUME_FROM_TIMESTAMP begins.

        Args:
            timestamp: a datetime with its time zone, or RocketMQ's text `yyyyMMddHHmmss`, in UTC here.

        Raises:
            ConfigurationError: it is neither.
        """
        if isinstance(timestamp, str):
            try:
                timestamp = datetime.strptime(timestamp, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            except ValueError:
                raise ConfigurationError(
                    f"consume_timestamp: {timestamp!r}; allowed: yyyyMMddHHmmss in UTC, such as '20260131235959'"
                ) from None
        self._timestamp = ConsumeFrom.timestamp(timestamp)

    def set_message_model(self, model: MessageModel) -> None:
        """Accept CLUSTERING, which is always so.

        Raises:
            ConfigurationError: BROADCASTING, which loses what fails.
        """
        if model is not MessageModel.CLUSTERING:
            raise ConfigurationError(
                f"message_model: {model!r}; allowed: CLUSTERING. For BROADCASTING give each process a group of its own"
            )

    def set_consume_thread_min(self, threads: int) -> None:
        """State RocketMQ's least number of threads; `start` checks that it is not above the greatest."""
        self._threads_min = threads

    def set_consume_thread_max(self, threads: int) -> None:
        """State how many listeners run at a time, 1 to 1000; all of these threads are started."""
        self._threads_max = threads

    def set_max_reconsume_times(self, times: int) -> None:
        """State how often a message is tried again before it is dead; -1: RocketMQ's 16."""
        self._retries = RETRIES if times == -1 else times

    def set_consume_timeout(self, minutes: float) -> None:
        """State after how many minutes a listener is given up and its message tried again later; RocketMQ's 15."""
        self._timeout = minutes * 60

    def set_pull_threshold_for_queue(self, messages: int) -> None:
        """State how many messages of one partition may wait in memory; RocketMQ's 1000."""
        self._limits = replace(self._limits, messages=messages)

    def set_consume_concurrently_max_span(self, span: int) -> None:
        """State how far a partition may run ahead of its slowest message, in offsets; RocketMQ's 2000."""
        self._limits = replace(self._limits, width=span)

    def set_consume_message_batch_max_size(self, size: int) -> None:
        """State how many messages a listener gets at most, 1 to 1000; RocketMQ's 1. They are one transaction."""
        self._batch = size

    def set_dead_letter_topic(self, topic: str | None) -> None:
        """State the topic to which copies of dead letters are sent: RocketMQ's `%DLQ%group`, which it always has.

        Args:
            topic: registered in the consumer's database, such as `DLQ.<group>`; None: dead letters are rows only.
        """
        self._dead_letter_topic = topic

    def set_codecs(self, codecs: Mapping[str, Codec] | None) -> None:
        """State what decodes bodies before the listener, by topic; see `outbox.codecs`."""
        self._codecs = codecs

    def set_tracing(self, tracing: Tracing | None) -> None:
        """State what makes a span for each call of the listener; see `outbox.opentelemetry`."""
        self._tracing = tracing

    def register_message_listener(
        self, listener: MessageListenerConcurrently | MessageListenerOrderly
    ) -> None:
        """Register the listener; its kind states whether messages of a key are in order.

        Raises:
            ConfigurationError: it is of neither kind.
        """
        if not isinstance(listener, MessageListenerConcurrently | MessageListenerOrderly):
            raise ConfigurationError(
                f"listener: {type(listener).__qualname__}; allowed: an object of a class derived from "
                "MessageListenerConcurrently or MessageListenerOrderly"
            )
        self._listener = listener

    def start(self) -> None:
        """Register the member and begin to consume, in threads of its own.

        Raises:
            ConfigurationError: a setting is missing or not allowed.
            SubscriptionConflictError: another member of the group runs with another subscription or kind of listener.
            psycopg.Error: the database is away.
        """
        if self._consumer is not None:
            raise ConfigurationError(f"consumer of group {self.consumer_group!r}: it was started already")
        if self._listener is None:
            raise ConfigurationError("listener: is missing; call register_message_listener before start")
        if self._threads_min > self._threads_max:
            raise ConfigurationError(
                f"consume_thread_min: {self._threads_min!r} is above consume_thread_max, {self._threads_max!r}"
            )
        orderly = isinstance(self._listener, MessageListenerOrderly)
        consumer = PushConsumer(
            self.consumer_group,
            self._topics,
            ListenerOf4x(self._listener),
            dsn=self._connect,
            kafka=self._kafka,
            consume_from=self._begins(),
            orderly=orderly,
            batch=self._batch,
            workers=self._threads_max,
            delays=DelaySchedule.levels(self._retries, first=FIRST_ORDERLY_LEVEL if orderly else FIRST_LEVEL),
            timeout=self._timeout,
            limits=self._limits,
            dead_letter_topic=self._dead_letter_topic,
            codecs=self._codecs,
            tracing=self._tracing,
        )
        self._consumer = consumer.start()

    def vitals(self) -> ConsumerVitals:
        """Return how this member stands, for `outbox.inbox.metrics`.

        Raises:
            ConfigurationError: it was not started.
        """
        if self._consumer is None:
            raise ConfigurationError(f"consumer of group {self.consumer_group!r}: call start before vitals")
        return self._consumer.vitals()

    def shutdown(self) -> None:
        """End: running listeners are waited for, offsets are stored, the group is left; raise what ended it before."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _begins(self) -> ConsumeFrom:
        if self._where is None:
            raise ConfigurationError(
                "consume_from_where: is missing; RocketMQ's default is CONSUME_FROM_LAST_OFFSET, which skips what was "
                "sent before the first start. State which: set_consume_from_where(…)"
            )
        if self._where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            if self._timestamp is None:
                raise ConfigurationError(
                    "consume_timestamp: is missing; call set_consume_timestamp before start"
                )
            return self._timestamp
        return FIRST if self._where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET else LAST
