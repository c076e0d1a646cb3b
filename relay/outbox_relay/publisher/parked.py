"""Parked keys: order keys with a message that cannot be published, and what waits behind it.

A message that cannot be published as it is parks its own (topic, order key) or (topic, queue), and nothing else. The
messages behind it are held in outbox.waiting, in their order. When an operator asks for it (or has given the message
up), the owner of the lane drains the key: it publishes what is held, in order, and then the key is parked no more.

Only the owner of a lane adds and removes its parked keys. It reads them when it takes the lane, and knows them from
then on: to find a held message costs nothing in the database. Schedules, between any two lines:

- A message that fails, and those behind it, are claims of their batch. They are written in the statement that records
  the batch, so everything in front of them is acknowledged then, and progress and claims are one. The process dies
  before it: all of it is read again. After it: its successor reads the key, finds the rows waiting, and passes over
  them.
- A batch without a message writes its claims only. A successor reads its rows again, and passes over them as well.
- The process is paused past its lease before that statement: it locks its lanes' rows, which the taker has locked
  before, and finds another epoch. If it is first, the lane is not taken until it has ended.
- Held messages keep their positions, and no drain releases them into the difference: a newer message of the key that
  is committed and not yet read can overtake none.
- A drain begins when nothing is on the wire: all claims of the key are written. It is announced in the key's row, and
  committed, with the statement that lists the messages; so does each of its pages. An operator who gives up one of them
  locks that row: see outbox.leave_lane. The owner is paused after that statement, and its lanes are taken: its
  successor finds the announcement, and all that was listed is in doubt from then on; not what joined the key later.
- A message with a lower position than one that was drained joins the key (its transaction committed late): each page
  begins at the lowest place, and only what was listed and produced is deleted. So it is published by a later page.
- A message that has expired is a claim without a key. It holds no other and is not published from then on. Without its
  row the successor reads it again, and claims it, too; with it the successor passes over it. A relay that died may have
  published it before it expired; then the claim is in doubt. One that expires while it is held leaves its key with the
  record of the drain's page that finds it; a successor without that record finds it in the drain again.
- A drain's publication brings its lane as far as it is read: all of that is published, and recorded. Claims alone
  record no progress: a successor would otherwise read again what was drained, and publish it. So a lane that was
  taken, or goes on after a stop, is read up to what is committed before its keys are drained.
- The last page of a drain is recorded before its lane is read again: it is waited for (nothing is read any more if the
  relay is to stop meanwhile), and where its partition is slow
  the lane is set aside until then, or not tried again if it is stopped. A message held meanwhile would be held under a
  key that is gone. Only the deletion of the key's row lets the key go in memory. The process dies before the record:
  the key is still parked, and what was drained is in doubt. After it: newer messages are read.
- A topic is read apart from a list, and its lane goes on from a floor (see lane_groups.py): the list may hold what
  waited when it was made. What is drained of a key after that waits no longer when its page comes, and is passed over
  by its position. A whole topic may have too many: it is drained when none of it can be listed, and a flood puts its
  drain off (`_is_read` in draining.py). What was on the wire by then does not belong to the flood.
- The process dies, or loses a producer, with a drain on the wire: its messages may be in Kafka. The next to read the
  keys notes that they are in doubt, and the drain goes on, because its request stays.
- A paused owner wakes up with a drain on the wire: what it delivers is a run without gaps from the key's first message
  on, which its successor has published, too, or publishes behind. Its record finds another epoch.
- Another session holds the key's row (a message is being given up): the drain is put off for a second. If it locks the
  row while a drain is on the wire, what was published is recorded, and the key stays parked, with its request: what is
  read next is held, and drained once the row is free. Only the lock at the last record keeps the key; one between two
  pages has no effect. A new claim only adds rows, and waits for none of them. Where another session holds the row of
  the lane, nothing is announced; what is to be written waits by itself: see withheld.py.
- A standby is promoted, or a backup restored: what waits there may have been drained by the other server's relay.
  Nothing of it becomes DEAD until a relay has taken the lane here, and then it is in doubt (lanes.sql, doubt_held).
- A topic with too much held, or too many parked keys, in a lane is parked there. Its keys are drained before it then.

A message of a topic that skips ahead parks alone, as one without key and queue: no other is held behind it.

A whole topic that Kafka does not take, that is paused, or lacks leaders or replicas (leaderless.py), is parked in the
same way in each lane, and drained when it can be published to again. All of the above holds for it. Its messages are
held for the topic even if their key is parked, too; as the drain of the topic comes to them they are claimed for the
key, in the transaction that records the drain; what is in front of all that waits for the key is published (ADR 122).
So they stay in order whichever of the two is drained first. The row of a topic has no limit. Further
schedules: docs/adr/0094.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import psycopg

from outbox.partitioning.lanes import LANES
from outbox.statements import Statements, array_text
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.kept_keys import FIRST_BYTES, LONGEST_KEY
from outbox_relay.publisher.lease import Lease
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/parked.sql")

OWN_FAULT = frozenset(
    {
        "MESSAGE_TOO_LARGE", "QUEUE_OUT_OF_RANGE", "SELECTOR_FAILED", "MALFORMED", "MSG_SIZE_TOO_LARGE",
        "_MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD", "POLICY_VIOLATION",
        "_INVALID_ARG",
    }
)  # fmt: skip
TOPICS_FAULT = frozenset(
    {
        "TOPIC_PAUSED", "TOPIC_LOCKED", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED", "PARTITIONS_MISSING", "LEADER_NOT_AVAILABLE", "_UNKNOWN_PARTITION",
        "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "INVALID_TIMESTAMP", "TOO_MANY_HELD",
        "TOO_MANY_PARKED", "NOT_ENOUGH_REPLICAS",
    }
)  # fmt: skip
"""Errors of one message, which parks its key, and of every message of a topic: it parks the topic in its lane."""
UNNAMED = "…"
"""The end of the topic under which a message parks that has none which Kafka could have."""
MOST_KEYS = 1_000
MOST_HELD = 100_000 // LANES
"""Parked keys of a topic in a lane, and messages held behind them: at the next one the topic is parked there."""
DRAIN_PAGE = 10_000
"""Messages of a key that are drained at a time: more than a page, so that a drain ends while newer ones are held."""
TOPIC_PAGE = 2_000
"""The same of a whole topic. There may be millions, and the others wait for each page: some 40 ms."""

Key = tuple[int, str, int | None, bytes | None]
"""A lane and a topic with a queue, or with what is `kept` of an order key; with neither, of a message alone. The lane,
because a row may state one that is not its key's own: then another relay may have the same key."""

