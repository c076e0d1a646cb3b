"""Topics as the relay publishes to them: pinned partition count, selector and size limit.

A topic's partition count is pinned when it is first seen: keys are hashed over the pinned count for ever, so
that partitions added in Kafka later do not move keys and break their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from outbox_relay.logs import Log
from outbox_relay.publishing.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publishing.kafka import readable
from outbox_relay.statements import Statements

STATEMENTS = Statements("publishing/topics.sql")
METADATA_TIMEOUT_S = 2.0
REFRESH_S = 30.0
DEFAULT_LIMIT = 1_048_588
"""Kafka's own default of max.message.bytes."""
KEYS_CACHED = 100_000
ROOM = 8_192
"""Bytes below a topic's limit within which a message's full size is computed before it is produced."""

log = Log("topics")


@dataclass(slots=True)
class Topic:
    """One topic: what is pinned, and a cache of key → partition for the default selector."""

    name: str
    partitions: int
    selector: str | None
    max_message_bytes: int
    """The smaller of what is registered and what Kafka takes, so that no batch of several is refused."""
    read_at: float
    cache: dict[bytes, int] = field(default_factory=dict)
    small: int = 0
    """A body up to this many bytes certainly fits."""

    def __post_init__(self) -> None:
        self.small = max(self.max_message_bytes - ROOM, 0)


class TopicBook:
    """Knows topics for half a minute, and registers those that nobody registered."""

    def __init__(self, conn: psycopg.Connection[Any], producer: Producer, admin: AdminClient) -> None:
        self._conn = conn
        self._producer = producer
        self._admin = admin
        self._topics: dict[str, Topic | Unpublishable] = {}
        self._unreadable: set[str] = set()

    def prepare(self, names: Iterable[str]) -> None:
        """Look up what is not known, or was last looked up half a minute ago.

        All asking of Kafka and the database happens here, before anything of a page is produced: if no answer
        comes, the page can be tried again as a whole.

        Raises:
            KafkaUnavailableError: no broker answers; nothing can be said about the topic.
        """
        now = time.monotonic()
        for name in names:
            known = self._topics.get(name)
            if isinstance(known, Topic) and now - known.read_at < REFRESH_S:
                continue
            try:
                found = self._read(name)
            except Unpublishable as verdict:
                self._topics[name] = verdict
                continue
            if isinstance(known, Topic) and known.partitions == found.partitions:
                found.cache = known.cache
            self._topics[name] = found

    def known(self, name: str) -> Topic:
        """Return a topic that was prepared.

        Raises:
            Unpublishable: Kafka has no such topic, or fewer partitions than are pinned.
        """
        topic = self._topics[name]
        if isinstance(topic, Unpublishable):
            raise topic
        return topic

    def _read(self, name: str) -> Topic:
        partitions = self._partitions_in_kafka(name)
        row = self._conn.execute(STATEMENTS["topic"], {"name": name}).fetchone()
        in_kafka = self._limit_in_kafka(name) or DEFAULT_LIMIT
        if row is None:
            self._conn.execute(
                STATEMENTS["pin"], {"name": name, "partitions": partitions, "max_message_bytes": in_kafka}
            )
            log.info("topic registered", topic=name, partitions=partitions, max_message_bytes=in_kafka)
            row = self._conn.execute(STATEMENTS["topic"], {"name": name}).fetchone()
            assert row is not None  # noqa: S101  (just inserted; topics are never deleted by us)
        pinned, selector, limit = row
        if pinned > partitions:
            raise Unpublishable(
                "PARTITIONS_MISSING",
                f"topic {name!r} is pinned to {pinned} partitions, Kafka has {partitions}; "
                f"add partitions in Kafka, or see: outbox topic alter --help",
            )
        return Topic(name, pinned, selector, min(limit, in_kafka), time.monotonic())

    def _partitions_in_kafka(self, name: str) -> int:
        try:
            metadata = self._producer.list_topics(name, timeout=METADATA_TIMEOUT_S).topics[name]
        except KafkaException as error:
            raise KafkaUnavailableError(f"no metadata of topic {name!r}: {readable(error)}") from error
        if metadata.error is not None:
            if metadata.error.retriable() and metadata.error.name() != "UNKNOWN_TOPIC_OR_PART":
                raise KafkaUnavailableError(f"no metadata of topic {name!r}: {readable(metadata.error)}")
            raise Unpublishable(
                metadata.error.name(),
                f"topic {name!r}: {metadata.error.str()}; create it with: outbox topic create {name}",
            )
        return len(metadata.partitions)

    def _limit_in_kafka(self, name: str) -> int | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            answers = self._admin.describe_configs([resource], request_timeout=METADATA_TIMEOUT_S)
            return int(answers[resource].result(METADATA_TIMEOUT_S)["max.message.bytes"].value)
        except (KafkaException, KeyError, ValueError, TimeoutError) as error:
            # Not every relay may describe configurations.
            if name not in self._unreadable:
                self._unreadable.add(name)
                log.warning("size limit of a topic is not readable", topic=name, error=readable(error))
            return None
