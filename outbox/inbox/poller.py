"""The thread that owns the client of Kafka: it fetches, filters and queues messages, and follows rebalances.

Nothing else calls the client, because a seek or pause from another thread may lose fetched messages. Callbacks
only note what happened and cannot raise: librdkafka would drop the messages that it is just handing over.

A partition that is assigned is not read before PostgreSQL and Kafka were both asked where to begin. Other threads ask
(see `openings`), so a broker that is away or silent delays its own partitions, and no fetch of others. A partition
that is revoked is drained: what has not begun is forgotten, what runs is waited for, then its offset is stored
in PostgreSQL, and then in Kafka. One that was lost is another member's already, so nothing is stored in Kafka
for it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox.errors import ConsumerFailedError
from outbox.inbox.assignments import Assignments, StoredOffset, TopicPart
from outbox.inbox.clients import close_apart, close_in_time, finds_no_broker, is_closing
from outbox.inbox.contact import Contact
from outbox.inbox.failures import Failure
from outbox.inbox.header_filters import UndecidedError
from outbox.inbox.kafka_offsets import OpeningThread
from outbox.inbox.keeper import Keeper
from outbox.inbox.messages import HeaderValue, RawRecord, identify, pairs_of
from outbox.inbox.openings import Opened, Restarted, Standing, Unanswered, Waiting
from outbox.inbox.pauses import Pauses
from outbox.inbox.plans import UNREADABLE_HEADERS
from outbox.inbox.repeats import QuietLog, Repeats
from outbox.inbox.settings import ConsumerSettings
from outbox.inbox.tags import EVERYTHING

log = logging.getLogger("outbox.inbox")
POLL = 0.1
BATCH = 500
FLUSH = 10.0


class Poller:
    """The loop of one member; it runs in the thread that calls `run`."""

    def __init__(self, settings: ConsumerSettings, assignments: Assignments, keeper: Keeper) -> None:
        self._settings, self._assignments, self._keeper = settings, assignments, keeper
        self._consumer = self._client()
        self._contact = Contact(settings.group, settings.session, monotonic())
        self._waiting, self._asker = Waiting(assignments.pauses), OpeningThread(settings, keeper)
        self._read: set[TopicPart] = set()
        """Partitions that librdkafka reads."""
        self._advanced = 0.0
        self._repeats = Repeats()
        self._stops = threading.Event()
        self._fatal: str | None = None
        self.polled_at = monotonic()
        """When the loop made progress."""
        self.ends: dict[TopicPart, int] = {}
        """Behind the last record that Kafka had at the last fetch."""

    @property
    def trouble(self) -> str | None:
        """Why Kafka gives the member nothing now; None: it does, as far as is known."""
        return self._contact.trouble

    @property
    def stopped(self) -> dict[TopicPart, str]:
        """Partitions that the member has and does not read, and why."""
        return dict(self._waiting.stopped)

    def stop(self) -> None:
        """Ask the loop to end; any thread may call this."""
        self._stops.set()

    def run(self) -> None:
        """Poll until the end is asked for, then drain, store and leave the group.

        Raises:
            ConsumerFailedError: Kafka refuses this member for good.
        """
        self._subscribe()
        self._asker.start()
        try:
            while not self._stops.is_set():
                self.run_once()
        finally:
            self._close()

    def run_once(self) -> None:
        """Receive what the keeper has, fetch what Kafka has, and slow down where too much waits."""
        self.polled_at = monotonic()
        self._receive()
        if questions := self._waiting.due(monotonic()):
            self._asker.ask(questions)
        self._fetch()
        pause, resume = self._assignments.full()
        if pause:
            self._consumer.pause([TopicPartition(*place) for place in pause])
        if resume:
            self._consumer.resume([TopicPartition(*place) for place in resume])
        if monotonic() - self._advanced >= 1.0:
            self._advanced = monotonic()
            self._advance()
            self._note_kafka()
        if self._fatal:
            raise ConsumerFailedError(f"group {self._settings.group!r}: {self._fatal}")

    def _note_kafka(self) -> None:
        """Note where partitions end, by what was fetched, and ask whether Kafka knows the member, if that is due."""
        marks = {
            place: self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            for place in self._read
        }
        self.ends = {place: high for place, (_, high) in marks.items() if high >= 0}
        self._contact.reads(len(self._read) + len(self._waiting.places), monotonic())
        if self._contact.is_due(monotonic()):
            self._asker.ask_standing()

    def _client(self) -> Consumer:
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        return Consumer({**self._settings.librdkafka, **callbacks}, logger=QuietLog(log))

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            sorted(self._settings.subscription),
            on_assign=self._guarded(self._on_assign),
            on_revoke=self._guarded(self._on_revoke),
            on_lost=self._guarded(self._on_lost),
        )

    def _judge(self, is_known: bool | None) -> None:
        """Replace the client if Kafka does not know the member, and the client does not join again by itself."""
        topic = next(iter(self._settings.subscription))
        is_lost = is_known is False and finds_no_broker(self._consumer, topic)
        if self._contact.answered(is_known, monotonic(), finds_no_broker=is_lost):
            self._replace_client()

    def _replace_client(self) -> None:
        """Replace a client that Kafka does not know any more; see docs/adr/0019. Partitions that it has are lost."""
        try:
            new = self._client()
        except KafkaException as refusal:  # such as a file of certificates that is being replaced
            log.log(self._repeats.level("client"), "Kafka: no new client yet: %s", refusal)
            return
        log.warning(
            "group %s: Kafka does not know this member any more, and its client does not join again; making a new one",
            self._settings.group,
        )
        try:
            self._give_away([*self._read, *self._waiting.places], in_kafka=False)
        except KafkaException as error:
            log.debug("Kafka: %s", error)
        old, self._consumer = self._consumer, new
        self._contact.replaced(monotonic())
        self._subscribe()
        close_apart(old)

    # Messages -------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        first = self._consumer.poll(POLL)
        if first is None:
            return
        for record in (first, *self._consumer.consume(BATCH - 1, 0)):
            error = record.error()
            if error is None:
                self._accept(record)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._reopen(record, error)
            elif error.fatal():
                self._fatal = error.str()
            else:
                # Such as a topic that does not exist, or that the member may not read.
                log.log(self._repeats.level((record.topic(), error.code())), "Kafka: %s", error.str())

    def _accept(self, record: Message) -> None:
        topic, partition, offset = (
            str(record.topic()),
            int(record.partition() or 0),
            int(record.offset() or 0),
        )
        found = self._assignments.find((topic, partition))
        if found is None:
            return
        failure: Failure | None = None
        try:
            headers = pairs_of(record.headers())
        except Exception as error:  # noqa: BLE001  (whatever the client raises, the message must not be skipped)
            # A name that is not UTF-8: the client cannot return any of them.
            log.warning("%s[%d]@%d: headers that cannot be read: %s", topic, partition, offset, error)
            headers = ()
            if self._settings.subscription[topic] != EVERYTHING:
                failure = Failure(UNREADABLE_HEADERS, f"{UNREADABLE_HEADERS}: {error}")
        try:
            if failure is None and not self._settings.subscription[topic].selects(headers):
                self._assignments.skip((topic, partition), offset)
                return
        except UndecidedError as error:
            failure = error.failure
        raw = RawRecord(
            topic,
            partition,
            offset,
            _bytes(record.key()),
            _bytes(record.value()),
            headers,
            record.timestamp()[1],
        )
        self._assignments.add(
            identify(found.source, raw, orderly=self._settings.orderly, epoch=found.epoch, failure=failure)
        )

    def _reopen(self, record: Message, error: KafkaError) -> None:
        """Ask again where to begin: Kafka does not have the offset any more."""
        log.error("Kafka: %s", error.str())
        place = (str(record.topic()), int(record.partition() or 0))
        if self._assignments.find(place) is None:
            return  # it was given away meanwhile
        self._assignments.close([place], 0)
        self._ask_again([place])

    def _ask_again(self, places: Iterable[TopicPart]) -> None:
        """Stop reading partitions that are closed, and open them again."""
        places = list(places)
        self._unassign(places)
        self._waiting.add(places)

    def _advance(self) -> None:
        """Note what lies between messages, such as the ends of transactions: without it, lag never becomes 0."""
        idle = self._assignments.idle()
        if not idle:
            return
        try:
            positions = self._consumer.position([TopicPartition(*place) for place in idle])
        except KafkaException as error:
            log.debug("Kafka: %s", error)
            return
        for each in positions:
            if each.offset >= 0:
                self._assignments.advance((each.topic, each.partition), each.offset)

    # Opening --------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while True:
            try:
                result = self._keeper.results.get_nowait()
            except queue.Empty:
                return
            if isinstance(result, Opened):
                self._open(result)
            elif isinstance(result, Unanswered):
                self._postpone(result)
            elif isinstance(result, Restarted):
                self._ask_again(self._read)
            elif isinstance(result, Pauses):
                self._obey(result)
            elif isinstance(result, Standing):
                self._judge(result.is_known)
            else:
                self._commit(result, asynchronous=True)

    def _obey(self, pauses: Pauses) -> None:
        """Stop reading partitions of topics that are paused; they are opened again once these are resumed."""
        paused = [place for place in self._read if pauses.has(place[0])]
        self._keeper.flush(self._assignments.close(paused, 0), 0)
        self._ask_again(paused)

    def _postpone(self, unanswered: Unanswered) -> None:
        """Ask again later about partitions that cannot be opened now."""
        now = monotonic()
        for each in unanswered.questions:
            self._waiting.postpone(each, now)
        topics = frozenset(each.topic for each in unanswered.questions)
        log.log(
            self._repeats.level(topics),
            "group %s cannot read %s yet: %s; asking again",
            self._settings.group,
            ", ".join(f"{each.topic}{list(each.parts)}" for each in unanswered.questions),
            unanswered.reason,
        )

    def _open(self, opened: Opened) -> None:
        topic = opened.opening.topic
        ready = []
        for part, start in opened.starts.items():
            place = (topic, part)
            is_latest = self._waiting.answer(place, opened.opening.ticket)
            is_stale = opened.server != self._assignments.server or self._assignments.pauses.has(topic)
            if not is_latest or is_stale:
                continue  # revoked, assigned once more, on another server, or paused meanwhile
            if start.gap is not None:
                gap = f"Kafka does not have offsets {start.gap[0]} to {start.gap[1] - 1}"
                stops = self._settings.on_gap == "stop"
                then = "not reading it" if stops else f"reading on at {start.offset}"
                log.error(
                    "%s[%d]: %s, which group %s has not handled; %s", *place, gap, self._settings.group, then
                )
                if stops:
                    self._waiting.stop(place, gap)
                    continue
            epoch = self._assignments.open(
                place, opened.source, start.offset, opened.generations[part], opened.server
            )
            if epoch is None:
                continue  # another server took over: it is asked for again
            self._waiting.remove(place)
            self._read.add(place)
            log.info("%s[%d] is read from offset %d: %s", *place, start.offset, start.reason)
            ready.append(TopicPartition(topic, part, start.offset))
        if ready:
            self._consumer.incremental_assign(ready)
            # librdkafka keeps the pause of a partition that was given away, and ours is new.
            self._consumer.resume(ready)

    # Rebalances -----------------------------------------------------------------------------------------------

    def _guarded(self, callback: Callable[[Any, list[TopicPartition]], None]) -> Callable[..., None]:
        """Make a callback that cannot raise: an exception in one loses fetched messages."""

        def called(consumer: Any, partitions: list[TopicPartition]) -> None:
            if is_closing():
                return
            try:
                callback(consumer, partitions)
            except Exception as error:
                log.exception("a rebalance of group %s", self._settings.group)
                self._fatal = self._fatal or f"a rebalance failed: {error}"

        return called

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign([])  # nothing is read before the offsets are known
        self._contact.heard(monotonic())
        self._waiting.add((each.topic, each.partition) for each in partitions)

    def _on_revoke(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._give_away([(each.topic, each.partition) for each in partitions], in_kafka=True)

    def _on_lost(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        log.warning("group %s has given partitions of this member to another one", self._settings.group)
        self._give_away([(each.topic, each.partition) for each in partitions], in_kafka=False)

    def _give_away(self, places: Sequence[TopicPart], *, in_kafka: bool) -> None:
        for place in places:
            self._waiting.remove(place)
        opened = [place for place in places if place in self._read]
        offsets = self._assignments.close(opened, self._settings.drain)
        if self._keeper.flush(offsets, FLUSH) and in_kafka:
            self._commit(offsets, asynchronous=False)
        self._unassign(opened)

    def _unassign(self, places: Iterable[TopicPart]) -> None:
        places = list(places)
        self._read.difference_update(places)
        self._consumer.incremental_unassign([TopicPartition(*place) for place in places])

    def _commit(self, offsets: Sequence[StoredOffset], *, asynchronous: bool) -> None:
        """Store offsets in Kafka that are stored in PostgreSQL."""
        if not offsets:
            return
        places = [TopicPartition(each.topic, each.part, each.offset) for each in offsets]
        try:
            self._consumer.commit(offsets=places, asynchronous=asynchronous)  # type: ignore[call-overload]
        except KafkaException as error:
            log.debug("Kafka stores no offsets now, PostgreSQL has them: %s", error)

    def _on_error(self, error: KafkaError) -> None:
        if is_closing():
            return
        if error.fatal():
            self._fatal = error.str()
            return
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._contact.lost_brokers(monotonic())
        log.log(self._repeats.level(error.code()), "Kafka: %s", error.str())

    def _on_commit(self, error: KafkaError | None, _partitions: list[TopicPartition]) -> None:
        if error is None and not is_closing():
            self._contact.heard(monotonic())

    def _close(self) -> None:
        places = list(self._read)
        offsets = self._assignments.close(None, self._settings.drain)
        if self._keeper.flush(offsets, FLUSH):
            self._commit(offsets, asynchronous=True)
        self._asker.end()
        try:
            self._unassign(places)
        except KafkaException as error:
            log.debug("Kafka: %s", error)
        close_in_time(self._consumer, self._settings.group)


def _bytes(value: Any) -> HeaderValue:
    return value.encode() if isinstance(value, str) else value
