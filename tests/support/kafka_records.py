"""What arrived in Kafka, read with a stock consumer, and what it must look like.

Nothing here knows the outbox's tables: records are compared with what producers know they committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox_relay.proving.history import (
    Fate,
    Offence,
    ReadRecord,
    RunHistory,
    SentMessage,
    check_history,
)
from tests.support.waiting import wait_until

LIMIT = 15.0
"""Seconds for the broker to answer."""
PASSING = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
"""What a broker that was restarted or stood still replies for a moment."""
T = TypeVar("T")


class Record(NamedTuple):
    """One Kafka record; `headers` in the order they were written."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int = -1
    """Milliseconds since 1970; of a topic with LogAppendTime, by the broker's clock."""

    def header(self, name: str) -> str | None:
        """The text of a header that occurs once at most."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, f"header {name} occurs {len(values)} times"
        return None if not values or values[0] is None else values[0].decode()

    @property
    def message_id(self) -> str:
        """The outbox's id of the message."""
        found = self.header("outbox-id")
        assert found is not None, "a record without outbox-id"
        return found


class TopicReader:
    """Reads a topic from its beginning, partition by partition in offset order, as often as it is asked."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self.records: list[Record] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "checker",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # A broker replies to a connection in order: each request for an offset waits for the fetch in front of
                # it, which by default waits half a second for further records.
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        self._next = dict.fromkeys(wait_until(self._partitions, f"{topic} is known"), 0)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in self._next])

    def read(self) -> list[Record]:
        """Read up to what the broker has now; return all records read so far."""
        ends = wait_until(self._ends, f"the ends of {self.topic} are known")
        while any(self._next[number] < end for number, end in ends.items()):
            message = self._consumer.poll(LIMIT)
            assert message is not None, f"the broker stopped delivering at {self._next} of {ends}"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._pass(message)
                continue
            if error is not None:
                assert error.code() == KafkaError._TRANSPORT, error  # a broker that was restarted
                continue
            record = _record(message)
            self.records.append(record)
            self._next[record.partition] = record.offset + 1
        return self.records

    def _pass(self, end: Message) -> None:
        """Pass what is in front of an end: the last offset of a transaction has no record that anybody gets."""
        number, offset = end.partition(), end.offset()
        assert number is not None
        assert offset is not None
        self._next[number] = max(self._next[number], offset)

    def _partitions(self) -> list[int]:
        """Return the partitions; none while a broker that has just come back knows no topic."""
        try:
            known = self._consumer.list_topics(self.topic, timeout=LIMIT).topics[self.topic]
        except KafkaException as error:
            return _none_yet(error, [])
        return sorted(known.partitions)

    def _ends(self) -> dict[int, int]:
        """Return the end of each partition; none while a broker that has just come back leads none."""
        try:
            return {
                number: self._consumer.get_watermark_offsets(
                    TopicPartition(self.topic, number), timeout=LIMIT
                )[1]
                for number in self._next
            }
        except KafkaException as error:
            return _none_yet(error, {})

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()


def _none_yet(error: KafkaException, none: T) -> T:
    if error.args[0].code() not in PASSING:
        raise error
    return none


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    texts = tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
    return Record(topic, partition, offset, message.key(), message.value(), texts, message.timestamp()[1])


def read_topic(bootstrap_servers: str, topic: str) -> list[Record]:
    """Read all that a topic has now; records of one partition are in offset order."""
    reader = TopicReader(bootstrap_servers, topic)
    try:
        return reader.read()
    finally:
        reader.close()


@dataclass(slots=True)
class Findings:
    """What is wrong with the records of a topic; empty lists are good news."""

    lost: list[str] = field(default_factory=list)
    ghosts: list[str] = field(default_factory=list)
    inversions: list[str] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)
    duplicate_records: int = 0

    @property
    def broken(self) -> str:
        """The violations in words; empty when every promise was kept. Duplicates of one id are none."""
        wrong = [
            f"{name}: {len(found)} ({', '.join(found[:5])})"
            for name in ("lost", "ghosts", "inversions", "doubles")
            if (found := getattr(self, name))
        ]
        return "; ".join(wrong)


def by_key_and_version(record: Record) -> tuple[str, int]:
    """Read the body that the tests' writers use: `key:version`, or `key:ghost` for what is rolled back."""
    assert record.value is not None
    key, _, version = record.value.decode().rpartition(":")
    return key, int(version) if version.isdigit() else -1


def compare(
    records: Iterable[Record],
    committed: Iterable[tuple[str, int]],
    identify: Callable[[Record], tuple[str, int]] = by_key_and_version,
) -> Findings:
    """Compare first appearances with the committed versions of each key.

    Args:
        records: a whole topic; those of one partition in offset order.
        committed: each (key, version) that a transaction committed a message for; versions of a key rise in the
            order of its transactions.
        identify: how to read (key, version) from a record.
    """
    sent = {_named(one): SentMessage(_named(one), "", one[0], Fate.COMMITTED, one[1]) for one in committed}
    owner: dict[str, str] = {}

    def read() -> Iterator[ReadRecord]:
        for record in sorted(records, key=lambda r: (r.partition, r.offset)):
            version = identify(record)
            name = _named(version)
            first = owner.setdefault(name, record.message_id)
            own = name if first == record.message_id else f"{name} as {first} and {record.message_id}"
            yield ReadRecord("", record.partition, record.offset, version[0], own, version[1])

    findings = check_history(RunHistory(list(sent.values()), read()))
    strange = findings.ids(Offence.GHOST)
    return Findings(
        lost=sorted(findings.ids(Offence.LOST)),
        ghosts=[name for name in strange if " as " not in name],
        inversions=list(findings.found[Offence.REORDERED].values()),
        doubles=[name for name in strange if " as " in name],
        duplicate_records=findings.repeats,
    )


def _named(version: tuple[str, int]) -> str:
    return f"{version[0]}:{version[1]}"


def message_ids(records: Sequence[Record]) -> Counter[str]:
    """How often each message id occurs."""
    return Counter(record.message_id for record in records)