_KEPT = {"longest": LONGEST_KEY, "first": FIRST_BYTES}
"""What `keys` and `requested` need to return of an order key what is `kept` of it."""

log = Log("relay")


class Head(NamedTuple):
    """Why a message parks its key. `order_key` is the whole of it, for the row in outbox.parked_key."""

    key: Key
    order_key: bytes | None
    error: str


class Claim(NamedTuple):
    """A message to write into outbox.waiting: the head of a parked key, one behind it, or one that has expired."""

    lane: int
    position: int
    id: int
    message_id: str
    number: int | None
    """Of its parked key, or topic; None: it has expired, and belongs to none."""
    head: Head | None

    @property
    def is_of_topic(self) -> bool:
        """Whether it waits for its whole topic."""
        return self.number is not None and self.number < 0

    @property
    def what(self) -> str:
        """What it parks."""
        return "topic" if self.is_of_topic else "key"

    @property
    def reason(self) -> str:
        """Why it waits."""
        if self.number is None:
            return "expired"
        if self.is_of_topic:
            return "parked"
        return "held" if self.head is None else "failed"


@dataclass(slots=True)
class KeyDrain:
    """One key whose messages are being published: how far, and what of it is in this batch."""

    lane: int
    number: int
    key: Key
    requested_at: float
    """Monotonic seconds."""
    pages: int = 0
    """How many times messages of it were produced."""
    reached: int = 0
    """The highest position of them."""
    since: int = 0
    """The place in front of which nothing of the key waits, as far as this session knows."""
    listed_to: int = 0
    """The highest place of the page that was announced."""
    is_announced: bool = False
    """Whether a page was announced by this session."""
    done: Collection[int] = ()
    """The ids of this batch that wait no longer: produced, or not to be published any more."""
    expired: Collection[int] = ()
    """The ids of this page that have expired: they leave the key, and wait for ever."""
    is_all: bool = False
    failed: Claim | None = None
    """The message that fails now; nothing behind it was produced."""
    is_put_off: bool = False
    """Whether its topic is closed: the key keeps its head and its request, and is drained after the topic."""

    @property
    def is_topic(self) -> bool:
        """Whether it is of a whole topic."""
        return self.number < 0

    def takes(self, claim: Claim) -> bool:
        """Return whether it goes on behind a message that parks its own key."""
        return self.is_topic and not claim.is_of_topic

    def waits_for(self, claim: Claim) -> bool:
        """Return whether it is of a key, and a message of it cannot be published because its topic is closed."""
        return claim.is_of_topic and not self.is_topic

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the key is left."""
        return self.is_all and self.failed is None


@dataclass(slots=True)
class Held:
    """The parked keys of a session's lanes, and how much is held behind them. A publisher adds to it."""

    keys: dict[Key, int] = field(default_factory=dict)
    """The number of each key."""
    topics: dict[tuple[int, str], int] = field(default_factory=dict)
    """Topics that are parked as a whole, by lane: the number of each."""
    topics_changed: int = 0
    """How often that has changed."""
    limited: set[tuple[int, str]] = field(default_factory=set)
    """Those that hold, or parked, too much while they could be published to: their keys are drained before them."""
    first_of: dict[int, int] = field(default_factory=dict)
    """By the number of a key: a place in front of which nothing waits for it; see `is_in_front`."""
    keys_of: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Parked keys by lane and topic; a message without queue and order key counts as one."""
    messages_of: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Messages that wait, by lane and topic; those that fail included."""
    drained: dict[int, int] = field(default_factory=dict)
    """Positions that this session has drained of keys, with their lanes, until all of the lane is read: a list that
    was made before may hold them, and does not know that they are published. A whole topic waits for its lists."""

    following: int | None = None
    """The number of the key that is being drained."""
    lowest: float = inf
    """The lowest place that was claimed for it since its last page was announced."""

    def join(self, claim: Claim) -> None:
        """Note that a message waits from now on."""
        if claim.number == self.following and claim.position < self.lowest:
            self.lowest = claim.position
        if claim.number is not None and claim.position < self.first_of.get(claim.number, 0):
            self.first_of[claim.number] = claim.position

    def is_in_front(self, number: int, position: int) -> bool:
        """Return whether a message is in front of all that waits for its key: the drain of its topic publishes it."""
        return position < self.first_of.get(number, 0)

    def behind(self, claim: Claim) -> Claim:
        """Return the claim of a message that fails: without a head if its key is parked, so that it joins that."""
        key = None if claim.head is None or claim.is_of_topic else claim.head.key
        number = None if key is None else self.keys.get(key)
        return claim if number is None else claim._replace(number=number, head=None)

    def park(self, key: Key, number: int, first: int = 0) -> None:
        """Hold the messages of a key, or topic, from now on; `first` is the lowest place of what waits for the key."""
        if number < 0:
            self.topics[key[:2]] = number
            self.topics_changed += 1
            return
        self.keys_of[key[:2]] += 1
        if key[2:] != (None, None):
            self.keys[key] = number
            self.first_of[number] = first

    def free(self, key: Key, number: int) -> None:
        """Hold the messages of a key, or of a topic, no more."""
        if number < 0:
            self.topics.pop(key[:2], None)
            self.limited.discard(key[:2])
            self.topics_changed += 1
        else:
            self.keys.pop(key, None)
            self.first_of.pop(number, None)
            self.keys_of[key[:2]] -= 1

    @property
    def is_empty(self) -> bool:
        """Whether no key is parked."""
        return not self.topics and not any(self.keys_of.values())

    def drop(self, lanes: Collection[int]) -> None:
        """Forget the keys of lanes."""
        for key in [key for key in self.keys if key[0] in lanes]:
            self.first_of.pop(self.keys.pop(key), None)
        for one in [one for one in self.topics if one[0] in lanes]:
            self.free((*one, None, None), self.topics[one])
        for counted in (self.keys_of, self.messages_of):
            for known in [known for known in counted if known[0] in lanes]:
                del counted[known]

    def full(self, lane: int, topic: str) -> Unpublishable | None:
        """Return why a topic may hold nothing more in a lane, and park no further key there; None: it may."""
        if self.messages_of[lane, topic] >= MOST_HELD:
            text = f"lane {lane} holds {MOST_HELD:,} messages of topic {topic!r} behind others that cannot be published"
            return Unpublishable("TOO_MANY_HELD", text)
        if self.keys_of[lane, topic] >= MOST_KEYS:
            text = f"lane {lane} has {MOST_KEYS:,} parked keys of topic {topic!r}; the next one failed, too"
            return Unpublishable("TOO_MANY_PARKED", text)
        return None

    def within_limits(self, claim: Claim) -> Claim:
        """Return the claim of a message that fails: it parks the whole topic where that may park no further key."""
        if claim.is_of_topic or claim.head is None:
            return claim
        lane, topic, *_ = claim.head.key
        if (full := self.full(lane, topic)) is None or topic.endswith(UNNAMED):
            return claim
        self.limited.add((lane, topic))
        error = f"{full}: {claim.head.error}"
        return claim._replace(number=-claim.id, head=Head((lane, topic, None, None), None, error))


