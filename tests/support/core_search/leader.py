"""A relay process that leads, or believes that it leads: the loop around a core, with simulated statements."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from outbox_relay.publisher.core.streams import Producer
from outbox_relay.publisher.core.values import EXPIRED_SCOPE, THE_REST, Item, Page, Read, Row, Scope, Write
from outbox_relay.publisher.snapshot import BEGINNING
from tests.support.core_search.overtaking import overtakes
from tests.support.core_search.pages import first_of, fits
from tests.support.core_search.reading_back import ReadingBack
from tests.support.core_search.signals import take_signals
from tests.support.core_search.tables import DELAYED, Msg, Wait
from tests.support.core_search.world import ALL, KEYS, Name

if TYPE_CHECKING:
    from tests.support.core_search.world import World

TAIL_WAIT = 2
"""Reads within which a message of a topic without a catch-up is read."""
LIST_WAIT = 4 * len(KEYS) + 4
"""Reads within which a catch-up has its next page."""


def partition_of(row: Row, count: int) -> int:
    """Stand in for the selectors and murmur2."""
    return row.position % count if row.key is None else sum(str(row.key).encode()) % count


class Leader:
    """One leadership."""

    def __init__(self, world: World) -> None:
        """Take the leadership: a new epoch, and the tables under the lock of the leader's row."""
        self.w = world
        self.is_alive = True
        self.wire: dict[Producer, dict[Name, deque[Item]]] = {}
        self.cursors: dict[Hashable, list[Msg]] = {}
        self.late: set[Hashable] = set()
        """Groups whose list is being made."""
        self.ages: dict[object, int] = {}
        self.travelling: Write | None = None
        """A write that was sent and has not ended."""
        self.was_owner = False
        self.dead: set[Producer] = set()
        self.clean: dict[str, int] = {}
        """Messages that Kafka acknowledged since it refused one of a topic."""
        db = world.postgres.db
        db.epoch += 1
        self.epoch = db.epoch
        was_clean, db.is_clean = db.is_clean, False
        if not was_clean:
            world.disturb()
        if db.place != world.postgres.server:
            was_clean &= "another server is taken for clean" in world.flags
            if "the floor is trusted" not in world.flags:
                world.postgres.adopt(
                    restored=db.place[0] != world.postgres.server[0],
                    keeps_old_xids="old xids below ours stay" in world.flags,
                )
            db.place = world.postgres.server
        if "announcements end with their leader" not in world.flags:
            self._doubt_announced()
        world.postgres.flush()
        self.core: Any = self._lead(was_clean=was_clean)
        self.reading_back = ReadingBack(self, is_unclean=not was_clean)

    def _doubt_announced(self) -> None:
        """What a predecessor announced may be in Kafka."""
        db = self.w.postgres.db
        for id_, wait in list(db.waiting.items()):
            if wait.place <= db.holds.get(wait.scope, -1):
                db.waiting[id_] = Wait(wait.scope, wait.place, in_doubt=True)
        db.holds = dict.fromkeys(db.holds, -1)

    def _lead(self, *, was_clean: bool) -> Any:
        db = self.w.postgres.db
        holds = {
            scope: min([wait.place for wait in db.waiting.values() if wait.scope == scope], default=0)
            for scope in db.holds
        }
        if "holds are forgotten" in self.w.flags:
            holds = {}
        # A topic has the count that it is to have, but where a partition is held: by the count that its hold has.
        kept = {scope.topic for scope in db.holds if scope.kind == "partition"}
        if "a hold forgets its count" in self.w.flags:
            kept = set()
        db.topics.update((topic, count) for topic, count in db.asked.items() if topic not in kept)
        return self.w.core(
            db.floor,
            holds,
            db.topics,
            partition_of,
            skip_ahead=frozenset("s"),
            limits=self.w.setting.limits,
            is_unclean=not was_clean,
        )

    def leads(self) -> bool:
        """Return whether no other leader has taken over."""
        return self.epoch == self.w.postgres.db.epoch

    def die(self) -> None:
        """End without notice. What is on the wire may arrive all the same, where deaths are not sudden."""
        self.is_alive = False
        if self.w.setting.is_sudden:
            self.wire.clear()
        self.w.disturb(is_again=self.reading_back.is_unclean and not self.core.is_clean())

    def gives_back(self) -> bool:
        """Return whether the leadership ends in order now."""
        core = self.core
        return (
            self.is_alive and core.is_stopping and core.is_done() and self.leads() and self.travelling is None
        )

    # Reading ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Execute the next statement, if there is one."""
        read = self.core.next_read()
        if read is None:
            return
        self._note_waits(read)
        page = {"tail": self._tail, "list": self._list, "drain": self._drain}[read.kind](read)
        if page is None:
            return
        if sum(row.size for row in page.rows) > read.size and len(page.rows) > 1:
            self.w.faults.append("PAGE")
        self.reading_back.of_page(page)
        self.core.add(page)

    def _row(self, msg: Msg, *, in_doubt: bool = False) -> Row:
        kinds = self.w.postgres.kinds
        is_faulty, is_expired = msg.uid in kinds.fault, msg.uid in kinds.expiring
        return Row(
            msg.id, msg.position, msg.topic, msg.key, msg.size, is_faulty, is_expired, in_doubt, msg.uid
        )

    def _is_flushed(self) -> bool:
        flags = self.w.flags
        return self.w.postgres.is_flushed() and self.leads() and "never secured by the poll" not in flags

    def _compares(self, read: Read) -> bool:
        return read.compare and "no comparison" not in self.w.flags

    def _tail(self, read: Read) -> Page:
        """Read the tail; leave out the largest topics until the others fit, or all of them where those are too many."""
        postgres = self.w.postgres
        topics = set(KEYS) - read.apart
        rows = []
        if THE_REST not in read.apart:
            rows = postgres.found(topics, read.base or BEGINNING, compare=self._compares(read))
        for topic, base in read.joins:
            joined = topics if topic == THE_REST else {str(topic)}
            rows += postgres.found(joined, base, compare=False)
        heavy: list[Hashable] = []
        while rows and not fits(rows, read):
            if "one list for all topics" in self.w.flags:
                rows.sort(key=lambda msg: msg.position)
                rows = first_of(rows, read)
                break
            if THE_REST in read.apart or len(read.apart) + len(heavy) >= self.w.setting.most_apart:
                joins = (
                    () if THE_REST in read.apart else (topic for topic, _ in read.joins if topic not in heavy)
                )
                heavy += [*joins, THE_REST]
                rows = []
                break
            heavy.append(Counter(msg.topic for msg in rows).most_common(1)[0][0])
            rows = [msg for msg in rows if msg.topic != heavy[-1]]
        found = tuple(self._row(msg) for msg in sorted(rows, key=lambda msg: msg.position))
        return Page(read, found, postgres.snapshot(), heavy=tuple(heavy), is_flushed=self._is_flushed())

    def _list(self, read: Read) -> Page | None:
        """Read a page of a list: the rows as they are now, without what changed since the list was made.

        It is made next to the loop, and half of the time its first page is not there when it is asked for first.
        """
        postgres = self.w.postgres
        db = postgres.db
        topics = set(KEYS) - read.apart if read.group == THE_REST else {str(read.group)}
        until = read.until
        assert until is not None
        if read.group not in self.cursors:
            if until.xmax % 2 and read.group not in self.late:
                self.late.add(read.group)
                return None
            self.late.discard(read.group)
            listed = postgres.found(topics, read.base or BEGINNING, compare=self._compares(read))
            listed = [msg for msg in listed if until.has_ended(msg.xid)]
            if "lists hold what waits" in self.w.flags:
                waits = [db.messages[id_] for id_, wait in db.waiting.items() if wait.scope != EXPIRED_SCOPE]
                base = read.base or BEGINNING
                listed += [msg for msg in waits if msg.topic in topics and not base.has_ended(msg.xid)]
                listed.sort(key=lambda msg: msg.position)
            self.cursors[read.group] = listed
        cursor = self.cursors[read.group]
        old = first_of(cursor, read)
        self.cursors[read.group] = cursor[len(old) :]
        fresh = [db.messages[msg.id] for msg in old]
        if "pages trust their list" not in self.w.flags:
            fresh = [
                msg
                for msg, was in zip(fresh, old, strict=True)
                if msg.state == "COMMITTED" and msg.xid == was.xid and msg.id not in db.waiting
            ]
        has_more = bool(self.cursors[read.group])
        if not has_more:
            del self.cursors[read.group]
        rows = tuple(map(self._row, fresh))
        return Page(read, rows, postgres.snapshot(), has_more=has_more, is_ours=self.leads())

    def _drain(self, read: Read) -> Page:
        """Read a page of a hold, up to what is announced."""
        db = self.w.postgres.db
        sent_to = db.holds.get(read.scope, -1)
        mine = sorted((wait.place, id_) for id_, wait in db.waiting.items() if wait.scope == read.scope)
        early = "read before announced" in self.w.flags
        page = first_of([db.messages[id_] for place, id_ in mine if place <= sent_to or early], read)
        rows = tuple(self._row(msg, in_doubt=db.waiting[msg.id].in_doubt) for msg in page)
        return Page(read, rows, self.w.postgres.snapshot(), has_more=len(mine) > len(page))

    def _note_waits(self, read: Read) -> None:
        """Fair: no topic keeps the others from being read."""
        w, sources = self.w, self.core.sources
        if not self.leads():
            return
        db, tail = w.postgres.db, sources.tail.snapshot
        for msg in w.postgres.not_before(tail):
            if msg.position in db.publication or tail.has_ended(msg.xid):
                continue
            if THE_REST in sources.catch_ups or msg.topic in sources.catch_ups:
                continue
            if msg.id not in db.waiting and msg.state == "COMMITTED":
                self._age(msg.uid, TAIL_WAIT)
        full = self.core.memory.full()
        for topic, one in sources.catch_ups.items():
            if one.is_done or topic in full or read.group == topic:
                self.ages.pop(topic, None)
            else:
                self._age(topic, LIST_WAIT)

    def _age(self, what: object, most: int) -> None:
        self.ages[what] = self.ages.get(what, 0) + 1
        if self.ages[what] > most:
            self.w.faults.append("WAIT")

    # Writing ------------------------------------------------------------------------------------------------------

    def begin_write(self, make: Callable[[], Write | None] | None = None) -> None:
        """Send the next write, or another one, if there is one and none is under way."""
        if self.travelling is None:
            self.travelling = self.core.next_write() if make is None else make()
            self.was_owner = self.leads()

    def end_write(self, *, dies: bool = False) -> None:
        """Let PostgreSQL execute a write that is under way, under the lock of the leader's row."""
        write, flags = self.travelling, self.w.flags
        if write is None:
            return
        is_owner = self.leads()
        if "ownership is read, not locked" in flags:
            is_owner = self.was_owner
        self.travelling = None
        if not is_owner and "epochs are not checked" not in flags:
            self.is_alive = False
            return
        self._apply(write)
        if dies:
            self.die()
        elif self.is_alive:
            self.core.written(write)

    def _apply(self, write: Write) -> None:
        postgres = self.w.postgres
        db = postgres.db
        for item in write.published:
            db.publication.setdefault(item.row.position, self.epoch)
            name = (item.row.topic, item.partition)
            db.offsets[name] = max(item.offset, db.offsets.get(name, -1))
            db.waiting.pop(item.row.id, None)
        for claim in write.claims:
            db.waiting[claim.row.id] = Wait(claim.scope, claim.row.position, claim.in_doubt)
            if claim.scope != EXPIRED_SCOPE:
                db.holds.setdefault(claim.scope, -1)
                if claim.is_failed:
                    db.requests -= {claim.scope}
                    self._check_blame(claim.scope, claim.row)
        for scope in write.announce:
            places = sorted(wait.place for wait in db.waiting.values() if wait.scope == scope)
            db.holds[scope] = places[: self.w.setting.limits.page][-1] if places else -1
        for scope in write.retract:
            db.holds[scope] = -1
        for scope in write.let_go:
            db.holds.pop(scope, None)
            db.requests -= {scope}
            if any(wait.scope == scope for wait in db.waiting.values()):
                self.w.faults.append("ORPHAN")
        db.topics.update((topic, int(str(count))) for topic, count in write.moved)
        db.floor = write.floor
        postgres.next_xid()
        if "the barrier is not flushed" not in self.w.flags:
            postgres.flush()

    def _check_blame(self, scope: Scope, row: Row) -> None:
        is_unknown = row.topic == "n" and scope.kind == "topic"
        if row.content not in self.w.postgres.kinds.ever_bad and not is_unknown:
            self.w.faults.append("BLAME")

    # Kafka --------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Give the producers what the core returns."""
        db = self.w.postgres.db
        sent = self.core.to_send()
        if overtakes(self, [item for item, _ in sent]):
            self.w.faults.append("OVERTAKEN")
        for item, producer in sent:
            name = (item.row.topic, item.partition)
            known = db.messages.get(item.row.id)
            is_same = known is None or known.uid == item.row.content
            if db.publication.get(item.row.position, 1 << 60) <= self.epoch and is_same:
                self.w.faults.append("REPEATED")
            probation = self.w.setting.limits.probation
            if not producer.is_single and self.clean.get(name[0], probation) < probation:
                self.w.faults.append("COSTS OTHERS")  # a refusal would end the others' producer again
            if producer in self.dead:
                continue  # it takes no message any more
            wire = self.wire.setdefault(producer, {}).setdefault(name, deque())
            if producer.is_single and wire:
                self.w.faults.append("TOGETHER")
            wire.append(item)

    def deliver(self, producer: Producer, name: Name, *, is_answered: bool) -> None:
        """Let Kafka take the first message of a wire, or refuse it or its batch.

        A refusal ends a main producer, and a lost answer any. What is on its wires may arrive, acknowledged late.
        """
        w = self.w
        wire = self.wire[producer][name]
        item = wire[0]
        poison = w.postgres.kinds.poison
        batch = [each for each in wire if each.row.content in poison]
        hears = self.is_alive and producer not in self.dead
        if item.row.content in poison or (batch and not is_answered):
            wire.clear()
            w.disturbed.add(name[0] if producer.is_single else ALL)
            if not producer.is_single:
                self.dead.add(producer)
            if hears:
                if self.core.streams.holder(item, producer) is not None:
                    self.clean[name[0]] = 0
                self.core.refused([item], producer)
            return
        wire.popleft()
        if name[0] in self.clean:
            self.clean[name[0]] += is_answered
        if name[1] < 0:
            w.faults.append("PARTITION")
        item.offset = len(w.log)
        w.append(item, name)
        is_late = producer in self.dead and int(str(item.row.content)) % 2
        if is_answered and self.is_alive and (hears or is_late):
            self.core.acknowledged([item], producer)
        elif not is_answered:
            w.disturbed.add(ALL)
            self.dead.add(producer)
            if hears:
                self.core.lost(producer)

    def find_silent(self, *, is_leaderless: bool) -> None:
        """Notice the first partition that acknowledges nothing, or that has no leader or too few replicas."""
        w = self.w
        for name, stream in list(self.core.streams.by_name.items()):
            if name in w.stuck and is_leaderless:
                self.core.unavailable(*name, w.now)
                return
            if name in w.stuck and stream.sent:
                w.disturbed.add(name[0])
                self.core.silent(*name, w.now)
                return

    # Four times a second ------------------------------------------------------------------------------------------

    def signals(self) -> None:
        """Take what operators asked for, and what Kafka lists."""
        take_signals(self.w, self.core)

    def is_delayed(self, id_: int) -> bool:
        """Return whether a message waits for its time."""
        wait = self.w.postgres.db.waiting.get(id_)
        return wait is not None and wait.scope == DELAYED
