"""Reads topics from Kafka and from outbox.topic: any number of them in one request each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_relay.logs import Log
from outbox_relay.publishing.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publishing.kafka import readable
from outbox_relay.publishing.topics import Topic
from outbox_relay.statements import Statements

STATEMENTS = Statements("publishing/topics.sql")
METADATA_TIMEOUT_S = 2.0

# Kafka's rule. A name of another form is never sent: one that is too long makes the broker drop the connection.
_LEGAL = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
_SHOWN = 80

log = Log("topics")


class TopicLookup:
    """Looks topics up; safe to use from several threads, each with a connection of its own."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._unreadable: set[str] = set()

    def read(self, conn: psycopg.Connection[Any], names: Iterable[str]) -> dict[str, Topic | Unpublishable]:
        """Return each topic, or why nothing can be published to it; register those that nobody registered.

        Raises:
            KafkaUnavailableError: no broker answers.
        """
        found: dict[str, Topic | Unpublishable] = {}
        asked = []
        for name in names:
            if _LEGAL.fullmatch(name):
                asked.append(name)
            else:
                found[name] = _illegal(name)
        if not asked:
            return found
        partitions: dict[str, int] = {}
        for name, seen in self._partitions_in_kafka(asked).items():
            if isinstance(seen, int):
                partitions[name] = seen
            else:
                found[name] = seen
        if not partitions:
            return found
        limits = self._limits_in_kafka(partitions)
        for name, (pinned, selector, limit) in self._registered(conn, partitions, limits).items():
            if pinned > partitions[name]:
                found[name] = Unpublishable(
                    "PARTITIONS_MISSING",
                    f"topic {name!r} is pinned to {pinned} partitions, Kafka has {partitions[name]}; "
                    f"add partitions in Kafka, or see: outbox topic alter --help",
                )
            else:
                in_kafka = limits.get(name, DEFAULT_MAX_MESSAGE_BYTES)
                found[name] = Topic(name, pinned, selector, min(limit, in_kafka))
        return found

    def _partitions_in_kafka(self, names: list[str]) -> dict[str, int | Unpublishable]:
        seen: dict[str, int | Unpublishable] = {}
        answers = self._admin.describe_topics(TopicCollection(names), request_timeout=METADATA_TIMEOUT_S)
        for name, answer in answers.items():
            try:
                seen[name] = len(answer.result(2 * METADATA_TIMEOUT_S).partitions)
            except (KafkaException, TimeoutError) as failure:
                error = failure.args[0] if isinstance(failure, KafkaException) else None
                if error is None or error.code() < 0:
                    # librdkafka's own codes are negative: this is no broker's answer.
                    raise KafkaUnavailableError(f"no metadata of topics: {readable(failure)}") from failure
                seen[name] = _refused(name, error)
        return seen

    def _limits_in_kafka(self, names: Iterable[str]) -> dict[str, int]:
        limits: dict[str, int] = {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(resources, request_timeout=METADATA_TIMEOUT_S)
        for resource, answer in answers.items():
            name = str(resource.name)
            try:
                limits[name] = int(answer.result(2 * METADATA_TIMEOUT_S)["max.message.bytes"].value)
            except (KafkaException, KeyError, ValueError, TimeoutError) as error:
                # Not every relay may describe configurations.
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    log.warning("size limit of a topic is not readable", topic=name, error=readable(error))
        return limits

    def _registered(
        self, conn: psycopg.Connection[Any], partitions: dict[str, int], limits: dict[str, int]
    ) -> dict[str, tuple[int, str | None, int]]:
        """Return what outbox.topic says, after adding the topics that are not there yet."""
        names = list(partitions)
        known = _rows(conn, names)
        if missing := [name for name in names if name not in known]:
            counts = [partitions[name] for name in missing]
            taken = [limits.get(name, DEFAULT_MAX_MESSAGE_BYTES) for name in missing]
            conn.execute(STATEMENTS["pin"], {"names": missing, "partitions": counts, "limits": taken})
            for name, count, limit in zip(missing, counts, taken, strict=True):
                log.info("topic registered", topic=name, partitions=count, max_message_bytes=limit)
            known |= _rows(conn, missing)
        return known


def _rows(conn: psycopg.Connection[Any], names: list[str]) -> dict[str, tuple[int, str | None, int]]:
    rows = conn.execute(STATEMENTS["topics"], {"names": names}, prepare=True).fetchall()
    return {name: (partitions, selector, limit) for name, partitions, selector, limit in rows}


def _illegal(name: str) -> Unpublishable:
    shown = repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}… ({len(name)} characters)"
    return Unpublishable(
        "TOPIC_EXCEPTION",
        f"{shown} is not a valid topic name; expected 1 to 249 letters, digits, '.', '_' or '-'",
    )


def _refused(name: str, error: KafkaError) -> Unpublishable:
    repair = (
        f"; create it with: outbox topic create {name}"
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        else ""
    )
    return Unpublishable(error.name(), f"topic {name!r}: {error.str()}{repair}")
