"""The settings of a consumer, checked before anything is opened."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from outbox.errors import ConfigurationError, InvalidMessageError, InvalidSubscriptionError
from outbox.inbox.assignments import Limits
from outbox.inbox.delays import DelaySchedule
from outbox.inbox.header_filters import HeaderFilter, Predicate
from outbox.inbox.starts import ConsumeFrom
from outbox.inbox.tags import TagExpression
from outbox.validation import exact, topic_name

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
LONGEST_GROUP = 255
LARGEST_BATCH, LONGEST_LINGER = 1000, 60.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """All settings of one member of a group."""

    group: str
    subscription: Mapping[str, Subscribed]
    orderly: bool
    kafka: Mapping[str, Any]
    consume_from: ConsumeFrom
    workers: int = 20
    retry_workers: int = 4
    delays: DelaySchedule = field(default_factory=DelaySchedule.levels)
    timeout: float = 900.0
    drain: float = 10.0
    on_gap: Literal["stop", "continue"] = "stop"
    limits: Limits = field(default_factory=Limits)
    batch: int | None = None
    linger: float = 0.0
    dead_letter_topic: str | None = None
    member: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        for name in ("group", "member", "dead_letter_topic"):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, exact(value))
        given = {_plain(name): _plain(value) for name, value in self.kafka.items()}
        object.__setattr__(self, "kafka", given)
        if not 1 <= len(self.group) <= LONGEST_GROUP or not self.group.isprintable():
            raise ConfigurationError(
                f"group: {self.group!r}; allowed: 1 to {LONGEST_GROUP} printable characters"
            )
        if any(each.isspace() for each in self.group):
            raise ConfigurationError(f"group: {self.group!r} has white space; allowed: a name without it")
        for name, value, least in (("workers", self.workers, 1), ("retry_workers", self.retry_workers, 1)):
            if not least <= value <= 1000:
                raise ConfigurationError(f"{name}: {value!r}; allowed: {least} to 1000")
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
        check_dead_letter_topic(self.dead_letter_topic, self.subscription)
        check_kafka(self.kafka)

    @property
    def subscription_json(self) -> str:
        """The subscription as it is stored, for the comparison with that of other members."""
        return json.dumps({topic: str(tags) for topic, tags in sorted(self.subscription.items())})

    @property
    def session(self) -> float:
        """Seconds after which Kafka gives up a member that is silent."""
        return float(self.kafka.get("session.timeout.ms", 45000)) / 1000.0

    @property
    def librdkafka(self) -> dict[str, Any]:
        """The configuration of the client of Kafka."""
        return {**DEFAULTS, **self.kafka, **FIXED, "group.id": self.group, "client.id": self.member}


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
