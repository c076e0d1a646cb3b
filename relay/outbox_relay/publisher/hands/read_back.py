"""Reads back from Kafka what a former leader may have sent and did not record, so that it is not sent again.

A page brings messages in doubt. Their partitions are read once each, from the last offset that a former leader recorded
to the high watermark of that moment. A message counts only under its id, with its key and body, in the partition in
which it belongs now, of a topic that was not made again meanwhile, and behind what was recorded. Whether it is
published then, the core decides (R11). Whatever cannot be read is published again, as is what Kafka deleted.

Schedules. A former leader still lives, and sends after the watermark was read: its messages come twice. This one dies:
the next one reads back again; what this one recorded meanwhile hides what is in front of it in its partition. It
pauses: writes ask who leads, as always. Another producer has an open transaction: what is behind it may be of one that
will be aborted. It counts all the same, since no other producer writes an id first; but where relays used transactions,
what is behind it may be their own that were aborted, and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from outbox import wire
from outbox.statements import Statements, array_text
from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Row
from outbox_relay.publisher.finder import BODY, KEY, MESSAGE_ID
from outbox_relay.publisher.kafka import new_admin, new_log_reader, readable
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.records import Topic
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/finder.sql")
BATCHES = Statements("outbox_relay/publisher/hands/batches.sql")

MOST_RECORDS = 100_000
"""Of one take-over; more than a relay has on the wire."""
MOST_S = 5.0
"""For so long in all a relay that takes over publishes nothing because it reads back."""
REPLY_S = 2.0
"""How long Kafka may take to reply, and to send the next records."""
WITHOUT_RECORD = 10_000
"""Records of a partition of which no former leader recorded an offset lately."""
PUBLICATIONS, MESSAGES = 500, 10_000
"""The newest ones, in which the last recorded offsets are searched."""
TOGETHER = 1000

log = Log("relay")

Name = tuple[str, int]
"""Topic and partition."""


class LastRecord(NamedTuple):
    """A message as Kafka has it.

    `content`: a hash of its key and body. `below`: the id of a row behind it, the lowest one, where the last recorded
    offset of the partition is not known: what is behind it may be recorded then, and in front of it in its key.
    """

    offset: int
    content: int
    below: float


@dataclass(slots=True)
class Extent:
    """A partition to be read: its offsets from `begin` to `end`, which is exclusive."""

    begin: int
    end: int
    stable: int
    """Up to where no transaction is open."""
    is_behind_record: bool
    """Whether all records are behind the last recorded one."""


class ReadingBack:
    """Reads back for one loop."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease, settings: Mapping[str, Any]) -> None:
        """Begin with nothing read.

        Args:
            conn: the loop's.
            lease: whose epoch is higher than those of former leaders.
            settings: of the producers.
        """
        self._conn = conn
        self._lease = lease
        self._settings = settings
        self._logs: dict[Name, dict[str, LastRecord]] = {}
        self._records, self._seconds = MOST_RECORDS, MOST_S
        self._is_reported = False
        self.is_open = True
        """Whether messages may be in doubt that a former leader read."""

    def end(self, core: Core) -> None:
        """Forget what was read when all is settled that a former leader may have read."""
        if core.sources.is_level() and not core.holds.by_scope:
            self.is_open = False
            self._logs.clear()
            core.read_back.forget()

    def of_page(self, rows: Sequence[Row], core: Core, topics: Mapping[str, Topic]) -> None:
        """Let the core know which messages in doubt of a page Kafka has, before it gets the page.

        Args:
            rows: of the page.
            core: chooses their partitions.
            topics: those that can be published to.
        """
        doubtful: dict[Name, list[Row]] = {}
        for row in rows:
            if row.in_doubt and row.topic in topics:
                doubtful.setdefault((row.topic, core.topics.partition(row)), []).append(row)
        if new := [name for name in doubtful if name not in self._logs]:
            self._logs.update((name, {}) for name in new)
            self._logs.update(self._read(new, topics))
        found = 0
        for name, mine in doubtful.items():
            known = self._logs[name]
            if known:  # otherwise the core need not remember its keys
                offsets = {row.id: one.offset for row in mine if (one := _find(row, known)) is not None}
                core.read_back.add(*name, offsets)
                found += len(offsets)
        if found:
            log.info("messages in doubt are in Kafka", messages=found)

    def _read(
        self, names: Collection[Name], topics: Mapping[str, Topic]
    ) -> dict[Name, dict[str, LastRecord]]:
        if self._seconds <= 0 or self._records <= 0:
            self._report(f"{MOST_RECORDS} records or {MOST_S:g} s have been read", names)
            return {}
        began, records = time.monotonic(), self._records
        admin = new_admin(self._settings)
        led = [name for name in names if name[1] not in topics[name[0]].leaderless]
        of_names = sorted({topic for topic, _ in led})
        try:
            before = _identities(admin, of_names)
            parts = self._plan(admin, led)
            until = time.monotonic() + self._seconds
            logs = _read_logs(self._settings, parts, until, only_committed=self._had_transactions())
            after = _identities(admin, of_names)
        except (KafkaException, TimeoutError) as error:
            self._report(readable(error), names)
            return {}
        finally:
            self._seconds -= time.monotonic() - began
        log.info(
            "read back",
            partitions=len(parts),
            records=records - self._records,
            seconds=round(time.monotonic() - began, 3),
        )
        sound = {topic for topic, known in before.items() if after.get(topic) == known}
        if missed := [name for name in names if name not in logs or name[0] not in sound]:
            self._report(
                "partitions without a leader, or the Kafka user may not read; grant it the operation Read",
                missed,
            )
        return {name: known for name, known in logs.items() if name[0] in sound}

    def _had_transactions(self) -> bool:
        values = {"lanes": array_text(self._lease.lanes)}
        return self._conn.execute(BATCHES["was_exactly_once"], values).fetchone() == (True,)

    def _report(self, reason: str, names: Collection[Name]) -> None:
        if not self._is_reported:
            self._is_reported = True
            topics = sorted({topic for topic, _ in names})
            log.warning("messages in doubt are published again", reason=reason, topics=topics)

    def _plan(self, admin: AdminClient, names: Collection[Name]) -> dict[Name, Extent]:
        """Return from where to where each partition is read; those that Kafka knows."""
        topics = sorted({topic for topic, _ in names})
        values = {
            "epoch": self._lease.epoch,
            "topics": topics,
            "publications": PUBLICATIONS,
            "messages": MESSAGES,
        }
        recorded: dict[Name, int] = {
            (topic, partition): offset
            for topic, partition, offset in self._conn.execute(STATEMENTS["recorded"], values)
        }
        stable, ends, begins = _offsets(admin, names)
        parts: dict[Name, Extent] = {}
        for name in names:
            if name in stable and name in ends and name in begins:
                last = recorded.get(name)
                begin = ends[name] - WITHOUT_RECORD if last is None else last + 1
                parts[name] = Extent(
                    max(begin, begins[name]), ends[name], stable[name], is_behind_record=last is not None
                )
        self._share(parts)
        return parts

    def _share(self, parts: Mapping[Name, Extent]) -> None:
        """Divide the records that may be read; the last ones of a partition are read where that is not enough."""
        by_size = sorted(parts.values(), key=lambda part: part.end - part.begin)
        for number, part in enumerate(by_size):
            most = self._records // (len(by_size) - number)
            if part.end - part.begin > most:
                part.begin, part.is_behind_record = part.end - most, False
            self._records -= max(part.end - part.begin, 0)


