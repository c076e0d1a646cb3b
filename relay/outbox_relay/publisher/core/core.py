"""The core: the driver asks it what to do next, does that with PostgreSQL or Kafka, and passes on what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from outbox_relay.publisher.core.holds import Holds
from outbox_relay.publisher.core.memory import Memory
from outbox_relay.publisher.core.read_back import ReadBack
from outbox_relay.publisher.core.sources import Sources
from outbox_relay.publisher.core.streams import NO_PRODUCER, Producer, Streams
from outbox_relay.publisher.core.topics import TopicCounts
from outbox_relay.publisher.core.transactions import Transactions, batches_of
from outbox_relay.publisher.core.values import (
    EXPIRED_SCOPE,
    Count,
    GroupOf,
    Item,
    Limits,
    Page,
    Partitioner,
    Proof,
    Read,
    Row,
    Scope,
    Write,
)
from outbox_relay.publisher.snapshot import Snapshot


class Core:
    """What one leadership publishes. It belongs to one epoch and one database session, and ends with either."""

    def __init__(
        self,
        floor: Snapshot,
        holds: Mapping[Scope, int],
        topics: Mapping[str, Count],
        partition_of: Partitioner,
        *,
        group_of: GroupOf = str,
        skip_ahead: frozenset[str] = frozenset(),
        limits: Limits | None = None,
        is_unclean: bool = True,
    ) -> None:
        """Begin with the tables as they are under the lock of the leader's row.

        Args:
            floor: of the leader's row.
            holds: each hold's scope, and a position in front of which none of its rows waits.
            topics: each known topic's partition count.
            partition_of: computes partitions.
            group_of: computes the groups in which topics are read.
            skip_ahead: topics in which a failed message holds only itself.
            limits: how much to take at once.
            is_unclean: the predecessor may have sent messages that it did not record (R8).
        """
        limits = limits or Limits()
        self.topics = TopicCounts(topics, skip_ahead, partition_of)
        self.sources = Sources(floor)
        self.holds = Holds(holds, self.topics, limits)
        self.streams = Streams(limits)
        self.memory = Memory(limits, group_of)
        self.read_back = ReadBack(limits.doubted)
        self._group_of = group_of
        self.is_stopping = False
        self._is_unclean = is_unclean
        self._unsecured: list[tuple[int, Page]] = []
        """Pages that wait for a barrier, each with the time up to which that has to reach."""
        self._flushed = -1
        """What was read up to this time cannot be forgotten."""
        self._moves: tuple[tuple[str, Count], ...] = ()
        self._numbered = 0
        self._turn = 0
        self._is_after_tail = False
        self.transactions: Transactions | None = None
        """The driver's, if it delivers exactly once (R10)."""

    # Reading ------------------------------------------------------------------------------------------------------

    def next_read(self) -> Read | None:
        """Return the next statement to execute, or None while there is no room or the leadership ends.

        Every second one is the tail. Between two tails, catch-ups and holds take turns, and so does each of them.
        """
        if self.is_stopping or not self.memory.has_room():
            return None
        if self._is_after_tail:
            self._is_after_tail = False
            self._turn += 1
            kinds = ("list", "drain") if self._turn % 2 else ("drain", "list")
            read = self._next_of(kinds[0]) or self._next_of(kinds[1])
            if read is not None:
                return read
        full = self.memory.full()
        for group in full:  # it may not fill the others' part of the memory (isolation)
            if len(self.sources.catch_ups) < self.memory.limits.apart:
                self.sources.put_apart(group)
        self._is_after_tail = True
        return self.sources.tail_read(*self.memory.room(), full)

    def _next_of(self, kind: str) -> Read | None:
        full = self.memory.full()
        if kind == "list":
            group = self.sources.next_list(full)
            return None if group is None else self.sources.list_read(group, *self.memory.room(group))
        scope = self.holds.next_drain(full, self._group_of)
        return Read("drain", *self.memory.room(self._group_of(scope.topic)), scope=scope) if scope else None

    def add(self, page: Page) -> None:
        """Take what a statement returned. Call it before `written` of a write that was under way meanwhile."""
        if self.is_stopping:
            return
        if page.read.kind == "drain":
            self._add_drain(page)
            return
        seen_at = self.sources.add_tail(page) if page.read.kind == "tail" else self.sources.add_list(page)
        if page.has_new_topics:
            seen_at = self.sources.tick()
        for needed, before in self._unsecured:  # of the same list: it is routed first
            if before.read.group == page.read.group:
                seen_at = max(needed, seen_at)
        self.memory.take(page.rows)
        if page.rows:
            self._unsecured.append((seen_at, page))
        if page.is_flushed:
            self._secure(self.sources.clock)
        elif page.is_ours:  # a write would find out otherwise: a former leader must send nothing more
            self._secure(self._flushed)

    def _add_drain(self, page: Page) -> None:
        hold = self.holds.opened(page)
        if hold is None:  # it stopped while the page was read
            return
        for row in page.rows:  # they were flushed with their claims (R1)
            if not hold.is_requested:
                return  # one of them failed: what is behind it stays in the table
            self.memory.take([row])
            self._route([row], taken_from=hold.scope)
        self.holds.close(hold, page)

    def _secure(self, flushed: int) -> None:
        """Route what PostgreSQL cannot forget any more (R1), in the order in which it was read.

        A list is of what its tail saw, which may be long ago: most of its pages wait for no barrier.
        """
        pages = [page for needed, page in self._unsecured if needed <= flushed]
        self._unsecured = [each for each in self._unsecured if each[0] > flushed]
        for page in pages:
            in_doubt = page.read.compare and self._is_unclean
            self._route(page.rows, in_doubt=in_doubt)

    # Routing: to a stream, or to the table ------------------------------------------------------------------------

    def is_waiting(self) -> bool:
        """Return whether pages wait for a write that is flushed (R1)."""
        return bool(self._unsecured)

    def _route(self, rows: Iterable[Row], *, in_doubt: bool = False, taken_from: Scope | None = None) -> None:
        holds, push = self.holds, self.streams.push
        counts, partition_of = self.topics.counts, self.topics.partition_of
        for row in rows:
            self._numbered += 1
            count = counts.get(row.topic)
            partition = -1 if count is None else partition_of(row, count)
            item = Item(row, self._numbered, partition, in_doubt or row.in_doubt, taken_from)
            has_failed = taken_from is not None and holds.take_out(taken_from, row)
            scope = holds.scope_of(row, partition, taken_from) if holds.by_scope else None
            if item.in_doubt and scope is None and self.read_back.take(item):
                self.streams.published.append(item)
            elif row.is_expired:
                holds.claim(item, EXPIRED_SCOPE)
            elif scope is not None:
                holds.claim(item, scope)
            elif row.is_faulty:
                holds.claim(item, holds.own_scope(row), is_failed=True)
            elif partition < 0:  # of an unknown topic: it waits until the driver has found the count
                holds.claim(item, Scope("topic", row.topic), is_failed=True)
            else:
                if has_failed:
                    self.streams.suspect(row.topic)
                push(item)

    def _reroute(self, items: list[Item]) -> None:
        """Send messages again, in order, or let those wait whose hold has begun meanwhile (R2, R5)."""
        for item in items:
            scope = self.holds.scope_of(item.row, item.partition, item.taken_from)
            if scope is not None:
                self.holds.claim(item, scope)
            else:
                self.streams.push(item)

    def _accuse(self, item: Item) -> None:
        """Hold a message for a fault of its own, and what is behind it in its stream, for its key.

        The hold may have begun behind messages that were queued: they went on while the one in front of them did (R2).
        """
        scope = self.holds.own_scope(item.row)
        self.holds.claim(item, scope, is_failed=True)
        if scope.kind != "message":
            self._take(scope)

    def _take(self, scope: Scope) -> None:
        for item in self.streams.take_queued(scope):
            self.holds.claim(item, scope)

    # Kafka --------------------------------------------------------------------------------------------------------

    def to_send(self) -> list[tuple[Item, Producer]]:
        """Return messages to give to producers, in this order (R2); at-least-once only."""
        return self.streams.to_send(self.is_moving)

    def acknowledged(self, items: Collection[Item], producer: Producer) -> None:
        """Take acknowledgements of one producer and partition, in their order."""
        self.streams.acknowledged(items, producer)

    def refused(self, items: Collection[Item], producer: Producer) -> None:
        """Take Kafka's refusal of one request. A message is accused only when it was alone on the wire (R8).

        A refusal of a main producer ends it, because nothing behind the refused message may arrive. The topic is on
        probation from now on: one message of a partition at a time, until none was refused for a while.
        """
        item = next(iter(items))
        stream = self.streams.holder(item, producer)
        is_alone = stream is not None and len(stream.sent) == 1
        self.streams.suspect(item.row.topic)
        if not producer.is_single:
            self._reroute(self.streams.lost(producer, certain=items))
        if is_alone and self.streams.remove(item):  # otherwise a wider hold has it since
            self._accuse(item)

    def not_taken(self, items: Collection[Item], *, is_accused: bool) -> None:
        """Take messages back that no producer took: they are not in Kafka.

        Args:
            items: of one partition, the last ones that `to_send` returned of it, in their order.
            is_accused: the first one cannot become a record. Else all of its topic are refused.
        """
        self.streams.take_back(items)
        item = next(iter(items))
        if is_accused and self.streams.remove(item):
            self._accuse(item)

    def lost(self, producer: Producer, certain: Collection[Item] = ()) -> None:
        """A producer ended. The next one sends again what it had, in order; it may be in Kafka twice (R2).

        Args:
            producer: the one that ended.
            certain: messages that are certainly not in Kafka.
        """
        self._reroute(self.streams.lost(producer, certain))

    def proven_at(self, offset: Proof) -> None:
        """Take the group's stable offset, after all producers were replaced (R10). What Kafka lacks is sent again.

        Raises:
            NotProvenError: it is the offset of no batch that is known.
        """
        assert self.transactions is not None  # noqa: S101  (an offset is read for them)
        left, accused = self.transactions.proven_at(offset)
        self._reroute(self.streams.lost(NO_PRODUCER, certain=set(left)))
        for item in accused:
            if self.streams.remove(item):  # otherwise a wider hold has it since
                self._accuse(item)

    def silent(self, topic: str, partition: int, now: float) -> None:
        """Hold a partition that acknowledges nothing; what was sent of it is in doubt (R8), and repeated later."""
        scope = self._scope_of_partition(topic, partition)
        self.holds.fail(scope, now)
        if self.transactions is not None:  # its batch cannot end: `proven_at` lets them wait
            self._take(scope)
            return self.transactions.failed()
        for item in self.streams.give_up(topic, partition):
            self.holds.claim(item, scope)

    def unavailable(self, topic: str, partition: int | None, now: float) -> None:
        """Hold a partition without a leader or with too few replicas, or a topic that is missing or forbidden.

        What was sent is waited for, until it is silent.
        """
        scope = Scope("topic", topic) if partition is None else self._scope_of_partition(topic, partition)
        self.holds.fail(scope, now)
        self._take(scope)

    def _scope_of_partition(self, topic: str, partition: int) -> Scope:
        """Return the topic while a write moves it: the partition's number means another one then (R9)."""
        is_leaving = any(name == topic for name, _ in self._moves)
        return Scope("topic", topic) if is_leaving else Scope("partition", topic, partition)

    # Topics ----------------------------------------------------------------------------------------------------

    def pause(self, topic: str) -> None:
        """Pause a topic. What was sent of it is waited for; `streams.has_sent` returns when that is done."""
        scope = Scope("topic", topic)
        self.holds.hold(scope, is_paused=True)
        self._take(scope)

    def set_count(self, topic: str, count: Count) -> None:
        """Take the partition count that a topic is to have; a topic that was unknown is published from now on."""
        if self.topics.request(topic, count):
            self.holds.release(Scope("topic", topic))

    def is_moving(self, topic: str) -> bool:
        """Return whether nothing more of a topic is sent until it has moved.

        What waits for a partition is drained before that begins (R9).
        """
        is_leaving = any(name == topic for name, _ in self._moves)
        return is_leaving or (topic in self.topics.moving and not self.holds.has_partitions(topic))

    # Writing ------------------------------------------------------------------------------------------------------

    def next_write(self) -> Write | None:
        """Return the next transaction, or None if there is nothing to write. It is under way until `written`."""
        published = tuple(self.streams.in_order())
        first = self.streams.first_of({claim.row.topic for claim in self.holds.claims.values()})
        claims = tuple(  # R4: nothing of its key in front of it is on its way
            claim
            for claim in self.holds.claims.values()
            if claim.row.key is None
            or first.get((claim.row.topic, claim.row.key), claim.number) >= claim.number
        )
        settled = {item.row.id for item in published} | {claim.row.id for claim in claims}
        written = Counter(claim.scope for claim in claims)
        self._moves = tuple(
            (topic, count)
            for topic, count in self.topics.moving.items()
            if self.is_moving(topic) and not self.streams.has_sent(topic)
        )
        write = Write(
            published,
            claims,
            self.sources.floor(settled).snapshot,
            () if self.is_stopping else self.holds.to_announce(written),
            self.holds.to_retract(settled, written, is_last=self.is_stopping),
            () if self.is_stopping else self.holds.to_let_go(settled),
            self._moves,
            settled,
            self.sources.clock,
            self.is_waiting(),
            *batches_of(self.transactions, settled),
        )
        return None if write.is_empty else write

    def publications(self) -> Write | None:
        """Return a write for which no row is locked: another session holds one that claims and holds need.

        A topic moves meanwhile: that is in no table, and its messages wait for it (R9).
        """
        # What comes from a hold is settled with rows that may be locked.
        published = tuple(item for item in self.streams.published if item.taken_from is None)
        settled = {item.row.id for item in published}
        floor = self.sources.floor(settled).snapshot
        parts = self.is_waiting(), *batches_of(self.transactions, settled)
        write = Write(published, (), floor, (), (), (), self._moves, settled, self.sources.clock, *parts)
        return None if write.is_empty else write

    def barrier(self) -> Write:
        """Return a write of nothing: that it is flushed secures what was read (R1)."""
        floor = self.sources.floor(set()).snapshot
        return Write((), (), floor, (), (), (), (), set(), self.sources.clock, self.is_waiting())

    def written(self, write: Write) -> None:
        """Take a write that has committed and is flushed."""
        settled = write.settled
        if self.transactions is not None:
            self.transactions.written(write.intents, write.ended, settled)
        self.sources.settle(settled)
        self.streams.recorded(write.published)
        self.memory.free([item.row for item in write.published])
        self.memory.free(claim.row for claim in write.claims)
        self.holds.claimed(write.claims)
        self.holds.announced(write.announce, write.retract)
        self.holds.settle(settled)
        self.holds.let_go(write.let_go)
        for topic, count in write.moved:
            self.topics.move(topic, count)
            self.streams.move(topic, self.topics.partition)
        self._moves = ()
        self._flushed = max(self._flushed, write.made_at)
        self._secure(self._flushed)

    # The end of a leadership --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Read no more, and forget what was never sent: it is above the floor, and the next leader reads it."""
        self.is_stopping = True
        self._unsecured.clear()
        for item in self.streams.take_unsent(self.holds.claimed_keys()):
            self.holds.put_back(item)

    def is_done(self) -> bool:
        """Return whether the leadership can be given back: nothing is on the wire, unrecorded or announced."""
        is_open = self.streams.published or self.streams.by_name or self.holds.claims
        return not (is_open or self.holds.to_retract(set(), Counter(), is_last=True))

    def is_clean(self) -> bool:
        """Return whether the next leader has nothing to doubt, of this leader or of one before it (R8)."""
        return not self._is_unclean or self.sources.is_level()
