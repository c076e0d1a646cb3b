"""A leader that delivers exactly once: batches, each a transaction of the simulated Kafka, and what proves them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from outbox_relay.publisher.core.transactions import Transactions
from outbox_relay.publisher.core.values import Batch, Item, Proof, Write
from tests.support.core_search.coordinators import ABSENT, IDS
from tests.support.core_search.leader import Leader, partition_of
from tests.support.core_search.tables import Intent
from tests.support.core_search.world import World


def new_leader(w: World) -> Leader:
    """Begin a leadership."""
    return ExactLeader(w) if w.setting.is_exactly_once else Leader(w)


def digest_of(items: Sequence[Item]) -> str:
    """Stand in for a hash."""
    return ",".join(str(item.row.content) for item in items)


class ExactLeader(Leader):
    """One leadership. It has a core when Kafka's offset has proven what its predecessor sent."""

    def __init__(self, world: World) -> None:
        """Take the leadership in PostgreSQL."""
        self.phase = "new"
        """fetched, inited, known, leading"""
        self.epochs: list[int] = []
        self.offset = ABSENT
        self.todo: list[tuple[Batch, list[Item]]] = []
        self.stopped = ""
        self.has_core = False
        super().__init__(world)

    def _doubt_announced(self) -> None:
        """Nothing is in doubt: the offset decides."""

    def _lead(self, *, was_clean: bool) -> Any:
        if not self.has_core:
            return self.w.core(self.w.postgres.db.floor, {}, {}, partition_of)
        core = super()._lead(was_clean=True)
        of_variant: Any = vars(sys.modules[self.w.core.__module__])["Transactions"]
        core.transactions = of_variant(self.offset, core.streams, core.memory.limits, digest_of, _room_of)
        return core

    @property
    def batches(self) -> Transactions:
        """The core's."""
        found: Transactions = self.core.transactions
        return found

    # What a new producer does ------------------------------------------------------------------------------------

    def tid(self, number: int) -> str:
        """Return the transactional id of a batch."""
        tid = IDS[number % len(IDS)]
        return f"{self.epoch}.{tid}" if "an id for each process" in self.w.flags else tid

    def init(self) -> None:
        """Fence the former producers."""
        self.epochs = [self.w.kafka.init(self.tid(number)) for number in range(len(IDS))]
        self.todo = []
        self.phase = "known" if self.phase == "fetched" else "inited"

    def can_init(self) -> bool:
        """Return whether no markers are being written: Kafka answers CONCURRENT_TRANSACTIONS until then."""
        return all(self.w.kafka.of(self.tid(number)).status != "prepared" for number in range(len(IDS)))

    def fetch(self) -> None:
        """Read the group's offset."""
        self.offset = self.w.kafka.newest()
        self.phase = "known" if self.phase == "inited" else "fetched"

    def prove(self, *, dies: bool = False) -> None:
        """Decide by the offset which batches Kafka has. A new leader records them before it reads anything."""
        if not self.leads() and "epochs are not checked" not in self.w.flags:
            self.is_alive = False
            return
        if self.has_core:
            try:
                self.core.proven_at(self.offset)
            except Exception as error:
                if type(error).__name__ != "NotProvenError":  # a variant has a class of its own
                    raise
                self._stop(str(error))
            self.phase = "leading"
        elif self._settle():
            if dies:
                self.die()
                return
            self.has_core, self.phase = True, "leading"
            self.core = self._lead(was_clean=True)

    def _stop(self, reason: str) -> None:
        self.is_alive, self.stopped = False, reason

    def _settle(self) -> bool:
        """Turn the intents that Kafka has into publications, in one commit; return whether that is known."""
        w, db = self.w, self.w.postgres.db
        known = {Proof(number, intent.digest): intent for number, intent in db.intents.items()}
        if "offsets have no digest" in w.flags:
            self.offset = next((one for one in known if one.number == self.offset.number), self.offset)
        if self.offset == ABSENT and "a lost offset is zero" in w.flags:
            self.offset = min(known)
        if self.offset not in known:
            self._stop(f"Kafka has batch {self.offset}, which is none of {sorted(known)}")
            return False
        for proof, intent in known.items():
            if proof.number <= self.offset.number:
                for id_ in intent.ids:
                    db.publication.setdefault(db.messages[id_].position, self.epoch)
                    db.waiting.pop(id_, None)
        db.intents = {self.offset.number: known[self.offset]}
        db.holds = dict.fromkeys(db.holds, -1)
        w.postgres.next_xid()
        w.postgres.flush()
        return True

    # Batches ------------------------------------------------------------------------------------------------------

    def _apply(self, write: Write) -> None:
        db = self.w.postgres.db
        db.intents = {number: one for number, one in db.intents.items() if number not in write.ended}
        for batch in write.intents:
            ids = tuple(item.row.id for item in batch.items)
            db.intents[batch.proof.number] = Intent(batch.proof.digest, ids)
        super()._apply(write)

    def seal(self) -> None:
        """Choose a batch."""
        self.batches.seal(self.core.is_moving)

    def begin(self) -> None:
        """Begin the next batch."""
        batch = self.batches.begin()
        if batch is not None:
            self.todo.append((batch, list(batch.items)))
            db = self.w.postgres.db
            if self.leads() and any(
                db.publication.get(one.row.position, 1 << 60) <= self.epoch for one in batch.items
            ):
                self.w.faults.append("REPEATED")

    def may_produce(self, index: int) -> bool:
        """Return whether a request of a batch is answered."""
        if index >= len(self.todo):
            return False
        batch, items = self.todo[index]
        if batch.state != "begun" or self.w.kafka.of(self.tid(batch.proof.number)).status == "prepared":
            return False
        return not items or (items[0].row.topic, items[0].partition) not in self.w.stuck

    def produce(self, index: int) -> None:
        """Send the next message of a batch, or, after the last one, its offset."""
        batch, items = self.todo[index]
        number = batch.proof.number % len(IDS)
        one = self.w.kafka.of(self.tid(number))
        if one.epoch != self.epochs[number]:
            self.give_up()
        elif not items:
            one.status, one.offset = "open", batch.proof
            self.batches.produced(batch)
        elif items[0].row.content in self.w.postgres.kinds.poison:
            self._refuse(batch, items[0])
        else:
            item = items.pop(0)
            one.status = "open"
            item.offset = len(self.w.log)
            self.w.append(item, (item.row.topic, item.partition), status="open")
            one.records.append(self.w.log[-1])

    def _refuse(self, batch: Batch, item: Item) -> None:
        """Refuse a message, or the request that it is in."""
        name = item.row.topic, item.partition
        together = [one for one in batch.items if (one.row.topic, one.partition) == name]
        if int(str(item.row.content)) % 3 == 0:  # no record can be made of it, as is found only now
            self.give_up(accused=[item])
        else:
            self.give_up(together if int(str(item.row.content)) % 3 == 1 else [item])

    def give_up(self, refused: Sequence[Item] = (), accused: Sequence[Item] = ()) -> None:
        """Use none of the producers again."""
        self.batches.failed(refused, accused=accused)
        self.phase, self.todo = "new", []

    def end(self, what: str) -> None:
        """Commit the first batch; the answer, the request, or a copy of the request may be lost, or late."""
        batch = self.batches.end()
        if batch is None:
            return
        kafka, flags = self.w.kafka, self.w.flags
        number = batch.proof.number % len(IDS)
        tid, epoch = self.tid(number), self.epochs[number]
        self.todo = [each for each in self.todo if each[0] is not batch]
        if what in ("delayed", "sent again"):
            kafka.stray.append((tid, epoch))
        is_done = what in ("answered", "answer lost", "sent again") and kafka.commit(tid, epoch)
        if what in ("answered", "sent again") and is_done:
            self.batches.committed(batch)
            if what == "sent again" and "a producer is used after a lost connection" not in flags:
                self.give_up()
        elif "in doubt is not committed" in flags:
            self.core.proven_at(self.batches.done)
        elif "aborted, and used again" in flags:
            one = kafka.of(tid)
            if one.status == "open":
                kafka.abort(tid)
                one.epoch -= 1
            self.core.proven_at(batch.proof if one.status == "prepared" else self.batches.done)
        else:
            self.give_up()

    def find_silent(self, *, is_leaderless: bool) -> None:
        """Notice a partition that acknowledges nothing: its batch cannot end."""
        super().find_silent(is_leaderless=is_leaderless)
        if self.has_core and self.phase == "leading" and not self.batches.is_proven:
            self.phase, self.todo = "new", []


def _room_of(topic: str) -> int:
    """Topic b takes small requests only."""
    return 4 if topic == "b" else 1 << 60
