"""How the outbox stands: backlog, oldest age and rates per topic and lane, what is held, waits or is undecided, alarms.

The backlog is the difference between now and the floor that the relay recorded, so that it costs the same
whether a thousand or a hundred million messages have been published.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, dict_row

from outbox.statements import Statements
from outbox_relay.operations import consumers, failovers, hold_groups, partitions
from outbox_relay.operations import groups as registry
from outbox_relay.operations.consumers import ConsumerTotals
from outbox_relay.operations.failovers import Failover
from outbox_relay.operations.groups import Alarm
from outbox_relay.operations.half_messages import OVERDUE_S
from outbox_relay.operations.hold_groups import HoldGroup
from outbox_relay.publisher.lease import read_floors
from outbox_relay.publisher.snapshot import BEGINNING, Floor

STATEMENTS = Statements("outbox_relay/operations/status.sql")
WINDOW_S = 10.0
"""Seconds over which rates are taken."""


@dataclass
class Share:
    """What belongs to one topic or lane: messages to publish, age in seconds of the oldest, messages/s (sampled)."""

    backlog: int = 0
    oldest: float | None = None
    published_per_second: float = 0.0

    def add(self, backlog: int, oldest: float | None) -> None:
        """Add a part of it."""
        self.backlog += backlog
        if oldest is not None:
            self.oldest = max(oldest, 0.0, self.oldest or 0.0)


@dataclass
class LaneStatus:
    """A lane's owner, the seconds left of its lease, and whether a relay of a version before holds has stopped it."""

    lane: int
    mode: str
    owner: str | None
    epoch: int
    lease: float | None
    is_stopped: bool
    share: Share = field(default_factory=Share)

    @property
    def state(self) -> str:
        """Return in a word whether the lane is being published."""
        if self.owner is None:
            return "no owner"
        return "running" if self.lease is not None and self.lease > 0 else "lease expired"


@dataclass(frozen=True)
class Waiting:
    """Committed messages that are delayed or have expired, by reason; next_due and oldest in seconds."""

    reason: str
    messages: int
    next_due: float | None
    oldest: float | None


@dataclass(frozen=True)
class Unsettled:
    """Messages in a state that somebody has to decide, by producer group; the oldest in seconds.

    Overdue ones are undecided, due for more than 10 s, and no checker has come to them.
    """

    state: str
    producer_group: str | None
    messages: int
    overdue: int
    oldest: float


@dataclass(frozen=True)
class GrownTopic:
    """A topic with more partitions in Kafka than are pinned."""

    name: str
    partitions: int
    partitions_in_kafka: int


@dataclass(frozen=True)
class NotProven:
    """A shard that is delivered exactly once, and whose last batch Kafka does not prove; for how many seconds."""

    shard: str
    age: float


@dataclass
class Status:
    """The outbox at one moment."""

    total: Share
    topics: dict[str | None, Share]
    lanes: list[LaneStatus]
    holds: list[HoldGroup]
    waiting: list[Waiting]
    unsettled: list[Unsettled]
    alarms: list[Alarm]
    grown: list[GrownTopic]
    partitions: partitions.Partitions
    failovers: list[Failover]
    not_proven: list[NotProven]
    consumers: ConsumerTotals
    window: float
    backlog_is_cut: bool = False
    """Whether the backlog is larger than what was counted."""


def look(conn: psycopg.Connection[Any], window: float = WINDOW_S, *, most: int | None = None) -> Status:
    """Read everything as of one moment; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection that is in no transaction.
        window: seconds over which rates are taken.
        most: messages of the backlog to count at most, the oldest first; None: all.
    """
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.read_only = True
    with conn.transaction():
        conn.execute(STATEMENTS["settings"])
        with conn.cursor(row_factory=class_row(LaneStatus)) as cursor:
            lanes = cursor.execute(STATEMENTS["lanes"]).fetchall()
        with conn.cursor(row_factory=class_row(Waiting)) as cursor:
            waiting = cursor.execute(STATEMENTS["waiting"]).fetchall()
        with conn.cursor(row_factory=class_row(GrownTopic)) as cursor:
            grown = cursor.execute(STATEMENTS["grown"]).fetchall()
        with conn.cursor(row_factory=class_row(NotProven)) as cursor:
            not_proven = cursor.execute(STATEMENTS["not_proven"]).fetchall()
        status = Status(
            total=Share(),
            topics=defaultdict(Share),
            lanes=lanes,
            holds=hold_groups.read(conn),
            waiting=waiting,
            unsettled=unsettled(conn),
            alarms=registry.alarms(conn),
            grown=grown,
            partitions=partitions.read(conn),
            failovers=failovers.everything(conn),
            not_proven=not_proven,
            consumers=consumers.totals(conn),
            window=window,
        )
        _backlog(conn, status, most)
        _rates(conn, status)
    return status


