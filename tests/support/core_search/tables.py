"""PostgreSQL as the publisher's core meets it: rows, transactions that commit out of order, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal

from outbox_relay.publisher.core.values import EXPIRED_SCOPE, Scope
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot

Kind = Literal["", "poison", "fault", "delayed", "expiring"]
"""Of a message: plain, refused by Kafka, no record can be made of it, delayed, or expired when it is read."""
DELAYED = Scope("message", "delayed")
"""What a delayed message waits for. The core has no such hold."""


@dataclass(frozen=True)
class Msg:
    """A row of outbox.message. `uid` is unique for ever, where ids are issued again after a restore."""

    id: int
    uid: int
    topic: str
    key: str | None
    size: int
    xid: int
    position: int
    state: str = "COMMITTED"


@dataclass(frozen=True)
class Wait:
    """A row of outbox.waiting."""

    scope: Scope
    place: int
    in_doubt: bool


@dataclass(frozen=True)
class Intent:
    """A row of outbox.intent: what a batch has."""

    digest: str
    ids: tuple[int, ...]


@dataclass
class Tables:
    """What PostgreSQL has committed."""

    messages: dict[int, Msg] = field(default_factory=dict)
    publication: dict[int, int] = field(default_factory=dict)
    """Position, and the epoch that recorded it."""
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last recorded offset of each partition."""
    waiting: dict[int, Wait] = field(default_factory=dict)
    holds: dict[Scope, int] = field(default_factory=dict)
    """Scope, and the place up to which rows are announced."""
    requests: frozenset[Scope] = frozenset()
    topics: dict[str, int] = field(default_factory=lambda: {"a": 2, "b": 1, "s": 1})
    asked: dict[str, int] = field(default_factory=dict)
    """Partition counts that operators asked for, or that were found in Kafka."""
    paused: frozenset[str] = frozenset()
    epoch: int = 0
    floor: Snapshot = BEGINNING
    is_clean: bool = True
    """The last leader gave the leadership back."""
    place: tuple[int, int] = (1, 1)
    """System identifier and timeline of the server, as of the last take-over."""
    intents: dict[int, Intent] = field(default_factory=lambda: {0: Intent("", ())})
    """By the number of their batch."""
    next_xid: int = 1
    next_position: int = 1

    def copy(self) -> Tables:
        """Return a copy that shares nothing that changes."""
        other = copy(self)
        other.messages, other.publication = dict(self.messages), dict(self.publication)
        other.offsets = dict(self.offsets)
        other.waiting, other.holds = dict(self.waiting), dict(self.holds)
        other.topics, other.asked = dict(self.topics), dict(self.asked)
        other.intents = dict(self.intents)
        return other


@dataclass
class Draft:
    """A message to insert."""

    topic: str
    key: str | None
    kind: Kind = ""
    size: int = 1


@dataclass
class Kinds:
    """Which messages are special, by uid."""

    poison: set[int] = field(default_factory=set)
    fault: set[int] = field(default_factory=set)
    ever_bad: set[int] = field(default_factory=set)
    expiring: set[int] = field(default_factory=set)
    exempt: set[int] = field(default_factory=set)
    """They leave the order, or need not be published."""


