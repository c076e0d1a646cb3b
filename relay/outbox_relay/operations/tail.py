"""Reads a topic from Kafka for people: committed records only, in no consumer group, changing nothing.

Partitions are assigned by hand with the positions that were asked of the broker first. So nothing waits for a group to
balance, no offset is stored, and a message sent after `Tail` was made is read even from the end.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Record

from outbox import wire
from outbox_relay.operations.names import did_you_mean
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.errors import OperatorError, OptionError
from outbox_relay.text.waiting import announced

READ_TIMEOUT_S = 10.0
POLL_S = 0.2
NEVER_READABLE = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors of reading that no waiting repairs."""


def tag_expression(text: str) -> frozenset[str] | None:
    """Read RocketMQ's tag expression `a || b`; None is `*`, every message.

    Raises:
        OptionError: a tag between two `||` is missing.
    """
    tags = frozenset(tag.strip() for tag in text.split("||"))
    if tags == {"*"}:
        return None
    if "" in tags or "*" in tags:
        raise OptionError(f"--tag {text!r} is not a tag expression; expected a tag, 'a || b' or '*'")
    return tags


def new_reader(bootstrap_servers: str, extra: Mapping[str, str], client_id: str) -> Consumer:
    """Make a consumer that reads committed records of assigned partitions, in no group, and stores no offset.

    Raises:
        OptionError: a setting in `extra` is refused.
    """
    own: dict[str, Any] = {"logger": logging.getLogger("outbox.librdkafka")}
    own["logger"].addHandler(logging.NullHandler())
    try:
        return Consumer(
            {
                "client.id": client_id,
                **extra,
                "bootstrap.servers": bootstrap_servers,
                # A group is needed by the client and joined by nobody.
                "group.id": f"{client_id}-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                **own,
            }
        )
    except KafkaException as error:
        raise OptionError(f"--kafka-config: {readable(error)}") from None


class Tail:
    """Reads the partitions of one topic.

    Args:
        bootstrap_servers: the brokers.
        extra: further settings of librdkafka.
        topic: the topic's name.
        from_beginning: whether to read what is there, or only what comes.

    Raises:
        OperatorError: no broker replies, the topic does not exist, or a setting is refused.
    """

    def __init__(
        self, bootstrap_servers: str, extra: Mapping[str, str], topic: str, *, from_beginning: bool
    ) -> None:
        self._consumer = new_reader(bootstrap_servers, extra, "outbox-tail")
        try:
            self.partitions = self._assign(bootstrap_servers, topic, from_beginning=from_beginning)
        except KafkaException as error:
            self.close()
            raise OperatorError(
                f"cannot read Kafka at {bootstrap_servers}: {readable(error)}\n"
                "Is the broker running, and --bootstrap-servers (OUTBOX_BOOTSTRAP_SERVERS) right?"
            ) from None
        except BaseException:
            self.close()
            raise

    def _assign(self, bootstrap_servers: str, topic: str, *, from_beginning: bool) -> int:
        # All topics: asking for one by name can make a broker create it.
        with announced(f"Kafka at {bootstrap_servers}"):
            known = self._consumer.list_topics(timeout=READ_TIMEOUT_S).topics
        if topic not in known:
            names = [name for name in known if not name.startswith("__")]
            raise OperatorError(
                f"Kafka at {bootstrap_servers} has no topic {topic!r}. {did_you_mean(topic, names)}\n"
                f"create and register it: outbox topic create {topic}"
            )
        places = []
        for partition in known[topic].partitions:
            place = TopicPartition(topic, partition)
            low, high = self._consumer.get_watermark_offsets(place, timeout=READ_TIMEOUT_S)
            place.offset = low if from_beginning else high
            places.append(place)
        self._consumer.assign(places)
        return len(places)

    def records(self) -> Iterator[Record | None]:
        """Yield records as they come; None when for a fifth of a second none has.

        Raises:
            OperatorError: Kafka refuses to be read, as for lack of rights.
        """
        while True:
            record = self._consumer.poll(POLL_S)
            error = None if record is None else record.error()
            if error is None:
                yield record
            elif error.fatal() or error.code() in NEVER_READABLE:
                raise OperatorError(f"Kafka: {readable(error)}")
            else:  # A broker that is away comes back, and the client goes on by itself.
                yield None

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()


def headers_of(record: Record) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record that was read, in order."""
    # A list of pairs when they were read, whatever the stubs allow for records that are written.
    return cast("list[tuple[str, bytes | None]]", record.headers() or [])


def fits(record: Record, key: bytes | None, tags: frozenset[str] | None) -> bool:
    """Whether a record has the key and one of the tags."""
    if key is not None and record.key() != key:
        return False
    if tags is None:
        return True
    for name, value in headers_of(record):
        if name == wire.TAGS and value is not None:
            return not tags.isdisjoint(value.decode("utf-8", "replace").split("||"))
    return False


def moment_of(record: Record) -> datetime | None:
    """Return when a record was written; None without a time."""
    kind, milliseconds = record.timestamp()
    # 0: the record has none.
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if kind else None