def unsettled(conn: psycopg.Connection[Any]) -> list[Unsettled]:
    """Count the messages that somebody has to decide."""
    with conn.cursor(row_factory=class_row(Unsettled)) as cursor:
        return cursor.execute(STATEMENTS["unsettled"], {"overdue": OVERDUE_S}).fetchall()


class LateTopic(NamedTuple):
    """A topic, its messages that are not published, and the age of the oldest in seconds."""

    name: str
    backlog: int
    oldest: float


def late_topics(conn: psycopg.Connection[Any], *, limit: float) -> list[LateTopic]:
    """Find the topics of which a message has waited for longer than `limit` seconds to be published.

    Args:
        conn: an autocommit connection that is in no transaction.
        limit: seconds.
    """
    topics: dict[str, Share] = defaultdict(Share)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with conn.transaction():
            conn.execute(STATEMENTS["settings"])
            for row in _differences(conn):
                topics[row["topic"]].add(row["messages"], row["oldest"])
    finally:
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return [
        LateTopic(name, share.backlog, share.oldest)
        for name, share in topics.items()
        if share.oldest is not None and share.oldest > limit
    ]


def _backlog(conn: psycopg.Connection[Any], status: Status, most: int | None) -> None:
    by_lane = {lane.lane: lane.share for lane in status.lanes}
    delayed = 0
    rows = _differences(conn, most)
    status.backlog_is_cut = most is not None and sum(row["messages"] + row["delayed"] for row in rows) >= most
    for row in rows:
        for share in (by_lane[row["lane"]], status.topics[row["topic"]], status.total):
            share.add(row["messages"], row["oldest"])
        delayed += row["delayed"]
    if delayed:
        known = [w for w in status.waiting if w.reason == "delayed"]
        others = [w for w in status.waiting if w.reason != "delayed"]
        sum_ = delayed + sum(w.messages for w in known)
        next_due = known[0].next_due if known else None
        status.waiting = [Waiting("delayed", sum_, next_due, known[0].oldest if known else None), *others]


def _differences(conn: psycopg.Connection[Any], most: int | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    # The lanes of one relay nearly always share their floor.
    groups: dict[Floor, list[int]] = defaultdict(list)
    from_start: list[int] = []
    for lane, floor in read_floors(conn).items():
        (from_start if floor.snapshot == BEGINNING else groups[floor]).append(lane)
    with conn.cursor(row_factory=dict_row) as cursor:
        # Here nearly every row is wanted, so it comes before indexes are preferred.
        if from_start:
            rows += cursor.execute(
                STATEMENTS["backlog_from_start"], {"lanes": from_start, "most": most}
            ).fetchall()
        if groups:
            cursor.execute(STATEMENTS["prefer_indexes"])
        for floor, lanes in groups.items():
            values = {
                "partial": floor.is_partial,
                "lanes": lanes,
                "epoch": floor.epoch,
                "xmin": str(floor.snapshot.xmin),
                "xmax": str(floor.snapshot.xmax),
                "xip": floor.snapshot.xip_array,
                "most": most,
            }
            before = cursor.execute(STATEMENTS["before_floor"], values).fetchone()
            values["before"] = None if before is None else before["batch"]
            rows += cursor.execute(STATEMENTS["backlog"], values).fetchall()
    return rows


def _rates(conn: psycopg.Connection[Any], status: Status) -> None:
    by_lane = {lane.lane: lane.share for lane in status.lanes}
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(STATEMENTS["published"], {"window": status.window}).fetchall()
    if not rows:
        return
    total = rows[0]["total"]
    weights = sum(row["weight"] for row in rows) or 1.0
    status.total.published_per_second = total / status.window
    for row in rows:
        rate = total / status.window * row["weight"] / weights
        status.topics[row["topic"]].published_per_second += rate
        if row["lane"] is not None:
            by_lane[row["lane"]].published_per_second += rate
