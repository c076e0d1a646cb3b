"""What Kafka has: topics, their partition counts and size limits; and making a topic."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from outbox_relay.operations.kafka_admin import admin_of_command
from outbox_relay.operations.names import did_you_mean
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.waiting import announced

TIMEOUT_S = 10.0


class KafkaUnreachableError(TopicError):
    """No broker replies."""


@dataclass(frozen=True)
class KafkaTopic:
    """A topic as Kafka describes it; max_message_bytes is None where the configuration may not be read."""

    name: str
    partitions: int
    replication_factor: int
    max_message_bytes: int | None


class KafkaTopics:
    """Reads a cluster's topics and makes new ones; each request waits 10 s at most."""

    def __init__(self, bootstrap_servers: str, extra: Mapping[str, str] | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = admin_of_command(bootstrap_servers, extra)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Every topic's partition count and replication factor, by name.

        Asks for all topics: asking for one by name can make a broker create it.

        Raises:
            KafkaUnreachableError: no broker replies.
        """
        try:
            with announced(f"Kafka at {self.bootstrap_servers}"):
                known = self._admin.list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            raise KafkaUnreachableError(
                f"cannot reach Kafka at {self.bootstrap_servers} within {TIMEOUT_S:.0f} s: "
                f"{readable(error)}\n"
                "Is the broker running, and --bootstrap-servers (OUTBOX_BOOTSTRAP_SERVERS) right? "
                'A local stack starts with: outbox up; eval "$(outbox env)"'
            ) from None
        return {
            name: (
                len(topic.partitions),
                max((len(p.replicas) for p in topic.partitions.values()), default=0),
            )
            for name, topic in known.items()
            if topic.error is None
        }

    def find(self, name: str) -> KafkaTopic | None:
        """One topic, or None when Kafka has none of that name."""
        found = self.counts().get(name)
        return None if found is None else KafkaTopic(name, *found, self._max_message_bytes(name))

    def get(self, name: str) -> KafkaTopic:
        """One topic.

        Raises:
            TopicError: Kafka has none of that name; with the nearest names.
        """
        found = self.find(name)
        if found is None:
            names = [other for other in self.counts() if not other.startswith("__")]
            raise TopicError(
                f"Kafka at {self.bootstrap_servers} has no topic {name!r}. {did_you_mean(name, names)}\n"
                f"create and register it: outbox topic create {name}"
            )
        return found

    def create(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> KafkaTopic:
        """Make a topic and wait until each partition has a leader.

        Raises:
            TopicError: the broker refuses, with its reason (the name exists, an unknown setting, too few
                brokers for the replication factor), or it is made but has no leaders yet.
        """
        if name in self.counts():
            raise TopicError(_exists(name))
        new = NewTopic(
            name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config)
        )
        try:
            future = self._admin.create_topics([new], request_timeout=TIMEOUT_S, operation_timeout=TIMEOUT_S)[
                name
            ]
            future.result(TIMEOUT_S + 5)
        except KafkaException as error:
            reason = error.args[0]
            if reason.name() == "TOPIC_ALREADY_EXISTS":  # made by somebody else since we looked
                raise TopicError(_exists(name)) from None
            raise TopicError(f"Kafka refuses to create topic {name!r}: {readable(error)}") from None
        except TimeoutError:
            raise KafkaUnreachableError(
                f"Kafka at {self.bootstrap_servers} did not confirm in time that it created topic {name!r}; "
                f"if the topic is there now, register it: outbox topic register {name}"
            ) from None
        deadline = time.monotonic() + TIMEOUT_S
        while not self._led(name, partitions):
            if time.monotonic() > deadline:
                raise TopicError(
                    f"topic {name!r} is created, but has no leaders after {TIMEOUT_S:.0f} s; when the cluster is "
                    f"well again, register it: outbox topic register {name}"
                )
            time.sleep(0.05)
        return self.get(name)

    def _led(self, name: str, partitions: int) -> bool:
        topic = self._admin.list_topics(timeout=TIMEOUT_S).topics.get(name)
        return (
            topic is not None
            and len(topic.partitions) == partitions
            and all(partition.leader >= 0 for partition in topic.partitions.values())
        )

    def _max_message_bytes(self, name: str) -> int | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            answers = self._admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            return int(answers[resource].result(TIMEOUT_S)["max.message.bytes"].value)
        except (KafkaException, TimeoutError, KeyError, ValueError):
            return None


def _exists(name: str) -> str:
    return f"Kafka has a topic {name!r} already\nregister it: outbox topic register {name}"
