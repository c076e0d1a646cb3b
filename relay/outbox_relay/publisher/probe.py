"""Asks Kafka about partitions that acknowledge nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, PartitionMetadata, ResourceType

from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.kafka import readable

TIMEOUT_S = 2.0
MOST_UNANSWERED = 5
"""Questions in a row without a reply, one in 3 s, after which a new client asks."""


def lacks_replicas(insync: int, replicas: int, least: int | None) -> bool:
    """Return whether a partition has too few in-sync replicas to be written to with acks=all.

    Kafka requires no more of them than the partition has replicas, whatever its configuration requires.

    Args:
        insync: how many replicas are in sync.
        replicas: how many there are.
        least: min.insync.replicas; None where it may not be read: then one that is missing may be one too few.
    """
    return insync < (replicas if least is None else min(least, replicas))


class PartitionState(NamedTuple):
    """What the cluster knows of a partition."""

    text: str
    """In words."""
    code: str = "PARTITION_UNAVAILABLE"
    """Why it acknowledges nothing. LEADER_NOT_AVAILABLE and NOT_ENOUGH_REPLICAS park its topic."""

    @property
    def is_silent(self) -> bool:
        """Whether it lacks nothing that Kafka knows of, and acknowledges nothing."""
        return self.code == "PARTITION_UNAVAILABLE"


class PartitionProbe:
    """Describes what the cluster knows of partitions; called on a thread of its own.

    A client that gives no reply to several questions is replaced: one that has lost all its brokers may never connect
    again (docs/adr/0019), and the relay would take Kafka for away as long as it asks that one. Not at the first one: to
    connect may take longer than a question, and the client goes on with it meanwhile.

    Args:
        open_admin: makes a client.
    """

    def __init__(self, open_admin: Callable[[], AdminClient]) -> None:
        self._open = open_admin
        self._admin = open_admin()
        self._unanswered = 0

    def __call__(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], PartitionState]:
        """Return, per topic and partition, the state of the partition.

        Raises:
            KafkaUnavailableError: no broker replies.
        """
        found = {}
        for topic, number in partitions:
            try:
                # Any broker answers this one; other requests of an admin client wait for a certain broker.
                cluster = self._admin.list_topics(topic, timeout=TIMEOUT_S)
            except KafkaException as error:
                self._note_silence()
                raise KafkaUnavailableError(f"no metadata of topic {topic!r}: {readable(error)}") from error
            self._unanswered = 0
            metadata = cluster.topics.get(topic)
            if metadata is None:
                found[topic, number] = PartitionState("Kafka does not list this topic")
            elif metadata.error is not None:
                found[topic, number] = PartitionState(metadata.error.str())
            elif number not in metadata.partitions:
                found[topic, number] = PartitionState("Kafka does not list this partition")
            else:
                found[topic, number] = self._state(topic, metadata.partitions[number], set(cluster.brokers))
        return found

    def _note_silence(self) -> None:
        self._unanswered += 1
        if self._unanswered >= MOST_UNANSWERED:
            with suppress(KafkaException):  # a client cannot be made now: the present one stays
                self._admin = self._open()
                self._unanswered = 0

    def _state(self, topic: str, partition: PartitionMetadata, up: set[int]) -> PartitionState:
        replicas = f"replicas on brokers {_list(partition.replicas)}; brokers that are up: {_list(up)}"
        if partition.leader < 0:
            return PartitionState(f"it has no leader ({replicas})", "LEADER_NOT_AVAILABLE")
        if partition.leader not in up:
            return PartitionState(
                f"its leader, broker {partition.leader}, is down ({replicas})", "LEADER_NOT_AVAILABLE"
            )
        insync, least = len(partition.isrs), self._min_insync_replicas(topic)
        if lacks_replicas(insync, len(partition.replicas), least):
            text = f"in-sync replicas: {insync}, min.insync.replicas: {least or 'not readable'} ({replicas})"
            return PartitionState(text, "NOT_ENOUGH_REPLICAS")
        return PartitionState(f"its leader, broker {partition.leader}, does not acknowledge ({replicas})")

    def _min_insync_replicas(self, topic: str) -> int | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            answers = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            return int(answers[resource].result(2 * TIMEOUT_S)["min.insync.replicas"].value)
        except (KafkaException, KeyError, ValueError, TimeoutError):
            return None  # not every relay may describe configurations


def _list(numbers: Collection[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
