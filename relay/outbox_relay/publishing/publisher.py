"""The publisher: turns rows into Kafka records, and knows which batches are acknowledged.

The loop over rows is the hottest of the system; it makes nothing per message but the record's headers.

Any delivery error ends the producer: with idempotence and `enable.gapless.guarantee` librdkafka stops before it
would deliver a later message of the partition, and the relay starts again from what is recorded.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException

from outbox.errors import SelectorError
from outbox.selectors import partition_of
from outbox_relay.finder.finder import (
    BODY,
    BORN_AT,
    HEADERS,
    INDEX_KEYS,
    KEY,
    LANE,
    MESSAGE_ID,
    POSITION,
    PRODUCER_GROUP,
    ROW_BYTES,
    TAGS,
    TOPIC,
    TRACEPARENT,
    TRANSACTION_ID,
    WAITING,
    WITHHELD,
    RawRow,
)
from outbox_relay.finder.snapshot import Progress, Snapshot
from outbox_relay.publishing.batch import Batch, Slot, Stop
from outbox_relay.publishing.errors import DeliveryError, KafkaUnavailableError, Refused, Unpublishable
from outbox_relay.publishing.producers import Producers
from outbox_relay.publishing.topics import KEYS_CACHED, ROOM, Topic, TopicBook

Headers = list[tuple[str, str | bytes | None]]

REFUSED = frozenset(
    {
        "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD", "POLICY_VIOLATION",
        "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION",
        "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_MSG_SIZE_TOO_LARGE", "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "INVALID_TIMESTAMP", "UNSUPPORTED_COMPRESSION_TYPE",
    }
)  # fmt: skip
"""Errors that the same message would meet again: its lane stops. After any other a new producer tries again."""

_decode = json.JSONDecoder().raw_decode
"""Half the cost of json.loads(): PostgreSQL's text of a jsonb has no white space around it."""

TEXTS = (MESSAGE_ID, BORN_AT, TAGS, INDEX_KEYS, PRODUCER_GROUP, TRANSACTION_ID, TRACEPARENT)
"""Fields of a row that become record headers of our own."""

LONG = ROOM // 16
"""A key or header longer than this is not taken for granted when the size is checked."""

SERVE_EVERY = 500
"""Messages between two looks at deliveries while producing."""


