"""The settings of a consumer, checked before anything is opened."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import psycopg

from outbox.errors import ConfigurationError, InvalidMessageError, InvalidSubscriptionError
from outbox.inbox.core.partitions import Limits
from outbox.inbox.delays import DelaySchedule
from outbox.inbox.header_filters import HeaderFilter, Predicate
from outbox.inbox.starts import ConsumeFrom
from outbox.inbox.tags import TagExpression
from outbox.validation import exact, topic_name

Connect = Callable[[], psycopg.Connection[Any]]
Subscribed = TagExpression | HeaderFilter
"""What a group reads of one topic."""

FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": False,
}
"""Settings of librdkafka on which correctness depends; others are refused."""
DEFAULTS: dict[str, Any] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "allow.auto.create.topics": False,
    "queued.min.messages": 10000,
    "queued.max.messages.kbytes": 32768,
    "fetch.queue.backoff.ms": 50,
    "reconnect.backoff.max.ms": 10000,
}
OWN = frozenset({"group.id", "client.id"})
CLASSIC = frozenset({"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"})
"""Settings of librdkafka that it refuses with `group.protocol=consumer`: the broker has them, by group."""
SESSION_MS = 45_000
"""Default of librdkafka, and of brokers with the protocol `consumer`."""
LONGEST_GROUP = 255
LARGEST_BATCH, LONGEST_LINGER = 1000, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer consumes: `PushConsumer` takes such an object, or these names as keywords.

    Raises:
        ConfigurationError: A setting is not allowed; the text states what is.
    """

    dsn: str | Connect
    """Of the database in which the listener writes, or a callable that returns a new `psycopg.Connection`."""
    kafka: Mapping[str, Any]
    """Settings of librdkafka; `bootstrap.servers` at least."""
    consume_from: ConsumeFrom
    """`FIRST`, `LAST` or `ConsumeFrom.timestamp(…)`; used by a group only that is new to a topic."""
    orderly: bool = False
    """One message of a key at a time, in order; a message that fails holds back the later ones of its key, and no
    others. Otherwise messages are independent."""
    batch: int | None = None
    """How many messages a listener gets at a time, as a list, in one transaction; it returns one result for all of
    them, or a list with one for each. In an orderly group a batch has at most one message of a key. Retries are lists
    of one. None: the listener gets single messages."""
    linger: float = 0.0
    """Seconds to wait for a batch to be full once there is a message; 0: take what is there."""
    workers: int = 20
    """How many listeners run at a time. Partitions take turns: a flood of one delays a message of another one by as
    long as the workers need for a message of each partition."""
    retry_workers: int = 4
    """How many retries run at a time, besides; others wait only while all of these run."""
    delays: DelaySchedule = field(default_factory=DelaySchedule.levels)
    """The pauses before retries, and errors that get none; by default 16 of RocketMQ's levels, from 10 s."""
    timeout: float = 900.0
    """Seconds after which a listener is given up and its message is parked."""
    drain: float = 10.0
    """Seconds to wait for running listeners when a partition is given away."""
    on_gap: Literal["stop", "continue"] = "stop"
    """What to do when Kafka has deleted messages that the group has not handled: "stop" reading the partition, or
    "continue" with the oldest one."""
    dead_letter_topic: str | None = None
    """A topic to which a copy of each dead letter of the group is sent through the outbox, in the transaction in which
    it dies; None: nowhere. The member that has started last decides."""
    limits: Limits = field(default_factory=Limits)
    """How much may wait in memory for each partition, and in PostgreSQL behind messages that failed."""

    def __post_init__(self) -> None:
        if isinstance(self.dead_letter_topic, str):
            object.__setattr__(self, "dead_letter_topic", exact(self.dead_letter_topic))
        object.__setattr__(self, "kafka", {_plain(name): _plain(value) for name, value in self.kafka.items()})
        for name, number in (("workers", self.workers), ("retry_workers", self.retry_workers)):
            if not 1 <= number <= 1000:
                raise ConfigurationError(f"{name}: {number!r}; allowed: 1 to 1000")
        for name, seconds in (("timeout", self.timeout), ("drain", self.drain)):
            if not 0 < seconds <= 86400:
                raise ConfigurationError(f"{name}: {seconds!r}; allowed: more than 0 and up to 86400 seconds")
        if self.batch is not None and not 1 <= self.batch <= LARGEST_BATCH:
            raise ConfigurationError(f"batch: {self.batch!r}; allowed: 1 to {LARGEST_BATCH}, or None")
        name = "linger"
        if not 0 <= self.linger <= LONGEST_LINGER or (self.linger and self.batch is None):
            raise ConfigurationError(
                f"{name}: {self.linger!r}; allowed: 0 to {LONGEST_LINGER:g} seconds, with `batch` only"
            )
        if not isinstance(self.consume_from, ConsumeFrom):
            raise ConfigurationError(
                f"consume_from: {self.consume_from!r}; allowed: FIRST, LAST or ConsumeFrom.timestamp(…)"
            )
        if self.on_gap not in ("stop", "continue"):
            raise ConfigurationError(f"on_gap: {self.on_gap!r}; allowed: 'stop' or 'continue'")
        check_kafka(self.kafka)

    @classmethod
    def of(cls, **options: Any) -> ConsumerSettings:
        """Make settings of keywords; None for `delays` or `limits` is their default."""
        for name in ("delays", "limits"):
            if name in options and options[name] is None:
                del options[name]
        return cls(**options)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group.

    Raises:
        ConfigurationError: The name of the group is not allowed, or the group reads its own dead letters.
    """

    group: str
    subscription: Mapping[str, Subscribed]
    settings: ConsumerSettings
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        for name in ("group", "name"):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, exact(value))
        if not 1 <= len(self.group) <= LONGEST_GROUP or not self.group.isprintable():
            raise ConfigurationError(
                f"group: {self.group!r}; allowed: 1 to {LONGEST_GROUP} printable characters"
            )
        if any(each.isspace() for each in self.group):
            raise ConfigurationError(f"group: {self.group!r} has white space; allowed: a name without it")
        check_dead_letter_topic(self.settings.dead_letter_topic, self.subscription)

    @property
    def subscription_json(self) -> str:
        """The subscription as it is stored, for the comparison with that of other members."""
        return json.dumps({topic: str(tags) for topic, tags in sorted(self.subscription.items())})

    @property
    def session(self) -> float:
        """Seconds after which Kafka gives up a member that is silent."""
        return float(self.settings.kafka.get("session.timeout.ms", SESSION_MS)) / 1000.0

    @property
    def librdkafka(self) -> dict[str, Any]:
        """The configuration of the client of Kafka."""
        kafka = self.settings.kafka
        dropped = CLASSIC if is_of_consumer_protocol(kafka) else ()
        defaults = {name: value for name, value in DEFAULTS.items() if name not in dropped}
        return {**defaults, **kafka, **FIXED, "group.id": self.group, "client.id": self.name}


def _plain(value: Any) -> Any:
    """Return text as `str` itself: librdkafka's binding calls `str(…)`."""
    return exact(value) if isinstance(value, str) else value


