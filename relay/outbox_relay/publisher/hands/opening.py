"""What loops are made of: connections, statements and settings that outlive one set of lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox_relay.database.partitions_ahead import Room
from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Limits
from outbox_relay.publisher.counts import Counts
from outbox_relay.publisher.finder import Finder
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.hold_rows import STATEMENTS as HOLD_STATEMENTS
from outbox_relay.publisher.hands.hold_rows import HoldRows
from outbox_relay.publisher.hands.read_back import ReadBack
from outbox_relay.publisher.hands.reads import Reads
from outbox_relay.publisher.hands.rows import Rows
from outbox_relay.publisher.hands.silence import Silence
from outbox_relay.publisher.hands.spans import Begin, Spans
from outbox_relay.publisher.hands.topic_watch import TopicWatch
from outbox_relay.publisher.hands.wires import Wires
from outbox_relay.publisher.hands.writes import Writes
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.local_wal import Positions, Quiet, can_ask_what_is_flushed
from outbox_relay.publisher.loop import Loop
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.prepared import PreparedStatements
from outbox_relay.publisher.read_ahead import ReadAhead
from outbox_relay.publisher.replication import Replication
from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.text.logs import Log

log = Log("relay")

BYTES = 256 << 20
"""Bytes of rows in memory; the largest row among them."""
LARGEST = 32 << 20


@dataclass(slots=True)
class Hands:
    """What loops are made of."""

    conn: psycopg.Connection[Any]
    lease: Lease
    ahead: ReadAhead
    silence: Silence
    topics: TopicWatch
    replication: Replication
    rows: Rows
    settings: Mapping[str, Any]
    page: int
    positions: Positions
    begin_span: Begin | None = None
    counts: Counts = field(default_factory=Counts)
    statements: PreparedStatements = field(init=False)
    partitions: LivePartitions = field(init=False)
    room: Room = field(init=False)
    asks: bool = field(init=False)
    quiet: Quiet = field(init=False)

    def __post_init__(self) -> None:
        """Prepare statements, and read which partitions there are."""
        self.statements = PreparedStatements(self.conn, self._has_session)
        self.partitions = LivePartitions(self.conn)
        self.room = Room(self.conn)
        self.asks = not self.replication.is_wanted and can_ask_what_is_flushed(self.conn)
        self.quiet = Quiet(self.statements, self.positions)

    def _has_session(self) -> bool:
        """Return whether the session is that in which the lease began, with its settings."""
        return self.conn.execute(LANE_STATEMENTS["session_mark"]).fetchone() == (str(self.lease.epoch),)

    def open(self, floor: Snapshot, doubted: dict[int, int], batch: int) -> Loop:
        """Begin a loop for the lanes that the lease has.

        Args:
            floor: everything that it sees of these lanes is published, or waits.
            doubted: by lane, up to which position Kafka may have what has no publication.
            batch: of the last publication of this epoch.
        """
        lanes = frozenset(self.lease.lanes)
        self.silence.calm()
        self.topics.closed.clear()  # they are read, and held, when they are used, or their holds tried
        self.partitions.revive()  # rows of other lanes may lie in partitions that held nothing for these
        finder = Finder(
            self.conn, page=self.page, statements=self.statements, lease=self.lease if self.asks else None
        )
        reads = Reads(finder, self.partitions, self.ahead, lanes)
        holds = HoldRows(self.conn, lanes)
        if holds.mixed:
            log.warning(
                "partitions are held by different counts: their topics wait", topics=sorted(holds.mixed)
            )
            values = {**self.lease.ownership(lanes), "topics": list(holds.mixed)}
            self.conn.execute(HOLD_STATEMENTS["widen"], values)
            holds = HoldRows(self.conn, lanes)
        writes = Writes(self.conn, self.lease, self.statements, reads, holds, self.rows.errors, batch=batch)
        writes.end_announcements()
        reads.learn_groups({scope.topic for scope in holds.by_scope})
        limits = Limits(
            page=self.page,
            page_size=16 << 20,
            rows=6 * self.page,
            size=BYTES,
            largest=LARGEST,
            window=self.page,
        )
        known = self.topics.open.values()
        counts = {topic.name: (topic.partitions, topic.selector) for topic in known}
        core = Core(
            floor,
            holds.first,
            {**counts, **holds.counts},  # R9: what waits for a partition is drained before its topic moves
            self.rows.partition_of,
            group_of=reads.group_of,
            skip_ahead=frozenset(topic.name for topic in known if topic.skip_ahead),
            limits=limits,
            is_unclean=False,  # each row comes with its own doubt
        )
        holds.counts = core.topics.counts
        for name, count in counts.items():
            core.set_count(name, count)
        wires = Wires(self.settings, self.topics.open)
        return Loop(
            core=core,
            rows=self.rows,
            reads=reads,
            writes=writes,
            wires=wires,
            gates=Gates(core, self.topics, writes, wires),
            topics=self.topics,
            silence=self.silence,
            replication=self.replication,
            counts=self.counts,
            spans=Spans(self.begin_span),
            room=self.room,
            read_back=ReadBack(self.conn, self.lease, self.settings),
            doubted=doubted,
        )