class Publisher:
    """Produces pages of rows and collects their offsets.

    After `DeliveryError` it must be closed and replaced: nothing it still delivers is recorded.
    """

    def __init__(self, producers: Producers, topics: TopicBook) -> None:
        self._producers = producers
        self._topics = topics
        self._failure: tuple[Slot, KafkaError] | None = None
        self.in_flight: deque[Batch] = deque()
        self.unacknowledged = 0
        self.while_full: Callable[[], None] = _go_on
        """Called while Kafka is waited for because the local queue is full; what it raises ends `publish`."""

    def prepare(self, rows: Iterable[RawRow], lanes: Collection[int]) -> None:
        """Look up the topics of what will be published of a page; see `TopicBook.prepare`.

        Raises:
            KafkaUnavailableError: no broker answers about a topic; nothing was produced.
        """
        self._topics.prepare(
            {
                row[TOPIC]
                for row in rows
                if row[WAITING] is None and row[WITHHELD] is None and row[LANE] in lanes
            }
        )

    def publish(
        self, rows: Iterable[RawRow], progress: Progress, before: Progress, lanes: Collection[int]
    ) -> Batch:
        """Give rows to Kafka, in order; stop lanes at messages that cannot be published.

        Args:
            rows: one page, in position order; those of other lanes than `lanes` are left out.
            progress: how far this page brings the lanes.
            before: how far they were before it; a lane that stops stays between the two.
            lanes: the lanes that this page speaks for.

        Raises:
            DeliveryError: a message was not delivered, or the producer takes no more.
            KafkaUnavailableError: raised by `while_full`; the batch ends before the message that found no room.
        """
        batch = Batch((), progress)
        # A message of this very batch may be refused while the rest is produced. Until the end it speaks for no
        # lane: were it recorded half, no progress would come of it.
        self.in_flight.append(batch)
        running = set(lanes)
        positions, row_lanes, message_ids = batch.positions, batch.row_lanes, batch.message_ids
        produce, poll, decode = self._producers.main.produce, self._producers.poll, _decode
        slots = batch.slots
        topic: Topic | None = None
        last_topic = ""
        last_headers, pairs = "", []
        count = 0
        for row in rows:
            (position, _, lane, name, key, body, arg, queue, selector, message_id, born_at, headers, tags,
             index_keys, group, transaction_id, traceparent, waiting, withheld, _) = row  # fmt: skip
            if waiting is not None or lane not in running:
                continue
            if arg is None:
                arg = key
            try:
                if withheld is not None:
                    raise _too_large(withheld)
                if topic is None or name != last_topic:
                    topic, last_topic = self._topics.known(name), name
                    produce = self._producers.of(name, topic.max_message_bytes).produce
                if queue is None and selector is None and topic.selector is None and arg is not None:
                    cached = topic.cache.get(arg)
                    partition = self._hash(topic, arg) if cached is None else cached
                else:
                    partition = _select(topic, queue, selector, arg, position)
                if (
                    (body is not None and len(body) > topic.small)
                    or (key is not None and len(key) > LONG)
                    or (headers is not None and len(headers) > LONG)
                    or (tags is not None and len(tags) > LONG)
                    or (index_keys is not None and len(index_keys) > LONG)
                    or (transaction_id is not None and len(transaction_id) > LONG)
                    or (group is not None and len(group) > LONG)
                ):
                    _check_size(topic, row)
                record: Headers = [("outbox-id", message_id), ("outbox-born-at", born_at)]
                if tags is not None:
                    record.append(("outbox-tags", tags))
                if index_keys is not None:
                    record.append(("outbox-keys", index_keys))
                if group is not None:
                    record.append(("outbox-producer-group", group))
                if transaction_id is not None:
                    record.append(("outbox-transaction-id", transaction_id))
                if traceparent is not None:
                    record.append(("traceparent", traceparent))
                if headers is not None:
                    if headers != last_headers:
                        # Often the same text for many messages in a row.
                        last_headers, pairs = headers, list(decode(headers)[0].items())
                    record += pairs
                slot = slots.get((name, partition))
                if slot is None:
                    slot = slots[(name, partition)] = Slot(name, partition, self._fail)
                while True:
                    try:
                        produce(name, body, key, partition, slot.delivered, headers=record)
                        break
                    except BufferError:
                        # The local queue is full: the lane waits for Kafka, nothing is skipped.
                        poll(0.05)
                        self.raise_failure()
                        self.while_full()
            except KafkaUnavailableError:
                # Told to stop while waiting: the batch ends before this message.
                batch.progress = _just_before(position, progress, before)
                batch.lanes = tuple(sorted(running))
                self.unacknowledged += count
                raise
            except (Unpublishable, KafkaException) as error:
                if isinstance(error, KafkaException) and error.args[0].name() not in REFUSED:
                    # The producer, not the message: after a refused message it takes nothing more (_FATAL).
                    self._raise_end(error.args[0])
                running.discard(lane)
                batch.stops.append(_stop(lane, row, error, progress, before))
                if topic is not None:
                    topic.read_at = float(
                        "-inf"
                    )  # what is known may be what is wrong: asked anew at the retry
                topic = None
                continue
            slot.indexes.append(count)
            positions.append(position)
            row_lanes.append(lane)
            message_ids.append(message_id)
            count += 1
            if not count % SERVE_EVERY:
                poll(0)
        batch.lanes = tuple(sorted(running))
        self.unacknowledged += count
        return batch

    def _hash(self, topic: Topic, arg: bytes) -> int:
        partition = partition_of(None, arg, topic.partitions)
        if len(topic.cache) >= KEYS_CACHED:
            topic.cache.clear()
        topic.cache[arg] = partition
        return partition

    def _fail(self, slot: Slot, error: KafkaError) -> None:
        if self._failure is None or (error.name() in REFUSED and self._failure[1].name() not in REFUSED):
            self._failure = (slot, error)

    def _raise_end(self, error: KafkaError) -> NoReturn:
        """Raise why the producer ended: the message that it reports, if it does so soon."""
        for _ in range(20):
            self._producers.poll(0.1)
            self.raise_failure()
        raise DeliveryError(f"the producer takes no more messages: {error.name()}: {error.str()}", {})

    def serve(self, seconds: float = 0.0) -> None:
        """Collect deliveries, waiting up to `seconds` for the first.

        Raises:
            DeliveryError: a message was not delivered; the producer is of no further use.
        """
        self._producers.poll(seconds)
        self.raise_failure()
        if self._producers.ended is not None:
            self._raise_end(self._producers.ended)

    def raise_failure(self) -> None:
        """Raise what a delivery callback has noted."""
        if self._failure is None:
            return
        # Other messages that go down with the producer may be reported before the one that was refused.
        for _ in range(5):
            if self._failure[1].name() in REFUSED:
                break
            self._producers.poll(0.02)
        slot, error = self._failure
        refused: dict[int, Refused] = {}
        if error.name() in REFUSED:
            for batch in self.in_flight:
                if slot in batch.slots.values() and len(slot.offsets) < len(slot.indexes):
                    index = slot.indexes[len(slot.offsets)]
                    refused[batch.row_lanes[index]] = Refused(
                        batch.positions[index],
                        batch.message_ids[index],
                        f"{error.name()}: topic {slot.topic!r}, partition {slot.partition}: {error.str()}",
                    )
                    break
        text = f"delivery to {slot.topic}[{slot.partition}] failed: {error.name()}: {error.str()}"
        raise DeliveryError(text, refused)

    def take_acknowledged(self) -> list[Batch]:
        """Return the batches that are acknowledged in full, oldest first, up to the first that is not."""
        done = []
        while self.in_flight and self.in_flight[0].is_acknowledged:
            batch = self.in_flight.popleft()
            self.unacknowledged -= len(batch.positions)
            done.append(batch)
        return done

    def close(self) -> None:
        """Drop what is not delivered yet, so that the producer can be destroyed without waiting."""
        self._producers.close()


