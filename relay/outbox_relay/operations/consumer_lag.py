"""How far Kafka is ahead of consumer groups: the ends of partitions, and the age of the oldest message not consumed.

The end of a partition is its last stable offset: a consumer that reads committed records gets no further. Positions are
read from the database first and ends from Kafka after that, so lag is never too small. A topic is found by Kafka's id:
one that was deleted and made again under its name is another topic, and a position in the old one has no lag.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from outbox_relay.operations.kafka_admin import admin_of_command
from outbox_relay.operations.messages import Row
from outbox_relay.operations.tail import new_reader
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.waiting import announced

KAFKA_TIMEOUT_S = 10.0
SPEC: Any = OffsetSpec
"""Its methods have no types."""
Place = tuple[str, int]


@dataclass(frozen=True)
class TopicOffsets:
    """What Kafka has of one topic: first offsets and ends by partition."""

    kafka_id: str
    first: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass
class Lag:
    """What a group has not consumed of one topic."""

    messages: int = 0
    """Offsets, to be exact: the ends of Kafka's transactions have one each."""
    starts: dict[int, int] = field(default_factory=dict)
    """Where the group goes on, for each partition with lag."""
    oldest: float | None = None
    """Seconds since the oldest of them was published."""


class KafkaOffsets:
    """Asks Kafka about partitions; each request waits 10 s at most."""

    def __init__(self, bootstrap_servers: str, extra: Mapping[str, str] | None = None) -> None:
        """Prepare the client.

        Raises:
            OperatorError: a setting is refused.
        """
        self.bootstrap_servers, self._extra = bootstrap_servers, dict(extra or {})
        self.admin = admin_of_command(bootstrap_servers, extra)

    def read(self, topics: Collection[str]) -> dict[str, TopicOffsets]:
        """Return the offsets of topics by name; those that Kafka does not have are left out.

        Raises:
            OperatorError: no broker replies.
        """
        try:
            with announced(f"Kafka at {self.bootstrap_servers}"):
                metadata = self.admin.list_topics(timeout=KAFKA_TIMEOUT_S)
            names = sorted(name for name in topics if name in metadata.topics)
            places = [
                TopicPartition(name, part) for name in names for part in metadata.topics[name].partitions
            ]
            first = self.offsets({place: SPEC.earliest() for place in places})
            ends = self.offsets({place: SPEC.latest() for place in places})
            ids = {}
            for name in names:
                described = self.admin.describe_topics(TopicCollection([name]))[name].result(KAFKA_TIMEOUT_S)
                ids[name] = f"{metadata.cluster_id}/{described.topic_id}"
        except (KafkaException, TimeoutError) as error:
            raise self.unreachable(error) from None
        return {name: TopicOffsets(ids[name], _of(name, first), _of(name, ends)) for name in names}

    def offsets(
        self,
        asked: Mapping[TopicPartition, OffsetSpec],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[Place, int]:
        """Return one offset for each partition; -1 if none fits.

        Args:
            asked: which offset of which partition.
            isolation: whether the end is that of committed records.

        Raises:
            KafkaException: Kafka refuses.
        """
        if not asked:
            return {}
        futures: Mapping[TopicPartition, Future[Any]] = self.admin.list_offsets(
            dict(asked), isolation_level=isolation, request_timeout=KAFKA_TIMEOUT_S
        )
        return {
            (place.topic, place.partition): int(future.result(KAFKA_TIMEOUT_S).offset)
            for place, future in futures.items()
        }

    def unreachable(self, error: BaseException) -> OperatorError:
        """Return the error that states that Kafka cannot be read."""
        return OperatorError(
            f"cannot read Kafka at {self.bootstrap_servers}: {readable(error)}\n"
            "Is the broker running, and --bootstrap-servers (OUTBOX_BOOTSTRAP_SERVERS) right?"
        )

    def published_at(self, starts: Mapping[Place, int]) -> dict[Place, float]:
        """Return when the first record at or behind these offsets was published, in seconds since 1970.

        A partition that has none, or of which Kafka sends nothing in time, is left out.

        Raises:
            OperatorError: no broker replies.
        """
        return {
            place: record.timestamp()[1] / 1000
            for place, record in self._first(starts)
            if record.error() is None
        }

    def next_readable(self, starts: Mapping[Place, int]) -> dict[Place, tuple[int, bool]]:
        """Return where the first record at or behind these offsets is that a committed reader gets, and True.

        For a partition that has none: where such a reader then stands, and False. That is behind the ends of Kafka's
        transactions and what was rolled back, and in front of a transaction that is open. A partition of which Kafka
        sends nothing in time is left out.

        Raises:
            OperatorError: no broker replies.
        """
        return {
            place: (int(record.offset() or 0), record.error() is None)
            for place, record in self._first(starts)
        }

    def _first(self, starts: Mapping[Place, int]) -> Iterator[tuple[Place, Message]]:
        """Read the first record at or behind each of these offsets, or the event that states the partition's end."""
        if not starts:
            return
        reader = new_reader(
            self.bootstrap_servers, {"enable.partition.eof": "true", **self._extra}, "outbox-consumers"
        )
        try:
            reader.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
            left, deadline = set(starts), time.monotonic() + KAFKA_TIMEOUT_S
            while left and time.monotonic() < deadline:
                for record in reader.consume(100, 0.2):
                    place = (str(record.topic()), int(record.partition() or 0))
                    error = record.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        continue
                    if place in left:
                        left.remove(place)
                        reader.pause([TopicPartition(*place)])
                        yield place, record
        except KafkaException as error:
            raise self.unreachable(error) from None
        finally:
            reader.close()


def lags(kafka: KafkaOffsets, positions: Sequence[Row]) -> dict[tuple[str, str], Lag]:
    """Return the lag of each group in each topic, by its name and Kafka's id of the topic.

    A partition without a position will be read from its first offset.

    Args:
        kafka: where the topics are.
        positions: of groups, as the database has them.
    """
    known = kafka.read({row["topic"] for row in positions})
    by_id = {offsets.kafka_id: (name, offsets) for name, offsets in known.items()}
    found: dict[tuple[str, str], Lag] = {}
    for group, kafka_id in {(row["consumer_group"], row["kafka_id"]) for row in positions}:
        if kafka_id in by_id:
            own = {
                row["partition"]: row["position"]
                for row in positions
                if (row["consumer_group"], row["kafka_id"]) == (group, kafka_id)
            }
            found[group, kafka_id] = _lag(by_id[kafka_id][1], own)
    _add_ages(kafka, found, {kafka_id: name for kafka_id, (name, _) in by_id.items()})
    return found


def lag_of(offsets: TopicOffsets, part: int, position: int | None) -> int:
    """Return how many offsets of a partition are not consumed."""
    begin = offsets.first.get(part, 0) if position is None else max(position, offsets.first.get(part, 0))
    return max(0, offsets.ends.get(part, 0) - begin)


def _lag(offsets: TopicOffsets, positions: Mapping[int, int]) -> Lag:
    lag = Lag()
    for part in offsets.ends:
        if behind := lag_of(offsets, part, positions.get(part)):
            lag.messages += behind
            lag.starts[part] = offsets.ends[part] - behind
    return lag


def _add_ages(kafka: KafkaOffsets, found: Mapping[tuple[str, str], Lag], names: Mapping[str, str]) -> None:
    """Add the age of the oldest message; groups are asked about one after the other, because places differ."""
    for (_, kafka_id), lag in found.items():
        published = kafka.published_at({(names[kafka_id], part): at for part, at in lag.starts.items()})
        if published:
            lag.oldest = max(0.0, time.time() - min(published.values()))


def _of(topic: str, offsets: Mapping[Place, int]) -> dict[int, int]:
    return {part: offset for (name, part), offset in offsets.items() if name == topic}


def total(found: Mapping[tuple[str, str], Lag]) -> Lag:
    """Return the lag of all groups together."""
    ages = [lag.oldest for lag in found.values() if lag.oldest is not None]
    return Lag(sum(lag.messages for lag in found.values()), oldest=max(ages, default=None))
