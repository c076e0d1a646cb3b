"""Finds messages that are in Kafka although their transactions were lost, in a fail-over or with a restored backup.

A standby that had not received everything, or a backup, ends before the database that it was made from. What that
database committed, and its relay published, after that end is in Kafka only. The transactions are gone and cannot be
brought back; the messages can be listed, so that people can decide what to do about them.

Where the scan begins: the copy is a beginning of the original. The last publication that it holds, recorded at T by
the lost server, was committed earlier than anything that is missing; a message is published after its commit, and
librdkafka gives a record the time at which it is produced. So every record to be found is younger than T, but
for the difference between the clocks of the lost server and of its relay.

The schedule: messages are read from Kafka first, then from the table. What a relay of this database publishes while
the scan runs is committed here before it is in Kafka, so it is found. What a relay that is still connected to the lost
server publishes later than the scan is not seen: stop that server, then scan. A scan that dies has changed nothing; the
next one begins again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Record
from confluent_kafka.admin import TopicMetadata

from outbox import wire
from outbox.statements import Statements
from outbox_relay.operations.names import did_you_mean
from outbox_relay.operations.tail import NEVER_READABLE, READ_TIMEOUT_S, headers_of, moment_of, new_reader
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.waiting import announced

STATEMENTS = Statements("outbox_relay/operations/lost_messages.sql")
SILENT_S = 30.0
"""A broker that sends nothing for so long, although there is more to read, ends the scan."""
TOGETHER = 1000
"""Records that one statement compares."""
DELETED = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC}
)
NOT_PUBLISHED = frozenset({"UNKNOWN", "EXHAUSTED", "ROLLED_BACK", "DEAD", "CANCELLED"})
"""States of a message that is not published: what made it so is here, and what let it be published is not."""


@dataclass(frozen=True)
class LostMessage:
    """A record in Kafka whose transaction is not in the database; `state`: of a message whose decision was lost."""

    message_id: UUID
    topic: str
    partition: int
    offset: int
    published_at: datetime | None
    key: bytes | None
    state: str | None

    @property
    def what(self) -> str:
        """Return in a few words what is missing here."""
        return "not in the database" if self.state is None else f"{self.state} in the database"


@dataclass
class ScanCounts:
    """What a scan has read so far."""

    records: int = 0
    without_id: int = 0
    dropped: int = 0
    """Records of messages whose part of the history was dropped."""
    lost: int = 0
    partitions: int = 0
    partitions_read: int = 0
    missing: list[str] = field(default_factory=list)
    """Topics that Kafka does not have."""
    not_read: list[str] = field(default_factory=list)
    """Further topics of Kafka that have records of that time: perhaps first used on the lost server."""


@dataclass(slots=True)
class Scan:
    """Reads topics from a time on and finds records of messages that the database does not have.

    Args:
        conn: an autocommit connection; the role outbox_reader is enough.
        bootstrap_servers: the brokers.
        extra: further settings of librdkafka.
        topics: the topics to read; this outbox alone publishes to them.
        are_named: whether somebody named the topics, so that each must exist.
        since: records that are older are not read.
    """

    conn: psycopg.Connection[Any]
    bootstrap_servers: str
    extra: Mapping[str, str]
    topics: Sequence[str]
    since: datetime
    are_named: bool = True
    counts: ScanCounts = field(default_factory=ScanCounts)

    def run(self) -> Iterator[list[LostMessage]]:
        """Read to the ends that the topics have now; yield what is lost, page by page, also empty pages.

        Raises:
            OperatorError: Kafka cannot be read, or a topic does not exist there.
        """
        consumer = new_reader(
            self.bootstrap_servers, {"enable.partition.eof": "true", **self.extra}, "outbox-failover-scan"
        )
        try:
            yield from self._read(consumer)
        except KafkaException as error:
            raise OperatorError(
                f"cannot read Kafka at {self.bootstrap_servers}: {readable(error)}\n"
                "Is the broker running, and --bootstrap-servers (OUTBOX_BOOTSTRAP_SERVERS) right?"
            ) from None
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> Iterator[list[LostMessage]]:
        ends = self._assign(consumer)
        self.conn.execute(STATEMENTS["prefer_indexes"])
        self.counts.partitions = len(ends)
        silent = 0.0
        while ends:
            records = consumer.consume(TOGETHER, 0.2)
            silent = 0.0 if records else silent + 0.2
            if silent > SILENT_S:
                raise OperatorError(
                    f"Kafka at {self.bootstrap_servers} sent nothing for {SILENT_S:g} s; scan again when it replies"
                )
            yield self._lost(list(_passing(records, ends)))
            self.counts.partitions_read = self.counts.partitions - len(ends)

    def _assign(self, consumer: Consumer) -> dict[tuple[str, int], int]:
        """Begin each partition at the time; return the ends of those that have records since then."""
        with announced(f"Kafka at {self.bootstrap_servers}"):
            known = consumer.list_topics(timeout=READ_TIMEOUT_S).topics
        places: list[tuple[TopicPartition, int]] = []
        missing = []
        for topic in self.topics:
            found = self._places(consumer, topic, known[topic].partitions) if topic in known else None
            if found is None:
                missing.append(topic)
            else:
                places += found
        if missing and self.are_named:
            raise OperatorError(
                f"Kafka at {self.bootstrap_servers} has no topic {', '.join(map(repr, missing))}. "
                f"{did_you_mean(missing[0], known)}\n"
                "name the topics to read: outbox failover scan --topic NAME"
            )
        self.counts.missing = missing
        if not self.are_named:
            self.counts.not_read = sorted(
                topic
                for topic, found in known.items()
                if topic not in self.topics
                and not topic.startswith("__")
                and self._may_hold(consumer, topic, found)
            )
        consumer.assign([place for place, _ in places])
        return {(place.topic, place.partition): end for place, end in places}

    def _may_hold(self, consumer: Consumer, topic: str, found: TopicMetadata) -> bool:
        """Return whether a topic that is not read has records since the time, or does not tell.

        It belongs to others: that it is deleted meanwhile, or has lost its leader, must not end the scan.
        """
        if any(partition.leader < 0 for partition in found.partitions.values()):
            return True  # asking would wait for a leader until the time-out
        try:
            return bool(self._places(consumer, topic, found.partitions))
        except KafkaException:
            return True

    def _places(
        self, consumer: Consumer, topic: str, numbers: Iterable[int]
    ) -> list[tuple[TopicPartition, int]] | None:
        """Find where the time is in each partition that has records since then, and where the partition ends.

        None: the topic was deleted since its name was read.
        """
        moment = int(self.since.timestamp() * 1000)
        asked = [TopicPartition(topic, number, moment) for number in numbers]
        found = []
        try:
            for place in consumer.offsets_for_times(asked, timeout=READ_TIMEOUT_S) if asked else []:
                if place.error is not None:
                    raise KafkaException(place.error)
                _, end = consumer.get_watermark_offsets(place, timeout=READ_TIMEOUT_S)
                if 0 <= place.offset < end:
                    found.append((place, end))
        except KafkaException as error:
            if error.args[0].code() in DELETED:
                return None
            raise
        return found

    def _lost(self, records: list[Record]) -> list[LostMessage]:
        self.counts.records += len(records)
        named = [(record, message_id) for record in records if (message_id := id_of(record)) is not None]
        self.counts.without_id += len(records) - len(named)
        states = self._states({message_id for _, message_id in named})
        # After the rows: history that is dropped in between must not count as lost.
        (first_id,) = self.conn.execute(STATEMENTS["first_id"]).fetchone() or (0,)
        found = []
        for record, message_id in named:
            state = states.get(message_id)
            if state is not None and state not in NOT_PUBLISHED:
                continue
            row_id = wire.row_id_of(message_id)
            if state is None and row_id is not None and row_id < (first_id or 0):
                self.counts.dropped += 1
                continue
            found.append(LostMessage(message_id, *_place(record), moment_of(record), record.key(), state))
        self.counts.lost += len(found)
        return found

    def _states(self, message_ids: set[UUID]) -> dict[UUID, str]:
        own = {id_: row for id_ in message_ids if (row := wire.row_id_of(id_)) is not None}
        foreign = list(message_ids - own.keys())
        states: dict[UUID, str] = {}
        if own:
            values = {"ids": list(own.values()), "message_ids": list(own)}
            states.update(self.conn.execute(STATEMENTS["states"], values).fetchall())
        if foreign:
            rows = self.conn.execute(STATEMENTS["states_of_foreign"], {"message_ids": foreign}).fetchall()
            states.update(rows)
        return states


def topics(conn: psycopg.Connection[Any]) -> list[str]:
    """Return the topics that are registered, and those of the newest messages."""
    return [name for (name,) in conn.execute(STATEMENTS["topics"]).fetchall()]


def id_of(record: Record) -> UUID | None:
    """Return the message id of a record; None: the outbox did not write it."""
    for name, value in headers_of(record):
        if name == wire.ID and value is not None:
            try:
                return UUID(value.decode("ascii"))
            except ValueError:
                return None
    return None


def _passing(records: Sequence[Record], ends: dict[tuple[str, int], int]) -> Iterator[Record]:
    """Yield records in front of the ends; forget partitions that are read to their end."""
    for record in records:
        error = record.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.fatal() or error.code() in NEVER_READABLE:
                raise KafkaException(error)
            continue  # a broker that is away comes back, and the client goes on by itself
        topic, partition, offset = _place(record)
        end = ends.get((topic, partition))
        if end is None:
            continue
        if error is None and offset < end:
            yield record
        if offset >= end - 1:
            del ends[topic, partition]


def _place(record: Record) -> tuple[str, int, int]:
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    assert topic is not None and partition is not None and offset is not None  # noqa: S101, PT018  (it was read)
    return topic, partition, offset
