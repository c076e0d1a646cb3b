"""The thread that owns the client of Kafka: it fetches, filters and queues messages, and follows rebalances.

A partition that is assigned is not read before PostgreSQL and Kafka were both asked where to begin. Other threads ask
(see `core.openings`), so a broker that is away or silent delays its own partitions, and no fetch of others. A partition
that is revoked is drained: what has not begun is forgotten, what runs is waited for, then its offset is stored
in PostgreSQL, and then in Kafka. One that was lost is another member's already, so nothing is stored in Kafka
for it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from confluent_kafka import KafkaException, Message

from outbox.errors import ConsumerFailedError
from outbox.inbox.assignments import Assignments
from outbox.inbox.clients import GroupClient
from outbox.inbox.core.contact import Contact
from outbox.inbox.core.openings import Opened, Restarted, Standing, Unanswered, Waiting
from outbox.inbox.core.partitions import Pauses, StoredOffset, TopicPart
from outbox.inbox.failures import Failure
from outbox.inbox.header_filters import UndecidedError
from outbox.inbox.kafka_offsets import OpeningThread
from outbox.inbox.keeper import Keeper
from outbox.inbox.messages import HeaderValue, RawRecord, identify, pairs_of
from outbox.inbox.plans import UNREADABLE_HEADERS
from outbox.inbox.repeats import Repeats
from outbox.inbox.settings import Member
from outbox.inbox.tags import EVERYTHING

log = logging.getLogger("outbox.inbox")
FLUSH = 10.0


class Poller:
    """The loop of one member; it runs in the thread that calls `run`."""

    def __init__(self, member: Member, assignments: Assignments, keeper: Keeper) -> None:
        self._member, self._settings = member, member.settings
        self._assignments, self._keeper = assignments, keeper
        self._contact = Contact(member.group, member.session, monotonic())
        with assignments as partitions:
            self.waiting = Waiting(partitions.pauses)
        """Partitions that are not read yet, or that are left unread."""
        self.client = GroupClient(
            member,
            self._contact,
            assigned=self.waiting.add,
            revoked=lambda places: self.give_away(places, in_kafka=True),
            lost=self._lose,
        )
        self._asker = OpeningThread(member, keeper)
        self._read: set[TopicPart] = set()
        """Partitions that librdkafka reads."""
        self._advanced = 0.0
        self._repeats = Repeats()
        self._stops = threading.Event()
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
        return dict(self.waiting.stopped)

    def stop(self) -> None:
        """Ask the loop to end; any thread may call this."""
        self._stops.set()

    def run(self) -> None:
        """Poll until the end is asked for, then drain, store and leave the group.

        Raises:
            ConsumerFailedError: Kafka refuses this member for good.
        """
        self.client.subscribe()
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
        if questions := self.waiting.due(monotonic()):
            self._asker.ask(questions)
        for record in self.client.poll():
            if record.error() is None:
                self._accept(record)
            else:
                self._reopen(record)
        with self._assignments as partitions:
            pause, resume = partitions.full()
        self.client.pause(pause)
        self.client.resume(resume)
        if monotonic() - self._advanced >= 1.0:
            self._advanced = monotonic()
            self._note_kafka()
        if self.client.fatal:
            raise ConsumerFailedError(f"group {self._member.group!r}: {self.client.fatal}")

    def _note_kafka(self) -> None:
        """Note how far was read and where partitions end, and ask whether Kafka knows the member, if that is due."""
        with self._assignments as partitions:
            idle = partitions.idle()
        # Between messages are the ends of transactions, for example: without them, lag never becomes 0.
        positions = self.client.positions(idle) if idle else {}
        with self._assignments as partitions:
            for place, position in positions.items():
                partitions.advance(place, position)
        self.ends = self.client.ends(self._read)
        self._contact.reads(len(self._read) + len(self.waiting.places), monotonic())
        if self._contact.is_due(monotonic()):
            self._asker.ask_standing()

    # Messages -------------------------------------------------------------------------------------------------

    def _accept(self, record: Message) -> None:
        place = topic, partition = str(record.topic()), int(record.partition() or 0)
        offset = int(record.offset() or 0)
        with self._assignments as partitions:
            found = partitions.find(place)
        if found is None:
            return
        failure: Failure | None = None
        try:
            headers = pairs_of(record.headers())
        except Exception as error:  # noqa: BLE001  (whatever the client raises, the message must not be skipped)
            # A name that is not UTF-8: the client cannot return any of them.
            log.warning("%s[%d]@%d: headers that cannot be read: %s", topic, partition, offset, error)
            headers = ()
            if self._member.subscription[topic] != EVERYTHING:
                failure = Failure(UNREADABLE_HEADERS, f"{UNREADABLE_HEADERS}: {error}")
        try:
            if failure is None and not self._member.subscription[topic].selects(headers):
                with self._assignments as partitions:
                    partitions.skip(place, offset)
                return
        except UndecidedError as error:
            failure = error.failure
        key, body = _bytes(record.key()), _bytes(record.value())
        raw = RawRecord(topic, partition, offset, key, body, headers, record.timestamp()[1])
        orderly = self._settings.orderly
        delivery = identify(found.source, raw, orderly=orderly, epoch=found.epoch, failure=failure)
        with self._assignments as partitions:
            partitions.add(delivery)

    def _reopen(self, record: Message) -> None:
        """Ask again where to begin: Kafka does not have the offset any more."""
        error = record.error()
        log.error("Kafka: %s", error.str() if error else "an offset is missing")
        place = (str(record.topic()), int(record.partition() or 0))
        if place in self._read:  # else it was given away meanwhile
            self._assignments.close([place], 0)
            self._ask_again([place])

    def _ask_again(self, places: Iterable[TopicPart]) -> None:
        """Stop reading partitions that are closed, and open them again."""
        places = list(places)
        self._unassign(places)
        self.waiting.add(places)

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
                self._commit(result, waits=False)

    def _judge(self, is_known: bool | None) -> None:
        """Replace the client if Kafka does not know the member, and the client does not join again by itself."""
        is_lost = is_known is False and self.client.finds_no_broker()
        if self._contact.answered(is_known, monotonic(), finds_no_broker=is_lost):
            self.client.replace(lambda: self.give_away([*self._read, *self.waiting.places], in_kafka=False))

    def _obey(self, pauses: Pauses) -> None:
        """Stop reading partitions of topics that are paused; they are opened again once these are resumed."""
        paused = [place for place in self._read if pauses.has(place[0])]
        self._keeper.flush(self._assignments.close(paused, 0), 0)
        self._ask_again(paused)

    def _postpone(self, unanswered: Unanswered) -> None:
        """Ask again later about partitions that cannot be opened now."""
        for each in unanswered.questions:
            self.waiting.postpone(each, monotonic())
        log.log(
            self._repeats.level(frozenset(each.topic for each in unanswered.questions)),
            "group %s cannot read %s yet: %s; asking again",
            self._member.group,
            ", ".join(f"{each.topic}{list(each.parts)}" for each in unanswered.questions),
            unanswered.reason,
        )

    def _open(self, opened: Opened) -> None:
        topic, ready = opened.opening.topic, {}
        for part, start in opened.starts.items():
            place = (topic, part)
            is_latest = self.waiting.answer(place, opened.opening.ticket)
            with self._assignments as partitions:
                is_stale = opened.server != partitions.server or partitions.pauses.has(topic)
            if not is_latest or is_stale:
                continue  # revoked, assigned once more, on another server, or paused meanwhile
            if start.gap is not None:
                gap = f"Kafka does not have offsets {start.gap[0]} to {start.gap[1] - 1}"
                stops = self._settings.on_gap == "stop"
                then = "not reading it" if stops else f"reading on at {start.offset}"
                log.error(
                    "%s[%d]: %s, which group %s has not handled; %s", *place, gap, self._member.group, then
                )
                if stops:
                    self.waiting.stop(place, gap)
                    continue
            with self._assignments as partitions:
                generation = opened.generations[part]
                epoch = partitions.open(place, opened.source, start.offset, generation, opened.server)
            if epoch is None:
                continue  # another server took over: it is asked for again
            self.waiting.remove(place)
            log.info("%s[%d] is read from offset %d: %s", *place, start.offset, start.reason)
            ready[place] = start.offset
        self._read |= ready.keys()
        self.client.assign(ready)

    # Rebalances -----------------------------------------------------------------------------------------------

    def _lose(self, places: list[TopicPart]) -> None:
        log.warning("group %s has given partitions of this member to another one", self._member.group)
        self.give_away(places, in_kafka=False)

    def give_away(self, places: Sequence[TopicPart], *, in_kafka: bool) -> None:
        """Drain partitions, store their offsets, and stop reading them."""
        for place in places:
            self.waiting.remove(place)
        opened = [place for place in places if place in self._read]
        offsets = self._assignments.close(opened, self._settings.drain)
        if self._keeper.flush(offsets, FLUSH) and in_kafka:
            self._commit(offsets, waits=True)
        self._unassign(opened)

    def _unassign(self, places: Iterable[TopicPart]) -> None:
        places = list(places)
        self._read.difference_update(places)
        self.client.unassign(places)

    def _commit(self, offsets: Sequence[StoredOffset], *, waits: bool) -> None:
        if offsets:
            self.client.commit(offsets, waits=waits)

    def _close(self) -> None:
        places = list(self._read)
        offsets = self._assignments.close(None, self._settings.drain)
        if self._keeper.flush(offsets, FLUSH):
            self._commit(offsets, waits=False)
        self._asker.end()
        try:
            self._unassign(places)
        except KafkaException as error:
            log.debug("Kafka: %s", error)
        self.client.close()


def _bytes(value: Any) -> HeaderValue:
    return value.encode() if isinstance(value, str) else value
