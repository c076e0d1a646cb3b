"""What loops are made of: connections, statements and settings that outlive one set of lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox_relay.database.partitions_ahead import Room
from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.transactions import Transactions
from outbox_relay.publisher.core.values import NOWHERE, Limits, Proof
from outbox_relay.publisher.counts import Counts
from outbox_relay.publisher.finder import Finder
from outbox_relay.publisher.hands.exactly_once import ExactlyOnce, digest_of
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.hold_rows import STATEMENTS as HOLD_STATEMENTS
from outbox_relay.publisher.hands.hold_rows import HoldRows
from outbox_relay.publisher.hands.proving import Proving
from outbox_relay.publisher.hands.read_back import ReadBack
from outbox_relay.publisher.hands.reads import Reads
from outbox_relay.publisher.hands.rows import Rows
from outbox_relay.publisher.hands.silence import Silence
from outbox_relay.publisher.hands.spans import Begin, Spans
from outbox_relay.publisher.hands.topic_watch import TopicWatch
from outbox_relay.publisher.hands.transactional import TransactionalWires
from outbox_relay.publisher.hands.wires import Wires
from outbox_relay.publisher.hands.writes import Writes
from outbox_relay.publisher.kafka import BATCH_BYTES
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.local_wal import Positions, Quiet, can_ask_what_is_flushed
from outbox_relay.publisher.loop import Loop
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.prepared import PreparedStatements
from outbox_relay.publisher.producers import SPARE
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
        proving = Proving(self.conn, self.lease, self.settings, self.partitions, floor, batch)
        proven = proving.run()
        if proving.is_doubted:
            doubted.update(dict.fromkeys(lanes, self._newest()))
        holds = HoldRows(self.conn, lanes)
        if holds.mixed:
            log.warning(
                "partitions are held by different counts: their topics wait", topics=sorted(holds.mixed)
            )
            values = {**self.lease.ownership(lanes), "topics": list(holds.mixed)}
            self.conn.execute(HOLD_STATEMENTS["widen"], values)
            holds = HoldRows(self.conn, lanes)
        writes = Writes(
            self.conn, self.lease, self.statements, reads, holds, self.rows.errors, floor, batch=proving.batch
        )
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
        wires = Wires(self.settings, self.topics.open) if proven is None else proven[0]
        gates = Gates(core, self.topics, writes, wires)
        spans = Spans(self.begin_span)
        return Loop(
            core=core,
            rows=self.rows,
            reads=reads,
            writes=writes,
            wires=wires,
            gates=gates,
            topics=self.topics,
            silence=self.silence,
            replication=self.replication,
            counts=self.counts,
            spans=spans,
            room=self.room,
            read_back=ReadBack(self.conn, self.lease, self.settings),
            doubted=doubted,
            exactly=None if proven is None else self._exactly(core, proven, writes, gates, spans),
        )

    def _exactly(
        self,
        core: Core,
        proven: tuple[TransactionalWires, Proof],
        writes: Writes,
        gates: Gates,
        spans: Spans,
    ) -> ExactlyOnce:
        """Let a core send batches, behind the last one that is proven."""
        wires, last = proven
        batches = Transactions(last, core.streams, core.memory.limits, digest_of, self._room_of)
        core.transactions = batches
        return ExactlyOnce(core, batches, wires, writes, gates, self.silence, self.rows, self.counts, spans)

    def _room_of(self, topic: str) -> int:
        """Return the bytes of one partition that a batch may have: Kafka's limit is one of requests to a partition."""
        known = self.topics.open.get(topic)
        limit = BATCH_BYTES if known is None else known.max_message_bytes
        return NOWHERE if limit >= BATCH_BYTES + SPARE else limit - SPARE

    def _newest(self) -> int:
        row = self.conn.execute(LANE_STATEMENTS["newest"]).fetchone()
        assert row is not None  # noqa: S101  (a sequence has a value)
        return int(row[0])
