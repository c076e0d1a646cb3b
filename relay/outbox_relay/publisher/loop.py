"""The publisher's loop: one core with its hands, from taking lanes to giving them back.

The core decides, and the hands do it. A turn hears what became of what was sent, writes what is settled by that, reads
what is new, and sends. What was read is sent once PostgreSQL cannot forget it: a poll may find that, and otherwise the
next commit makes it so (R1). Everything that differs between at-least-once and exactly-once is in `delivery`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import cast

from outbox_relay.database.partitions_ahead import Room
from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Page, Read, Row, Write
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.finder import POSITION
from outbox_relay.publisher.hands.at_least_once import AtLeastOnce
from outbox_relay.publisher.hands.exactly_once import ExactlyOnce
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.read_back import ReadingBack
from outbox_relay.publisher.hands.reads import FRESH_S, Brought, Reads, due_of, topics_of
from outbox_relay.publisher.hands.rows import Rows, TopicCount
from outbox_relay.publisher.hands.spans import Spans
from outbox_relay.publisher.hands.topic_watch import TopicWatch
from outbox_relay.publisher.hands.transactional import TransactionalWires
from outbox_relay.publisher.hands.wires import Wires
from outbox_relay.publisher.hands.writes import Writes
from outbox_relay.publisher.prepared import Rider
from outbox_relay.publisher.vitals import Counts
from outbox_relay.publisher.wal import Replication
from outbox_relay.text.logs import Log

SIGNALS_EVERY_S = 0.25
RECORD_S = 0.02
"""How long after a write the next one waits for more. A relay that dies repeats what waits."""
RECORD_MESSAGES = 2_000
"""So many acknowledged messages wait for no more."""

log = Log("relay")


@dataclass(slots=True)
class Clock:
    """When the loop does what it does not do in each turn (monotonic seconds)."""

    record_at: float = 0.0
    signals_at: float = 0.0


@dataclass(slots=True)
class Loop:
    """What one set of lanes is published by. `turn` is the loop's body."""

    core: Core
    rows: Rows
    reads: Reads
    writes: Writes
    delivery: AtLeastOnce | ExactlyOnce
    gates: Gates
    topics: TopicWatch
    replication: Replication
    counts: Counts
    spans: Spans
    room: Room
    """Makes partitions for positions beyond the last one."""
    read_back: ReadingBack
    doubted: dict[int, int]
    """By lane, up to which position Kafka may have what has no publication."""
    due: str | None = None
    """When a delayed message is due that was found since the last release."""
    unanswered_since: float | None = None
    """Since when no broker replies about a new topic; None: one did."""
    _unread: tuple[Read, Brought] | None = None
    """A page that was read while Kafka did not reply about one of its topics."""
    _unconfirmed: Write | None = None
    """A write that no standby has confirmed, where messages wait for one."""
    _clock: Clock = field(default_factory=Clock)

    def turn(self) -> bool:
        """Hear, write, read and send once; return whether anything was read.

        Raises:
            KafkaUnavailableError: no broker replies about a new topic.
            LeaseLostError: another relay owns lanes of ours.
        """
        now = time.monotonic()
        self.delivery.hear(now)
        rider, write = self._write(now)
        try:
            found = self._read(rider)
        finally:
            if rider is not None and write is not None:
                self.writes.land(rider)
                self._written(write)
        if self.core.is_waiting():  # what was read is not flushed
            if self._unconfirmed is None:
                self._commit(self.core.next_write())
            else:
                self._confirm()
        if self.delivery.seal(now) and self._unconfirmed is None:  # what is sent next is written first
            self._commit(self.core.next_write())
        self.delivery.send(now)
        return found

    # PostgreSQL ---------------------------------------------------------------------------------------------------

    def _write(self, now: float) -> tuple[Rider | None, Write | None]:
        """Write what is due; return a write that travels with the next poll instead."""
        may_wait = len(self.core.streams.published) < RECORD_MESSAGES and not self.core.is_stopping
        if may_wait and now < self._clock.record_at:
            return None, None
        self._clock.record_at = now + RECORD_S
        if self._unconfirmed is not None:
            self._confirm()
            return None, None
        write = self.core.next_write()
        if write is None and not self.writes.has_more:
            return None, None
        rider = None if write is None or self.replication.is_wanted else self.writes.rider(write)
        if rider is None:
            self._commit(write)
        return rider, write

    def _commit(self, write: Write | None) -> None:
        """Commit a write, or a barrier."""
        written = self.writes.commit(write or self.core.barrier())
        if written is None and (plain := self.core.publications()) is not None:
            # Another session holds a row: publications, and what was read, go on without it.
            written = self.writes.record(plain)
        if written is None:
            return
        if self.replication.has_reached_standby():
            self._written(written)
        else:
            self._unconfirmed = written

    def _confirm(self) -> None:
        self.writes.barrier()
        if self._unconfirmed is not None and self.replication.has_reached_standby():
            write, self._unconfirmed = self._unconfirmed, None
            self._written(write)

    def _written(self, write: Write) -> None:
        for topic, count in cast("tuple[tuple[str, TopicCount], ...]", write.moved):
            (before, _) = cast("TopicCount", self.core.topics.counts[topic])
            log.info("topic moves its keys", topic=topic, partitions=count[0], before=before)
        self.core.written(write)
        self.spans.ended(item.row.id for item in write.published)
        if self.rows.errors:  # a sound message may have been refused with another one
            for item in write.published:
                self.rows.errors.pop(item.row.id, None)
        self.counts.recorded += len(write.published)
        self.counts.batches += bool(write.published)
        self.spans.ended(claim.row.id for claim in write.claims)
        self._retry_topics(write)
        for scope in write.let_go:
            if scope not in self.core.holds.by_scope:
                self.writes.holds.errors.pop(scope, None)
                log.info(f"{scope.kind} is held no more", topic=scope.topic)

    def _retry_topics(self, write: Write) -> None:
        """Try a topic again that is held because it has too many holds: they may have been given up or repaired."""
        holds, now = self.core.holds, time.monotonic()
        failed = {claim.scope for claim in write.claims if claim.is_failed and claim.scope.kind == "topic"}
        for scope in failed:
            if scope.topic not in self.topics.closed and not holds.is_retried(scope):
                holds.fail(scope, now)
                narrow = [
                    s for s in holds.by_scope if s.topic == scope.topic and s.kind in ("key", "message")
                ]
                holds.pass_empty(self.writes.holds.empty(narrow))

    def _read(self, rider: Rider | None) -> bool:
        if self._unread is None:
            read = self.core.next_read()
            answer = None if read is None else self.reads.execute(read, rider)
            if read is None or answer is None:
                return False
            self.counts.polls += 1
            if not answer.raws:
                self.core.add(_page(read, answer, ()))
                return bool(answer.heavy)
            self._unread = read, answer
        read, answer = self._unread
        if not self._has_room(answer.raws[-1][POSITION]):
            return False
        try:
            if found := self.topics.learn(topics_of(answer.raws)):
                answer.has_new_topics = True
                self.gates.meet(found)
        except KafkaUnavailableError:
            self.unanswered_since = self.unanswered_since or time.monotonic()
            answer.has_new_topics = True
            raise
        self.unanswered_since = None
        rows = self.rows.of_page(answer.raws, self.doubted, answer.waiting)
        self.reads.learn_groups({row.topic for row in rows})
        if self.read_back.is_open:
            self.read_back.of_page(rows, self.core, self.topics.open)
        self.core.add(_page(read, answer, rows))
        self._unread = None
        if answer.waiting is None and (due := due_of(answer.raws)) is not None:
            self.due = due if self.due is None else min(due, self.due)
        self.counts.last_found = time.monotonic()
        return True

    def _has_room(self, highest: int) -> bool:
        """Return whether all of a page can be recorded: its positions have partitions."""
        return highest < self.reads.partitions.top or self.room.make(highest, self._last_bound)

    def _last_bound(self) -> int:
        self.reads.partitions.refresh()
        return self.reads.partitions.top

    def signals(self, now: float) -> None:
        """Take what operators asked for, and what Kafka and the registry list of topics; four times a second."""
        if now >= self._clock.signals_at:
            self._clock.signals_at = now + SIGNALS_EVERY_S
            self.gates.look(now)
            if self.read_back.is_open:
                self.read_back.end(self.core)

    @property
    def wires(self) -> Wires | TransactionalWires:
        """The producers, and what they have."""
        return self.delivery.wires

    @property
    def has_unread(self) -> bool:
        """Whether a page waits for its topics."""
        return self._unread is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, nothing is held, and only something new gives it anything to do."""
        core = self.core
        is_busy = core.memory.rows or core.holds.by_scope or core.sources.catch_ups or core.is_stopping
        waits = self._unread or self._unconfirmed or self.writes.has_more
        return not (is_busy or waits) and self.delivery.is_idle(time.monotonic())

    # The end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Read no more; what is under way is settled by further turns."""
        self._unread = None
        self.core.stop()

    @property
    def is_held_up(self) -> bool:
        """Whether a loop that stops has recorded what it sent, and the rest waits for rows that other sessions hold."""
        streams = self.core.streams
        is_sent = streams.published or streams.by_name
        return not is_sent and (self.writes.is_refused or not self.core.holds.claims)

    def doubt_what_is_sent(self) -> None:
        """Note that Kafka may have what is not recorded: this loop ends before it is. The next one proves batches."""
        highest = max((row.position for row in self.delivery.in_doubt()), default=0)
        for lane in self.reads.lanes:
            self.doubted[lane] = max(highest, self.doubted.get(lane, 0))

    @property
    def unsettled(self) -> int:
        """Messages given to Kafka that are not recorded."""
        streams = self.core.streams
        return len(streams.published) + sum(len(stream.sent) for stream in streams.by_name.values())

    def close(self) -> None:
        """Let go of producers and lists."""
        self.spans.close()
        self.wires.close()
        self.reads.close_lists()


def _page(read: Read, answer: Brought, rows: tuple[Row, ...]) -> Page:
    # The lanes were ours when that was asked; they may be another relay's by now.
    is_ours = time.monotonic() - answer.asked_at < FRESH_S
    return Page(
        read,
        rows,
        answer.snapshot,
        answer.has_more,
        answer.heavy,
        is_flushed=answer.is_flushed and is_ours and not answer.has_new_topics,
        is_ours=is_ours and read.kind == "list",
        has_new_topics=answer.has_new_topics,
    )