def _read_logs(
    settings: Mapping[str, Any], parts: Mapping[Name, Extent], until: float, *, only_committed: bool
) -> dict[Name, dict[str, LastRecord]]:
    """Return, for each partition that was read to its end, the last record of each message.

    Args:
        settings: of the producers.
        parts: what to read.
        until: when to give up (monotonic seconds).
        only_committed: end at the first open transaction.
    """
    stable = {name: (part.begin, min(part.stable, part.end)) for name, part in parts.items()}
    found = _consume(settings, stable, until, committed=True)
    if not only_committed:
        rest = {name: (max(parts[name].begin, parts[name].stable), parts[name].end) for name in found}
        more = _consume(settings, rest, until, committed=False)
        found = {name: found[name] + more[name] for name in more}
    return {
        name: _last(records, is_behind_record=parts[name].is_behind_record) for name, records in found.items()
    }


def _consume(
    settings: Mapping[str, Any], spans: Mapping[Name, tuple[int, int]], until: float, *, committed: bool
) -> dict[Name, list[tuple[int, str, int]]]:
    """Read offset, message id and content of records; return those of partitions of which all were read.

    It is a consumer of assigned partitions, which joins no group.
    """
    ends = {name: end for name, (begin, end) in spans.items() if begin < end}
    found: dict[Name, list[tuple[int, str, int]]] = {name: [] for name in spans}
    if ends:
        consumer = new_log_reader(settings, committed=committed)
        try:
            consumer.assign([TopicPartition(*name, spans[name][0]) for name in ends])
            _take(consumer, ends, found, until)
        finally:
            consumer.close()
    return {name: records for name, records in found.items() if name not in ends}


