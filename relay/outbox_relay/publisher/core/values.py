"""The facts and orders that the core and its driver exchange."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from outbox_relay.publisher.snapshot import Snapshot

NOWHERE = 1 << 62
"""A position behind all others."""
Count = Hashable
"""A topic's partition count, with whatever else the driver needs to choose a partition."""
THE_REST: Hashable = ("rest",)
"""The group of all topics without a catch-up of their own, where more of them have backlogs than have one."""
Partitioner = Callable[["Row", Any], int]
"""Returns the partition of a row by its topic's `Count`. The rows of a key whose order matters have one partition."""
GroupOf = Callable[[str], Hashable]
"""Returns the group of a topic. Statements separate groups only: a group is read, and fills memory, together."""


class Row(NamedTuple):
    """A message as a statement returns it.

    `key` is what has an order: an order key or a queue; None has no order. `size` is in bytes. A faulty row cannot
    become a record. `content` is the driver's, and the core does not read it.
    """

    id: int
    position: int
    topic: str
    key: Hashable
    size: int
    is_faulty: bool = False
    is_expired: bool = False
    in_doubt: bool = False
    content: object = None


class Scope(NamedTuple):
    """What a hold covers: a topic, a partition of it, a key of it, or one message of it."""

    kind: Literal["topic", "partition", "key", "message", "expired"]
    topic: str = ""
    part: Hashable = None


EXPIRED_SCOPE = Scope("expired")
"""The scope of a claim that no hold publishes: the message has expired."""


@dataclass(slots=True, eq=False)
class Item:
    """A row on its way.

    `number` is the order of arrival; `taken_from` is the hold whose table rows it belongs to. The driver notes when it
    gave the message to a producer, and the offset that Kafka returned.
    """

    row: Row
    number: int
    partition: int
    in_doubt: bool
    taken_from: Scope | None
    offset: int = -1
    sent_at: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """One statement to execute. Rows in outbox.waiting are left out of tails and catch-ups.

    Attributes:
        kind: `tail` reads all topics, `list` a page of a catch-up, `drain` a page of a hold.
        rows: the most rows of the page.
        size: the most bytes of the page; one row alone may exceed it.
        base: what this snapshot sees was read before.
        until: a list has what this snapshot saw and `base` did not. A page of it holds its rows as they are now, and
            leaves out what has changed since the list was made, which may be later.
        compare: leave out what has a publication, because the base is another session's floor.
        group: of a list.
        apart: groups that a tail, or the list of THE_REST, leaves out, because they have a catch-up.
        joins: groups whose catch-up is done, each with a base of its own. A tail reads them along.
        scope: of a drain.
    """

    kind: Literal["tail", "list", "drain"]
    rows: int
    size: int
    base: Snapshot | None = None
    until: Snapshot | None = None
    compare: bool = False
    group: Hashable = None
    apart: frozenset[Hashable] = frozenset()
    joins: tuple[tuple[Hashable, Snapshot], ...] = ()
    scope: Scope = EXPIRED_SCOPE


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """What one Read returned.

    Attributes:
        read: the request.
        rows: in the order of their positions.
        snapshot: of the statement; of no use for a list.
        has_more: a list or hold has rows behind these.
        heavy: groups of a tail that did not fit. The driver leaves out the largest ones until the others fit, so a
            flood of one topic delays no other.
        is_flushed: the statement found that PostgreSQL cannot forget any row of it, or of a page before it, and that
            this leadership goes on.
        is_ours: a statement has found just now that this leadership goes on: a page of a list that is flushed is sent.
        has_new_topics: what was read of its topics meanwhile may be forgotten, too.
    """

    read: Read
    rows: tuple[Row, ...]
    snapshot: Snapshot
    has_more: bool = False
    heavy: tuple[Hashable, ...] = ()
    is_flushed: bool = False
    is_ours: bool = False
    has_new_topics: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A row of outbox.waiting to write, by id.

    `is_failed`: the message itself failed, so the statement ends the request of its hold. `number` is its item's.
    """

    row: Row
    scope: Scope
    in_doubt: bool
    is_failed: bool
    number: int


class Proof(NamedTuple):
    """The offset that a transaction of Kafka's commits for its producer, and the metadata of it.

    `number` is the batch's, without gaps; `digest` is one of its messages, so that the offset of another environment,
    which has the same number, is not taken for ours.
    """

    number: int
    digest: str


@dataclass(slots=True, eq=False)
class Batch:
    """The messages of one transaction of Kafka's.

    Its life: sealed, intended (PostgreSQL has its intent), begun, produced (Kafka has acknowledged all of it, and its
    offset), ending. `is_probe`: its messages are of one topic, on probation, and one of each partition.
    """

    proof: Proof
    items: tuple[Item, ...]
    is_probe: bool
    state: Literal["sealed", "intended", "begun", "produced", "ending"] = "sealed"


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """One flushed transaction, guarded by the leader's epoch. It is the barrier of the pages that wait for one.

    Attributes:
        published: messages that Kafka acknowledged.
        claims: rows of outbox.waiting.
        floor: every row that it sees is settled.
        announce: holds of which the next page is about to be read; its rows are in doubt from now on.
        retract: holds of which nothing is out any more.
        let_go: empty holds, to delete.
        moved: topics and their partition counts from now on.
        settled: the ids that it settles (R3).
        made_at: what was read up to this time of the core's clock cannot be forgotten once this write is flushed (R1).
        is_barrier: pages wait for that.
        intents: batches that may be sent once it is flushed (R10).
        ended: numbers of batches whose intents are of no more use.
    """

    published: tuple[Item, ...]
    claims: tuple[Claim, ...]
    floor: Snapshot
    announce: tuple[Scope, ...]
    retract: tuple[Scope, ...]
    let_go: tuple[Scope, ...]
    moved: tuple[tuple[str, Count], ...]
    settled: set[int]
    made_at: int
    is_barrier: bool
    intents: tuple[Batch, ...] = ()
    ended: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to write but the floor."""
        parts = (
            self.published,
            self.claims,
            self.announce,
            self.retract,
            self.let_go,
            self.moved,
            self.intents,
        )
        return not (any(parts) or self.is_barrier)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the core takes at once.

    Attributes:
        page: rows of one statement.
        page_size: bytes of one statement.
        rows: rows in memory, from a page to the write that settles them.
        size: bytes in memory, likewise.
        largest: the size of the largest possible row, in bytes.
        window: unacknowledged messages of one partition.
        batch: messages of one transaction of Kafka's.
        probation: messages of a topic that are sent one at a time after Kafka refused one of it.
        doubted: keys with messages in doubt of partitions that were read back; with more of them all are sent again.
        holds: held keys and messages of one topic; more of them hold the topic.
        announced: holds that one write announces.
        apart: catch-ups that groups get because they fill their share of the memory.
        pause: the first pause of a hold that Kafka caused, in seconds; it doubles with each failure.
        longest_pause: the last one.
    """

    page: int = 1000
    page_size: int = 4 << 20
    rows: int = 20_000
    size: int = 64 << 20
    largest: int = 2 << 20
    window: int = 5000
    batch: int = 5000
    probation: int = 200
    doubted: int = 100_000
    holds: int = 10_000
    announced: int = 100
    apart: int = 200
    pause: float = 0.5
    longest_pause: float = 60.0
