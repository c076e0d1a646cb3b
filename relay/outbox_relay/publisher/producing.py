"""The publisher: turns rows into Kafka records, and knows which batches are acknowledged.

The loop over rows is the hottest of the system; it makes nothing per message but the record's headers.

Any delivery error ends the producer: with idempotence and `enable.gapless.guarantee` librdkafka stops before it
would deliver a later message of the partition, and the relay starts again from what is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NoReturn

from confluent_kafka import KafkaError, KafkaException

from outbox import wire
from outbox.cloudevents import attributes as cloudevents
from outbox_relay.publisher.batch import Batch, Slot, ignore, just_before
from outbox_relay.publisher.errors import REFUSED, DeliveryError, Refused, Unpublishable
from outbox_relay.publisher.finder import (
    EXPIRED,
    LANE,
    TOPIC,
    WAITING,
    RawRow,
)
from outbox_relay.publisher.holding import HoldingKeys
from outbox_relay.publisher.kept_keys import kept
from outbox_relay.publisher.parked import Held, Key, KeyDrain
from outbox_relay.publisher.producers import Producers
from outbox_relay.publisher.records import (
    Headers,
    check_size,
    claim_of_failure,
    decode_headers,
    expiry_of,
    keyless,
    reason_of,
    select,
    too_large,
)
from outbox_relay.publisher.snapshot import Progress, Snapshot
from outbox_relay.publisher.topic import ROOM, Topic
from outbox_relay.publisher.topics import TopicBook

# Names in this module's own dictionary are looked up faster.
_ID, _BORN_AT, _DELIVER_AT, _TAGS, _KEYS = wire.ID, wire.BORN_AT, wire.DELIVER_AT, wire.TAGS, wire.KEYS
_GROUP, _TRANSACTION_ID, _TRACEPARENT = wire.PRODUCER_GROUP, wire.TRANSACTION_ID, wire.TRACEPARENT

LONG = ROOM // 32
"""A key or header of more characters than this is not taken for granted when the size is checked: seven of them, with
four bytes a character, and the frame still take less than ROOM."""

Begin = Callable[[Batch, Iterable[RawRow]], None]
"""Begins the span of a batch."""

NO_SLOT = Slot("", 0, ignore)
NO_ROOM = BufferError("the local queue has no room")

SERVE_EVERY = 500
"""Messages between two polls of deliveries while producing."""


class Publisher(HoldingKeys):
    """Produces pages of rows and collects their offsets.

    After `DeliveryError` it must be closed and replaced: nothing it still delivers is recorded.
    """

    def __init__(self, producers: Producers, topics: TopicBook) -> None:
        super().__init__()
        self._producers = producers
        self.topics = topics
        topics.changes.on_the_wire, topics.changes.lists = self.topics_on_the_wire, producers.lists
        topics.given_up = self.given_up
        self._failure: tuple[Slot, KafkaError] | None = None
        self.begin_span: Begin | None = None
        """Called with each batch and its rows, where batches are traced."""
        self.held = Held()
        """The keys whose messages are held; this adds to them."""
        self.while_full: Callable[[float], bool] = _go_on
        """Called while there is no room for a message in the local queue, with the seconds waited so far; False ends
        the page before that message."""

    def prepare(self, rows: Iterable[RawRow], lanes: Collection[int]) -> bool:
        """Read the topics of what will be published of a page; return whether any had to be read.

        See `TopicBook.prepare`.

        Raises:
            KafkaUnavailableError: no broker replies about a topic; nothing was produced.
        """
        parked = self.held.topics
        published = (row for row in rows if row[WAITING] is row[EXPIRED] is None and row[TOPIC] is not None)
        flowing = (row for row in published if row[LANE] in lanes)
        return self.topics.prepare(
            {row[TOPIC] for row in flowing if not parked or (row[LANE], row[TOPIC]) not in parked}
        )

    def publish(
        self,
        rows: Iterable[RawRow],
        progress: Progress,
        before: Progress,
        lanes: Collection[int],
        drain: KeyDrain | None = None,
        *,
        seen: Snapshot | None = None,
    ) -> Batch:
        """Give rows to Kafka, in order; park keys and topics at messages that cannot be published.

        Args:
            rows: one page, in position order; those of other lanes than `lanes` are left out.
            progress: how far this page brings the lanes.
            before: how far they were before it; a lane that stops stays between the two.
            lanes: the lanes that this page speaks for.
            drain: the parked key whose held messages the rows are; they bring no lane further.
            seen: what was visible when the page was read; a message of it may be refused before this returns.

        Returns:
            The batch. Its progress is that of the page, or an earlier one when the page ended early because the
            local queue had no room: what follows is still to be published.

        Raises:
            DeliveryError: a message was not delivered, or the producer takes no more.
        """
        batch = Batch((), progress, before, drain=drain, seen=seen)
        # A message of this very batch may be refused while the rest is produced. Until the end it speaks for no
        # lane: were it recorded half, no progress would come of it.
        self.in_flight.append(batch)
        running, slots = set(lanes), batch.slots
        positions, row_lanes = batch.positions, batch.row_lanes
        message_ids, ids = batch.message_ids, batch.ids
        produce, poll = self._producers.main.produce, self._producers.poll
        # The messages of a topic are drained into the keys that are parked, or park themselves meanwhile.
        parked: Mapping[Key, int] = self.held.keys if drain is None or drain.is_topic else {}
        whole: Mapping[tuple[int, str], int] = self.held.topics if drain is None else {}
        drained: Collection[int] = self.held.drained if drain is None else ()
        topic: Topic | None = None
        last_topic = ""
        last_headers: str | None = None
        pairs: Headers = []
        partition, slot, record, count, missing = 0, NO_SLOT, pairs, 0, cloudevents.missing(pairs)
        for row in rows:
            (position, id_, lane, name, key, body, arg, queue, selector, message_id, born_at, deliver_at, headers,
             tags, index_keys, group, transaction_id, traceparent, waiting, expired, withheld, _) = row  # fmt: skip
            if waiting is not None or lane not in running or position in drained:
                continue
            if expired is not None:
                # Before its key is asked about: it neither holds others nor is held.
                batch.claims.append(expiry_of(row))
                continue
            if arg is None:
                arg = key
            if whole or parked:
                known = whole.get((lane, name))
                if known is None:
                    known = parked.get((lane, name, queue, kept(arg) if queue is None else None))
                    if known is not None and drain is not None and self.held.is_in_front(known, position):
                        known = None
                if known is not None:
                    self._hold(batch, row, known)
                    continue
            try:
                if name is None:
                    topic = None
                    raise too_large(withheld)
                if topic is None or name != last_topic:
                    topic = None  # should this one be unknown, the last row's is not in doubt
                    topic, last_topic = self.topics.known(name), name
                    produce = self._producers.of(name, topic.max_message_bytes).produce
                if withheld is not None:
                    raise too_large(withheld)
                if key is None and topic.needs_key:
                    raise keyless(topic)
                if queue is None and selector is None and topic.selector is None and arg is not None:
                    cached = topic.cache.get(arg)
                    partition = topic.hash(arg) if cached is None else cached
                else:
                    partition = select(topic, queue, selector, arg, position)
                record = [(_ID, message_id), (_BORN_AT, born_at)]
                if deliver_at is not None:
                    record.append((_DELIVER_AT, deliver_at))
                if tags is not None:
                    record.append((_TAGS, tags))
                if index_keys is not None:
                    record.append((_KEYS, index_keys))
                if group is not None:
                    record.append((_GROUP, group))
                if transaction_id is not None:
                    record.append((_TRANSACTION_ID, transaction_id))
                if traceparent is not None:
                    record.append((_TRACEPARENT, traceparent))
                if headers is not None:
                    if headers != last_headers:  # often the same text for many messages in a row
                        last_headers, pairs = headers, decode_headers(headers)
                        missing = cloudevents.missing(pairs)
                    record += pairs
                    if missing:
                        record += cloudevents.added(missing, message_id, born_at)
                if (
                    (body is not None and len(body) > topic.small)
                    or (key is not None and len(key) > LONG)
                    or (headers is not None and len(headers) > LONG)
                    or (tags is not None and len(tags) > LONG)
                    or (index_keys is not None and len(index_keys) > LONG)
                    or (transaction_id is not None and len(transaction_id) > LONG)
                    or (group is not None and len(group) > LONG)
                    or (traceparent is not None and len(traceparent) > LONG)
                ):
                    check_size(topic, key, body, record)
                slot = slots.get((name, partition)) or self._new_slot(slots, name, partition)
                produce(name, body, key, partition, slot.delivered, headers=record)
            except BufferError:
                hand_over = partial(produce, name, body, key, partition, slot.delivered, headers=record)
                refused = self._wait_for_room(hand_over)
                if refused is NO_ROOM:
                    batch.progress, batch.ended_at = just_before(position, progress, before), position
                    break
                if refused is not None:
                    self._stop(batch, running, row, topic, refused)
                    topic = None
                    continue
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001  (whatever it is: see _stop)
                self._stop(batch, running, row, topic, error)
                topic = None
                continue
            slot.indexes.append(count)
            positions.append(position)
            row_lanes.append(lane)
            message_ids.append(message_id)
            ids.append(id_)
            count += 1
            if not count % SERVE_EVERY:
                poll(0)
        batch.lanes = tuple(sorted(running)) if drain is None else ()
        batch.messages = count
        self.unacknowledged += count
        if self.begin_span is not None:
            self.begin_span(batch, rows)
        return batch

    def _wait_for_room(self, hand_over: Callable[[], None]) -> Exception | None:
        """Hand a message over once the local queue has room: the lane waits for Kafka, nothing is skipped.

        Returns:
            None when it is done, why the message was refused, or NO_ROOM when `while_full` ended the wait.
        """
        since = time.monotonic()
        while True:
            self._producers.poll(0.05)
            self.raise_failure()
            if not self.while_full(time.monotonic() - since):
                return NO_ROOM
            is_empty = not len(self._producers)
            try:
                hand_over()
            except BufferError:
                if is_empty:
                    text = "the message is larger than the relay's queue.buffering.max.kbytes"
                    return Unpublishable("MESSAGE_TOO_LARGE", text)
                continue
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001  (whatever it is: see _stop)
                return error
            return None

    def _stop(
        self, batch: Batch, running: set[int], row: RawRow, topic: Topic | None, error: Exception
    ) -> None:
        """Park the key, or the topic, of a message that cannot be built or handed over.

        This is the one place where an error of a single record is judged. Whatever it is, it concerns that message: its
        key or topic is parked; the others flow. What is not the message's fault ends the producer (DeliveryError).
        """
        if isinstance(error, KafkaException) and error.args[0].name() not in REFUSED:
            # The producer, not the message: after a refused message it takes nothing more (_FATAL).
            self._raise_end(error.args[0])
        reason = reason_of(error)
        claim = claim_of_failure(row, reason, alone=topic is not None and topic.skip_ahead)
        drain = batch.drain
        if claim is not None and drain is not None and drain.waits_for(claim):
            self._put_off_drain(batch, running, claim)
            return
        if claim is not None and (drain is None or drain.takes(claim)):
            known = self.held.behind(claim)
            claim = self.held.within_limits(known)
            if drain is None or claim is known:
                self._claim(batch, claim, row[TOPIC] if claim.head is None else claim.head.key[1])
                return
            # The topic has no room for the key: it stays parked, until it has.
            reason = Unpublishable("TOO_MANY_PARKED", str(reason))
        if drain is not None:
            self._end_drain(batch, running, row, reason)
            return
        self._stop_lane(batch, running, row, reason)
        if topic is not None:
            # What is known may be what is wrong: it is read again at the retry.
            self.topics.doubt(topic.name)

    def _new_slot(self, slots: dict[tuple[str, int], Slot], name: str, partition: int) -> Slot:
        """Return the slot of a partition that the batch in production comes to.

        A drain ends there, or is put off, if the partition lacks a leader or replicas: it would hold up its lane for
        nothing. Its topic was read for it. What was not drained arrives later, so an old answer costs a try only.
        """
        if self.in_flight and self.in_flight[-1].drain is not None:
            self.topics.require_available(name, partition)
        slot = slots[(name, partition)] = Slot(name, partition, self._fail)
        return slot

    def _fail(self, slot: Slot, error: KafkaError) -> None:
        # librdkafka's own codes are negative: no broker refused the message, and an earlier request may have
        # carried it.
        if error.name() in REFUSED and error.code() > 0:
            slot.refused.append(len(slot.offsets) + slot.failed)
        slot.failed += 1
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
        text = f"delivery to {slot.topic}[{slot.partition}] failed: {error.name()}: {error.str()}"
        raise DeliveryError(text, self._suspects(slot, error) if error.name() in REFUSED else {})

    def _suspects(self, slot: Slot, error: KafkaError) -> dict[int, Refused]:
        """Return per lane the last message that may be the one which Kafka refused.

        It refuses a whole request, and librdkafka reports each of its messages by the same error. Up to the last of
        them the topic goes one by one, so that each is tried alone, once, and one failure finds all.
        """
        reason = f"{error.name()}: topic {slot.topic!r}, partition {slot.partition}: {error.str()}"
        if error.name() == "INVALID_TIMESTAMP":
            reason += "; records have the time of this relay's host: compare its clock with the broker's"
        refused = {}
        for batch in self.unrecorded():
            part = batch.slots.get((slot.topic, slot.partition))
            if part is None:
                continue
            places = part.refused
            if part is slot and not places and len(slot.offsets) < len(slot.indexes):
                places = [len(slot.offsets)]
            for place in places:
                index = part.indexes[place]
                refused[batch.row_lanes[index]] = Refused(
                    batch.positions[index],
                    batch.message_ids[index],
                    slot.topic,
                    reason,
                    batch.alone,
                    of_drain=batch.drain is not None,
                    seen=batch.seen,
                )
        return refused

    def _disturbed_until(self) -> float:
        return self._producers.disturbed_until

    def close(self) -> None:
        """Drop what is not delivered yet, so that the producer can be destroyed without waiting."""
        for batch in self.unrecorded():
            if batch.span is not None:
                batch.span.end("not_recorded")
        self._producers.close()


def _go_on(seconds: float) -> bool:
    """Wait for as long as it takes."""
    return True
