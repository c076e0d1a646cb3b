"""How a relay runs, and what its loops are made of: what outlives one set of lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox_relay.database.connections import connect
from outbox_relay.database.partitions_ahead import Room
from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.transactions import Transactions
from outbox_relay.publisher.core.values import NOWHERE, Limits
from outbox_relay.publisher.finder import PAGE, Finder
from outbox_relay.publisher.hands.at_least_once import AtLeastOnce
from outbox_relay.publisher.hands.exactly_once import ExactlyOnce, digest_of
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.hold_rows import STATEMENTS as HOLD_STATEMENTS
from outbox_relay.publisher.hands.hold_rows import HoldRows
from outbox_relay.publisher.hands.proving import Proving
from outbox_relay.publisher.hands.read_back import ReadingBack
from outbox_relay.publisher.hands.reads import Reads
from outbox_relay.publisher.hands.rows import Rows
from outbox_relay.publisher.hands.silence import PATIENCE_S, Silence
from outbox_relay.publisher.hands.spans import Begin, Spans
from outbox_relay.publisher.hands.topic_watch import TopicWatch
from outbox_relay.publisher.hands.wires import Wires
from outbox_relay.publisher.hands.writes import Writes
from outbox_relay.publisher.kafka import BATCH_BYTES, SPARE, new_admin
from outbox_relay.publisher.lease import STATEMENTS as LANE_STATEMENTS
from outbox_relay.publisher.lease import Lease, newest_position
from outbox_relay.publisher.loop import Loop
from outbox_relay.publisher.partitions import LivePartitions
from outbox_relay.publisher.prepared import PreparedStatements
from outbox_relay.publisher.read_ahead import ReadAhead
from outbox_relay.publisher.shard import ALL_LANES, Guarantee, Shard
from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.publisher.topics import PartitionProbe, TopicLookup
from outbox_relay.publisher.vitals import Counts
from outbox_relay.publisher.wal import Positions, PublishAfter, Quiet, Replication, can_ask_what_is_flushed
from outbox_relay.text.logs import Log

log = Log("relay")

BYTES = 256 << 20
"""Bytes of rows in memory; the largest row among them."""
LARGEST = 32 << 20


@dataclass(slots=True)
class RelayOptions:
    """How a relay runs; times in seconds."""

    dsn: str
    bootstrap_servers: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    lease: float = 10.0
    poll_min: float = 0.0015
    poll_max: float = 0.02
    page: int = PAGE
    shutdown_timeout: float = 30.0
    ack_timeout: float = PATIENCE_S
    report_every: float = 10.0
    sweep_every: float = 600.0
    publish_after: PublishAfter = PublishAfter.COMMITTED
    delivery: Guarantee = Guarantee.AT_LEAST_ONCE
    shard: Shard = ALL_LANES
    """The lanes that the relay may lead."""
    stalled_after: float = 60.0
    """Without a turn of its loop for so long, and without a statement that runs, the relay gives up its lanes."""
    begin_span: Begin | None = None
    """Begins the span of each batch; see outbox_relay/monitoring/batch_spans.py."""
    positions: Positions = field(default_factory=Positions)
    """Shared by the relays of a process."""

    def connect(self, purpose: str = "") -> psycopg.Connection[Any]:
        """Open a connection to PostgreSQL; its name there states what it is for."""
        name = f"outbox relay {purpose}".rstrip()
        return connect(self.dsn, application_name=name, silent_after=self.lease)


class Hands:
    """What loops are made of."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        lease: Lease,
        settings: Mapping[str, Any],
        options: RelayOptions,
        counts: Counts,
    ) -> None:
        """Prepare statements, and read which partitions there are.

        Args:
            conn: the loop's connection.
            lease: whose lanes loops publish.
            settings: of Kafka's producers.
            options: of the relay.
            counts: what the relay has done so far.
        """
        self.conn, self.lease, self.settings, self.counts = conn, lease, settings, counts
        self._page, self._begin_span = options.page, options.begin_span
        self.rows = Rows()
        self.ahead = ReadAhead(options.connect, options.page)
        lookup = TopicLookup(lambda: new_admin(settings))
        self.topics = TopicWatch(conn, lookup, lambda: options.connect("topics"), self.rows.topics)
        self.silence = Silence(
            lambda: PartitionProbe(lambda: new_admin(settings)), patience=options.ack_timeout
        )
        self.replication = Replication(conn, options.publish_after)
        self.statements = PreparedStatements(conn, self._has_session)
        self.partitions = LivePartitions(conn)
        self.room = Room(conn)
        self.asks = not self.replication.is_wanted and can_ask_what_is_flushed(conn)
        self.quiet = Quiet(self.statements, options.positions)

    def close(self) -> None:
        """Let go of threads and clients."""
        self.ahead.close()
        self.silence.close()
        self.topics.rest()

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
            self.conn, page=self._page, statements=self.statements, lease=self.lease if self.asks else None
        )
        reads = Reads(finder, self.partitions, self.ahead, lanes)
        proving = Proving(self.conn, self.lease, self.settings, self.partitions, floor, batch)
        proven = proving.run()
        if proving.is_doubted:
            doubted.update(dict.fromkeys(lanes, newest_position(self.conn)))
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
        page = self._page
        limits = Limits(page, 16 << 20, rows=6 * page, size=BYTES, largest=LARGEST, window=page)
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
        gates = Gates(core, self.topics, writes, wires if proven is None else proven[0])
        spans = Spans(self._begin_span)
        parts = (gates, self.silence, self.rows, self.counts, spans)
        delivery: AtLeastOnce | ExactlyOnce
        if proven is None:
            delivery = AtLeastOnce(core, wires, *parts)
        else:  # batches go out behind the last one that is proven
            in_transactions, last = proven
            batches = Transactions(last, core.streams, core.memory.limits, digest_of, self._room_of)
            core.transactions = batches
            delivery = ExactlyOnce(core, batches, in_transactions, writes, *parts)
        return Loop(
            core=core,
            rows=self.rows,
            reads=reads,
            writes=writes,
            delivery=delivery,
            gates=gates,
            topics=self.topics,
            replication=self.replication,
            counts=self.counts,
            spans=spans,
            room=self.room,
            read_back=ReadingBack(self.conn, self.lease, self.settings),
            doubted=doubted,
        )

    def _room_of(self, topic: str) -> int:
        """Return the bytes of one partition that a batch may have: Kafka's limit is one of requests to a partition."""
        known = self.topics.open.get(topic)
        limit = BATCH_BYTES if known is None else known.max_message_bytes
        return NOWHERE if limit >= BATCH_BYTES + SPARE else limit - SPARE