def _go_on() -> None:
    """Wait for as long as it takes."""


def _select(topic: Topic, queue: int | None, selector: str | None, arg: bytes | None, position: int) -> int:
    """Choose the partition when it is not the cached hash of the order key."""
    if queue is None:
        try:
            return partition_of(selector or topic.selector, arg, topic.partitions, position)
        except SelectorError as error:
            raise Unpublishable("SELECTOR_FAILED", str(error)) from error
    if queue >= topic.partitions:
        raise Unpublishable(
            "QUEUE_OUT_OF_RANGE",
            f"queue {queue} does not exist in topic {topic.name!r}: it has 0 to {topic.partitions - 1}",
        )
    return queue


def _check_size(topic: Topic, row: RawRow) -> None:
    # Kafka's limit counts the record batch: 61 bytes of batch header, up to 21 of the record's own, and for each
    # header two lengths of up to 5 bytes. https://kafka.apache.org/documentation/#recordbatch
    texts = [row[name] for name in TEXTS if row[name]]
    size = 82 + len(row[KEY] or b"") + len(row[BODY] or b"") + sum(len(text.encode()) + 32 for text in texts)
    if row[HEADERS]:
        pairs: dict[str, Any] = json.loads(row[HEADERS])
        size += sum(len(name.encode()) + len((value or "").encode()) + 10 for name, value in pairs.items())
    if size > topic.max_message_bytes:
        raise Unpublishable(
            "MESSAGE_TOO_LARGE",
            f"{size} bytes with headers; topic {topic.name!r} takes {topic.max_message_bytes}",
        )


def _too_large(size: int) -> Unpublishable:
    """Say of a row that was not brought for its size why it stops its lane."""
    return Unpublishable("MESSAGE_TOO_LARGE", f"{size} bytes; no topic takes more than {ROW_BYTES}")


def _stop(
    lane: int, row: RawRow, error: Unpublishable | KafkaException, progress: Progress, before: Progress
) -> Stop:
    if isinstance(error, KafkaException):
        reason = error.args[0]
        error = Unpublishable(reason.name(), reason.str())
    return Stop(lane, _just_before(row[POSITION], progress, before), row[MESSAGE_ID], error)


def _just_before(position: int, progress: Progress, before: Progress) -> Progress:
    """Say that of the difference being taken, all below `position` is published."""
    base: Snapshot = before.snapshot if before.base is None else before.base
    return Progress(progress.snapshot, base, position - 1)
