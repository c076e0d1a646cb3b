"""What Kafka's logs still contain: where the log of each partition starts, and where a moment lies in it.

A topic is known by Kafka's own id. One that was deleted and made again under its name is another topic. Topics are
asked for by name: a list of all topics leaves out those that the user may not see, and they would count as deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from outbox_relay.operations.kafka_admin import admin_of_command
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.waiting import announced

TIMEOUT_S = 10.0
T = TypeVar("T")
TopicPart = tuple[int, int]
"""A topic by its number in `outbox.inbox_topic`, and a partition."""


@dataclass(frozen=True, slots=True)
class InboxTopic:
    """A topic that consumers of the database have read."""

    number: int
    name: str
    kafka_id: str
    """Kafka's id of the cluster, a slash, and Kafka's id of the topic, which may contain slashes itself."""

    def id_in(self, cluster: str) -> str | None:
        """Return Kafka's id of the topic if it is one of this cluster."""
        prefix = f"{cluster}/"
        return self.kafka_id.removeprefix(prefix) if self.kafka_id.startswith(prefix) else None

    @property
    def cluster(self) -> str:
        """Kafka's id of its cluster."""
        return self.kafka_id.partition("/")[0]


@dataclass(frozen=True)
class Logs:
    """What the logs of some topics contain."""

    cluster: str
    starts: Mapping[TopicPart, int]
    """The first offset that Kafka can still deliver."""
    ends: Mapping[TopicPart, int]
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Why Kafka does not describe a topic, by its number."""
    compacted: frozenset[int] = frozenset()
    """Topics that Kafka compacts: their logs start at 0 for ever."""

    def is_here(self, topic: InboxTopic) -> bool:
        """Whether the topic is, or was, one of this cluster."""
        return topic.id_in(self.cluster) is not None


class KafkaLogs:
    """Reads the logs of one cluster.

    Args:
        bootstrap_servers: its brokers.
        extra: settings of librdkafka.

    Raises:
        TopicError: a setting is refused.
    """

    def __init__(self, bootstrap_servers: str, extra: Mapping[str, str] | None = None) -> None:
        self._servers = bootstrap_servers
        self._admin = admin_of_command(bootstrap_servers, extra)
        self._here: dict[TopicPart, TopicPartition] = {}

    def read(self, topics: Iterable[InboxTopic]) -> Logs:
        """Return what Kafka has of these topics. Partitions of a topic that was deleted are missing in it.

        Raises:
            TopicError: no broker replies, or one refuses.
        """
        topics = list(topics)
        with announced(f"Kafka at {self._servers}"):
            cluster = str(self._reply(self._admin.describe_cluster(request_timeout=TIMEOUT_S)).cluster_id)
        unreadable: dict[int, str] = {}
        self._here = {}
        for topic in topics:
            topic_id = topic.id_in(cluster)
            if topic_id is None:
                continue
            try:
                self._describe(topic, topic_id)
            except KafkaException as error:
                unreadable[topic.number] = readable(error)
        return Logs(
            cluster,
            self._offsets(OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
            self._offsets(OffsetSpec.latest()),  # type: ignore[no-untyped-call]
            unreadable,
            frozenset(topic.number for topic in topics if self._is_compacted(topic)),
        )

    def offsets_at(self, moment: datetime, logs: Logs) -> dict[TopicPart, int]:
        """Return the first offset that was published at this moment or later; the end of the log without one.

        Raises:
            TopicError: no broker replies, or one refuses.
        """
        found = self._offsets(OffsetSpec.for_timestamp(int(moment.timestamp() * 1000)))
        return {place: offset if offset >= 0 else logs.ends[place] for place, offset in found.items()}

    def _describe(self, topic: InboxTopic, topic_id: str) -> None:
        """Note the partitions of a topic, unless it was deleted or made again.

        Raises:
            KafkaException: Kafka does not describe it.
        """
        described = self._admin.describe_topics(TopicCollection([topic.name]), request_timeout=TIMEOUT_S)
        try:
            found = described[topic.name].result(TIMEOUT_S + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return
            raise
        if str(found.topic_id) == topic_id:
            for partition in found.partitions:
                place = TopicPartition(topic.name, partition.id)
                self._here[topic.number, partition.id] = place

    def _offsets(self, spec: OffsetSpec) -> dict[TopicPart, int]:
        if not self._here:
            return {}
        asked = dict.fromkeys(self._here.values(), spec)
        replies = self._admin.list_offsets(asked, request_timeout=TIMEOUT_S)
        offsets = {
            (place.topic, place.partition): self._reply(reply).offset for place, reply in replies.items()
        }
        return {part: int(offsets[place.topic, place.partition]) for part, place in self._here.items()}

    def _is_compacted(self, topic: InboxTopic) -> bool:
        """Whether Kafka compacts a topic; False where the configuration may not be read."""
        if not any(number == topic.number for number, _ in self._here):
            return False
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        try:
            replies = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            policy: Any = replies[resource].result(TIMEOUT_S)["cleanup.policy"].value
        except (KafkaException, TimeoutError, KeyError):
            return False
        return "compact" in str(policy) and "delete" not in str(policy)

    def _reply(self, future: Future[T]) -> T:
        try:
            return future.result(TIMEOUT_S + 5)
        except (KafkaException, TimeoutError) as error:
            raise TopicError(
                f"Kafka at {self._servers} does not return what its logs contain: {readable(error)}\n"
                "nothing can be proven without it; is the broker running, and --bootstrap-servers right?"
            ) from None