@dataclass(slots=True)
class ParkedKeys:
    """The parked keys of a session's lanes, in memory and in the database."""

    conn: psycopg.Connection[Any]
    lease: Lease
    held: Held = field(default_factory=Held)
    announced: frozenset[int] = frozenset()
    """Lanes with drains of before that Kafka may have; another session holds their rows. No key of them is drained."""

    def load(self, lanes: Collection[int]) -> None:
        """Read the keys of lanes; drains that did not end leave their messages in doubt.

        Nothing of these lanes may be on the wire that is to be recorded.
        """
        self.held.drop(lanes)
        self.doubt_announced(lanes)
        values = {"lanes": array_text(lanes), **_KEPT}
        for number, lane, topic, queue, order_key, first in self.conn.execute(STATEMENTS["keys"], values):
            self.held.park((lane, topic, queue, order_key), number, first or 0)
        self.count(lanes)

    def doubt_announced(self, lanes: Collection[int]) -> None:
        """Note that Kafka may have what was announced in lanes and is not recorded; the requests stay."""
        values = {"epoch": self.lease.epoch, "owner": self.lease.owner, "lanes": array_text(lanes)}
        rows = self.conn.execute(STATEMENTS["end_drains"], values).fetchall()
        self.announced = self.announced.difference(lanes).union(lane for (lane,) in rows)

    def count(self, lanes: Collection[int]) -> None:
        """Count what waits in lanes of which nothing is on the wire, without what operators gave up meanwhile."""
        for known in [known for known in self.held.messages_of if known[0] in lanes]:
            del self.held.messages_of[known]
        for lane, topic, count in self.conn.execute(STATEMENTS["held"], {"lanes": array_text(lanes)}):
            self.held.messages_of[lane, topic] = count

    def requested(
        self, lanes: Iterable[int], without: Iterable[int] = (), open_: Collection[str] = ()
    ) -> KeyDrain | None:
        """Return the drain that was asked for first, of these lanes; not of the rows `without`, by their numbers.

        Of `open_` topics, which are parked and can be published to, those that are full wait for their keys.
        """
        full = {topic for lane, topic in self.held.topics if topic in open_ and self.held.full(lane, topic)}
        full |= {topic for _, topic in self.held.limited}
        values = {"lanes": array_text(lanes), "without": array_text(without), "full": [*full], **_KEPT}
        row = self.conn.execute(STATEMENTS["requested"], values, prepare=True).fetchone()
        return None if row is None else KeyDrain(row[1], row[0], row[1:5], time.monotonic() - row[5])

    def announce(self, drain: KeyDrain, most: int) -> array[int] | None:
        """Announce, committed, that the next messages of a key are published.

        A page begins behind what the drain has published, or at what has joined the key since, with a lower place
        (its transaction committed late). Only this session adds to its keys. A page that seems to be the last is
        listed once more from the first place, so that no key is freed by what the session remembers.

        Returns:
            Their ids, in order; None if that may not be done now.
        """
        held = self.held
        drain.since = int(min(drain.since, held.lowest)) if held.following == drain.number else 0
        ids = self._announce(drain, most)
        if ids is not None and drain.since and len(ids) < most:
            drain.since = 0
            ids = self._announce(drain, most)
        held.following, held.lowest = drain.number, inf
        return ids

    def _announce(self, drain: KeyDrain, most: int) -> array[int] | None:
        values = {
            "epoch": self.lease.epoch,
            "owner": self.lease.owner,
            "lane": drain.lane,
            "number": drain.number,
            "since": drain.since,
            "is_first": not drain.pages,
            "most": most,
        }
        row = self.conn.execute(STATEMENTS["announce"], values, prepare=True).fetchone()
        if row is None:
            return None
        drain.listed_to, drain.is_announced = row[2] or 0, True
        return array("q", row[1])

    def withdraw(self, lanes: Collection[int]) -> None:
        """End the announcements of lanes; nothing of them is on the wire, and all is recorded."""
        lanes = frozenset(lanes) - self.announced
        values = {"epoch": self.lease.epoch, "owner": self.lease.owner, "lanes": array_text(lanes)}
        self.conn.execute(STATEMENTS["withdraw"], values)
