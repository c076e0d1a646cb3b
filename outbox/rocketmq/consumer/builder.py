"""RocketMQ 5.x's programming model of consumers: a builder of a push consumer.

consumer = (
PushConsumerBuilder(dsn)
.set_client_configuration(ClientConfiguration("broker:9092"))
.set_consumer_group("logistics")
.set_subscription_expressions({"orders": FilterExpression("paid")})
.set_consume_from(FIRST)
.set_message_listener(lambda message_view: ConsumeResult.SUCCESS)
.build()
)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, cast

from outbox.codecs.codec import Codec
from outbox.errors import ConfigurationError
from outbox.inbox import (
    ConsumedMessage,
    ConsumeFrom,
    ConsumeResult,
    DelaySchedule,
    PushConsumer,
    ReconsumeLater,
    TagExpression,
)
from outbox.rocketmq.consumer.received import MessageExt
from outbox.tracing import Tracing

MessageListener = Callable[[MessageExt], ConsumeResult | ReconsumeLater]


class FilterExpressionType(Enum):
    """The language of a filter expression."""

    TAG = "TAG"
    SQL92 = "SQL92"
    """Refused: Kafka has no filter on the broker. Filter in the listener, and return DISCARD."""


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Which messages of a topic a group subscribes to: `*`, or tags that are joined by `||`."""

    expression: str = "*"
    type: FilterExpressionType = FilterExpressionType.TAG

    def __post_init__(self) -> None:
        if self.type is not FilterExpressionType.TAG:
            raise ConfigurationError(
                f"filter expression: {self.type!r}; allowed: TAG. Kafka has no filter on the broker: test properties "
                "in the listener, and return DISCARD"
            )
        TagExpression.parse(self.expression)


@dataclass(frozen=True, slots=True)
class StaticSessionCredentialsProvider:
    """A user and a password of Kafka, by SASL."""

    access_key: str
    access_secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientConfiguration:
    """How Kafka is reached."""

    endpoints: str
    """Kafka's bootstrap servers; RocketMQ's `;` between them is read as a comma."""
    credential_provider: StaticSessionCredentialsProvider | None = None
    ssl_enabled: bool = True
    """Whether a login is sent over TLS. Without a login the connection is TLS only if `kafka` states so."""
    sasl_mechanism: str = "SCRAM-SHA-512"
    kafka: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of librdkafka, such as `ssl.ca.location`; they win."""

    @property
    def librdkafka(self) -> dict[str, Any]:
        """The settings of the client of Kafka."""
        settings: dict[str, Any] = {"bootstrap.servers": self.endpoints.replace(";", ",")}
        if self.credential_provider is not None:
            settings |= {
                "security.protocol": "SASL_SSL" if self.ssl_enabled else "SASL_PLAINTEXT",
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.credential_provider.access_key,
                "sasl.password": self.credential_provider.access_secret,
            }
        return settings | dict(self.kafka)


class PushConsumerBuilder:
    """RocketMQ 5.x's builder; `build` starts the consumer."""

    def __init__(self, connect: str | Callable[[], Any]) -> None:
        """Begin with the database in which the listener writes.

        Args:
            connect: a DSN, or a callable that returns a `psycopg.Connection`.
        """
        self._connect = connect
        self._settings: dict[str, Any] = {}

    def set_client_configuration(self, configuration: ClientConfiguration) -> Self:
        """State how Kafka is reached."""
        self._settings["kafka"] = configuration.librdkafka
        return self

    def set_consumer_group(self, group: str) -> Self:
        """State the name of the group."""
        self._settings["group"] = group
        return self

    def set_subscription_expressions(self, expressions: Mapping[str, FilterExpression]) -> Self:
        """State a filter expression for each topic."""
        self._settings["topics"] = {topic: each.expression for topic, each in expressions.items()}
        return self

    def set_message_listener(self, listener: MessageListener) -> Self:
        """State the listener: called with a `MessageExt`, or an object with such a method `consume`."""
        self._settings["listener"] = ListenerOf5x(listener)
        return self

    def set_consume_from(self, begins: ConsumeFrom) -> Self:
        """State where the group begins in a topic that is new to it: FIRST, LAST or `ConsumeFrom.timestamp(…)`."""
        self._settings["consume_from"] = begins
        return self

    def set_fifo(self, fifo: bool) -> Self:
        """State whether messages of one key are handled in order; RocketMQ reads this from the group on its server."""
        self._settings["orderly"] = fifo
        return self

    def set_consumption_thread_count(self, count: int) -> Self:
        """State how many listeners run at a time; 20 by default, as RocketMQ's."""
        self._settings["workers"] = count
        return self

    def set_max_attempts(self, attempts: int) -> Self:
        """State how often a message is tried in all; RocketMQ reads this from the group on its server."""
        self._settings["delays"] = DelaySchedule.levels(attempts - 1)
        return self

    def set_dead_letter_topic(self, topic: str | None) -> Self:
        """State the topic to which copies of dead letters are sent, as in `PushConsumer`; None: they are rows only."""
        self._settings["dead_letter_topic"] = topic
        return self

    def set_codecs(self, codecs: Mapping[str, Codec] | None) -> Self:
        """State what decodes bodies before the listener, by topic; see `outbox.codecs`."""
        self._settings["codecs"] = codecs
        return self

    def set_tracing(self, tracing: Tracing | None) -> Self:
        """State what makes a span for each call of the listener; see `outbox.opentelemetry`."""
        self._settings["tracing"] = tracing
        return self

    def build(self) -> PushConsumer:
        """Start the consumer in threads of its own; `close` ends it.

        Raises:
            ConfigurationError: a setting is missing or not allowed.
            SubscriptionConflictError: another member of the group runs with another subscription or kind of listener.
            psycopg.Error: the database is away.
        """
        for name, setter in _REQUIRED.items():
            if name not in self._settings:
                raise ConfigurationError(f"{name}: is missing; call {setter} before build")
        return PushConsumer(**self._settings, dsn=self._connect).start()


_REQUIRED = {
    "kafka": "set_client_configuration",
    "group": "set_consumer_group",
    "topics": "set_subscription_expressions",
    "listener": "set_message_listener",
    "consume_from": "set_consume_from",
}


class ListenerOf5x:
    """Calls a listener of RocketMQ 5.x as a listener of `outbox.inbox`."""

    def __init__(self, listener: Any) -> None:
        """Accept a callable, or an object with a method `consume`.

        Raises:
            ConfigurationError: it is neither.
        """
        consume = getattr(listener, "consume", listener)
        if not callable(consume):
            raise ConfigurationError(
                f"listener: {listener!r}; allowed: a callable of a message, or an object with a method consume"
            )
        self._consume = cast("MessageListener", consume)

    def __call__(self, conn: Any, message: ConsumedMessage) -> ConsumeResult | ReconsumeLater:
        """Run the listener with one message."""
        return self._consume(MessageExt(message, conn))