def _take(
    consumer: Consumer, ends: dict[Name, int], found: dict[Name, list[tuple[int, str, int]]], until: float
) -> None:
    """Take records until no partition is left in `ends`; one that cannot be read is left out of `found`."""
    idle_at = time.monotonic() + REPLY_S
    while ends and time.monotonic() < min(until, idle_at):
        records = consumer.consume(1, 0.1)
        if records:
            records += consumer.consume(TOGETHER, 0)
            idle_at = time.monotonic() + REPLY_S
        for record in records:
            name: Any = (record.topic(), record.partition())
            end = ends.get(name)
            if end is None:  # read to its end, or an error of no partition: the group, which is of no use
                continue
            error = record.error()
            offset: Any = record.offset()
            if error is None and offset < end:
                headers: Any = record.headers() or []
                message_id = next((value for header, value in headers if header == wire.ID), None)
                if message_id is not None:
                    content = hash((record.key(), record.value()))
                    found[name].append((offset, message_id.decode(errors="replace"), content))
            if error is None and offset < end - 1:
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                del found[name]
            del ends[name]
            consumer.pause([TopicPartition(*name)])


def _last(records: list[tuple[int, str, int]], *, is_behind_record: bool) -> dict[str, LastRecord]:
    found: dict[str, LastRecord] = {}
    below = inf
    for offset, message_id, content in reversed(records):
        if message_id not in found:
            found[message_id] = LastRecord(offset, content, below)
        if not is_behind_record:
            below = min(below, _row_id(message_id))
    return found


def _find(row: Row, known: Mapping[str, LastRecord]) -> LastRecord | None:
    raw: Any = row.content[0]  # type: ignore[index]
    found = known.get(raw[MESSAGE_ID])
    if found is None or found.content != hash((raw[KEY], raw[BODY])) or row.position >= found.below:
        return None
    return found


def _row_id(message_id: str) -> float:
    """Return the row's id that a message id contains; 0 for one of another form, which may be any row's."""
    try:
        return wire.row_id_of(UUID(message_id)) or 0
    except ValueError:
        return 0


def _identities(admin: AdminClient, topics: Sequence[str]) -> dict[str, str]:
    """Return by which ids Kafka knows topics: one that was made again has another."""
    if not topics:
        return {}
    replies = admin.describe_topics(TopicCollection([*topics]), request_timeout=REPLY_S)
    return {topic: str(reply.result(2 * REPLY_S).topic_id) for topic, reply in replies.items()}


_ASKED = (
    (OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),  # type: ignore[no-untyped-call]
    (OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]
    (OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]
)


def _offsets(admin: AdminClient, names: Collection[Name]) -> list[dict[Name, int]]:
    """Return the last stable offset, the high watermark and the first offset of each partition whose leader replies."""
    if not names:
        return [{}, {}, {}]
    replies = [
        admin.list_offsets(
            {TopicPartition(*name): spec for name in names},
            isolation_level=isolation,
            request_timeout=REPLY_S,
        )
        for spec, isolation in _ASKED
    ]
    return [dict(_replied(of_spec)) for of_spec in replies]


def _replied(replies: Mapping[TopicPartition, Future[Any]]) -> Iterator[tuple[Name, int]]:
    for place, reply in replies.items():
        with suppress(KafkaException, TimeoutError):
            yield (place.topic, place.partition), int(reply.result(2 * REPLY_S).offset)