class Postgres:
    """One server, its write-ahead log up to the flush, and a standby that lags."""

    def __init__(self) -> None:
        self.db = Tables()
        self.durable, self.standby = self.db.copy(), self.db.copy()
        self.active: dict[int, list[Msg]] = {}
        self.server = (1, 1)
        self.uid = 0
        self.order: list[tuple[int, str, str | None]] = []
        """Uid, topic and key in the order of commit."""
        self.kinds = Kinds()
        self.is_lossy = False

    def snapshot(self) -> Snapshot:
        """Return what a statement sees now."""
        running = tuple(sorted(self.active))
        xmax = self.db.next_xid
        return Snapshot(running[0] if running else xmax, xmax, running)

    def flush(self) -> None:
        """Make what is committed durable."""
        self.durable = self.db.copy()

    def is_flushed(self) -> bool:
        """Return whether a statement finds that nothing which it sees can be lost."""
        return (
            self.durable.next_xid == self.db.next_xid
            and not self.active
            and self.durable.messages.keys() == self.db.messages.keys()
        )

    def begin_insert(self, drafts: Iterable[Draft]) -> None:
        """Begin a transaction that inserts messages: xid first, then positions."""
        xid = self.next_xid()
        self.active[xid] = []
        for draft in drafts:
            position, self.db.next_position = self.db.next_position, self.db.next_position + 1
            self.uid += 1
            msg = Msg(position, self.uid, draft.topic, draft.key, draft.size, xid, position)
            self.active[xid].append(msg)
            self._note(msg, draft.kind)

    def _note(self, msg: Msg, kind: Kind) -> None:
        kinds = self.kinds
        if kind in ("poison", "fault"):
            (kinds.poison if kind == "poison" else kinds.fault).add(msg.uid)
            kinds.ever_bad.add(msg.uid)
        if kind in ("delayed", "expiring") or (kind in ("poison", "fault") and msg.topic == "s"):
            kinds.exempt.add(msg.uid)
        if msg.key is None:
            kinds.exempt.add(msg.uid)
        if kind == "expiring":
            kinds.expiring.add(msg.uid)

    def commit(self, xid: int, *, is_synchronous: bool, delayed: frozenset[int] = frozenset()) -> None:
        """Commit a transaction; asynchronously, so that a crash can lose it, or flushed."""
        for msg in self.active.pop(xid):
            self.db.messages[msg.id] = msg
            self.order.append((msg.uid, msg.topic, msg.key))
            if msg.uid in delayed:
                self.db.waiting[msg.id] = Wait(DELAYED, msg.position, in_doubt=False)
        if is_synchronous:
            self.flush()

    def next_xid(self) -> int:
        """Assign a transaction id."""
        xid, self.db.next_xid = self.db.next_xid, self.db.next_xid + 1
        return xid

    def is_unpublished(self, msg: Msg) -> bool:
        """Return whether a message has no publication."""
        return msg.position not in self.db.publication

    def found(self, topics: Iterable[str], base: Snapshot, *, compare: bool) -> list[Msg]:
        """Return the committed rows that `base` does not see and that do not wait, by position."""
        chosen, db = set(topics), self.db
        found = [
            msg
            for msg in self.not_before(base)
            if msg.topic in chosen
            and not base.has_ended(msg.xid)
            and msg.state == "COMMITTED"
            and msg.id not in db.waiting
            and not (compare and msg.position in db.publication)
        ]
        found.sort(key=lambda msg: msg.position)
        return found

    def not_before(self, base: Snapshot) -> list[Msg]:
        """Return the rows of all transactions but those of which a snapshot knows by its xmin that they ended."""
        xmin = base.xmin
        return [msg for msg in self.db.messages.values() if msg.xid >= xmin]

    def change(self, id_: int, **what: object) -> None:
        """Change a row of outbox.message."""
        self.db.messages[id_] = replace(self.db.messages[id_], **what)  # type: ignore[arg-type]

    def adopt(self, *, restored: bool, keeps_old_xids: bool = False) -> None:
        """Prepare the tables of another server for its first leader.

        The floor counts for nothing, and what waits may be in Kafka. In another cluster the xids mean nothing either:
        an old one may be that of a transaction that runs here now. Positions stay in order.
        """
        db = self.db
        db.floor = BEGINNING
        for id_, wait in list(db.waiting.items()):
            db.waiting[id_] = replace(wait, in_doubt=wait.scope not in (DELAYED, EXPIRED_SCOPE))
        if restored:
            xid = self.next_xid()
            for msg in list(db.messages.values()):
                if msg.xid >= xid or not keeps_old_xids:
                    is_new = (
                        self.is_unpublished(msg) and msg.id not in db.waiting and msg.state == "COMMITTED"
                    )
                    self.change(msg.id, xid=xid if is_new else 0)

    def end(self, survivor: Tables, *, lossy: bool) -> set[int]:
        """End the server; go on with what survived. Return the uids that never happened."""
        self.db = survivor.copy()
        self.active.clear()
        self.is_lossy |= lossy
        kept = {msg.uid for msg in self.db.messages.values()}
        gone = {uid for uid, _, _ in self.order} - kept
        if lossy:
            self.kinds.exempt |= gone
        self.order = [entry for entry in self.order if entry[0] in kept]
        self.flush()
        return gone