def check_dead_letter_topic(topic: str | None, subscription: Mapping[str, Subscribed]) -> None:
    """Refuse a topic that Kafka refuses, or that the group itself reads: its dead letters would come back for ever.

    Raises:
        ConfigurationError: with what is allowed.
    """
    if topic is None:
        return
    try:
        topic_name(topic)
    except InvalidMessageError as error:
        raise ConfigurationError(f"dead_letter_topic: {error}") from None
    if topic in subscription:
        raise ConfigurationError(
            f"dead_letter_topic: the group reads {topic!r} itself; allowed: a topic of its own, such as 'DLQ.<group>'"
        )


def is_of_consumer_protocol(kafka: Mapping[str, Any]) -> bool:
    """Return whether the group is managed by the broker (KIP-848)."""
    return str(kafka.get("group.protocol", "classic")).lower() == "consumer"


def check_kafka(kafka: Mapping[str, Any]) -> None:
    """Refuse settings of librdkafka that would break a promise.

    Raises:
        ConfigurationError: with the setting and what is allowed.
    """
    if not kafka.get("bootstrap.servers"):
        raise ConfigurationError(
            "kafka: 'bootstrap.servers' is missing; allowed: the addresses of the brokers"
        )
    for name, value in kafka.items():
        if name in OWN:
            raise ConfigurationError(f"kafka: {name!r} is set by the consumer itself; leave it out")
        if name in FIXED and str(value).lower() != str(FIXED[name]).lower():
            raise ConfigurationError(f"kafka: {name} = {value!r}; allowed: {FIXED[name]!r}, or leave it out")
        if name in CLASSIC and is_of_consumer_protocol(kafka):
            raise ConfigurationError(
                f"kafka: {name} = {value!r}; allowed: leave it out with group.protocol=consumer. The broker has it: "
                "group.consumer.session.timeout.ms, group.consumer.heartbeat.interval.ms, or for this group "
                "kafka-configs --entity-type groups; the assignor is group.remote.assignor"
            )


def subscription_of(topics: Mapping[str, str | Subscribed | Predicate]) -> dict[str, Subscribed]:
    """Check and parse a subscription.

    Raises:
        InvalidSubscriptionError: It is empty, a topic has no legal name, an expression cannot be parsed, or a header
            filter has no name.
    """
    if not topics:
        raise InvalidSubscriptionError(
            "topics: is empty; allowed: tag expressions by topic, such as {'orders': '*'}"
        )
    parsed: dict[str, Subscribed] = {}
    for topic, choice in topics.items():
        try:
            topic = topic_name(topic)  # noqa: PLW2901
        except InvalidMessageError as error:
            raise InvalidSubscriptionError(str(error)) from None
        if isinstance(choice, TagExpression | HeaderFilter):
            parsed[topic] = choice
        else:
            parsed[topic] = HeaderFilter.of(choice) if callable(choice) else TagExpression.parse(choice)
    return parsed
