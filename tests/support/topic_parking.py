"""Two topics whose messages share lanes, of which one is paused or missing; for tests that go turn by turn."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from outbox.partitioning.lanes import lane_of
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, insert
from tests.support.relay_session import turn_until
from tests.support.topics import Topics

PAUSE = """
    UPDATE outbox.topic SET paused_at = clock_timestamp(), paused_by = 'a test', pause_reason = 'to see' WHERE name = %s
"""
RESUME = "UPDATE outbox.topic SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE name = %s"
UNFINISHED = """
    SELECT count(*) FROM outbox.message_status
    WHERE state = 'COMMITTED' AND published_at IS NULL AND waiting IS NULL
"""
LANES = (3, 5)


class TopicParking:
    """A topic that is parked, `sick`, and one that flows, `well`: two keys each, in the same two lanes."""

    def __init__(self, conn: Connection, bootstrap_servers: str, *, missing: bool = False) -> None:
        self.conn = conn
        self.servers = bootstrap_servers
        self.sick, self.well = (f"parking-{uuid.uuid4().hex[:12]}" for _ in range(2))
        topics = Topics(bootstrap_servers)
        for name in (self.well,) if missing else (self.sick, self.well):
            topics.make_named(name, 1)
            conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 1)", [name])
        self.keys = {name: [self._key(name, lane) for lane in LANES] for name in (self.sick, self.well)}
        self.sent = 0

    @staticmethod
    def _key(topic: str, lane: int) -> str:
        return next(f"k{n}" for n in range(1_000) if lane_of(topic, None, f"k{n}".encode()) == lane)

    def send(self, count: int = 1, topics: Iterable[str] = ()) -> None:
        """Write the next messages of each key, of both topics or of those named."""
        for version in range(self.sent, self.sent + count):
            for topic in topics or (self.sick, self.well):
                for key in self.keys[topic]:
                    insert(self.conn, topic, key, f"{key}:{version}")
        self.sent += count

    def pause(self) -> None:
        self.conn.execute(PAUSE, [self.sick])

    def resume(self) -> None:
        self.conn.execute(RESUME, [self.sick])

    @property
    def reasons(self) -> list[str]:
        rows = self.conn.execute("SELECT reason FROM outbox.waiting ORDER BY place")
        return [reason for (reason,) in rows]

    @property
    def parked(self) -> list[tuple[Any, ...]]:
        """The lanes in which topics are parked, with why."""
        return self.conn.execute(
            "SELECT lane, topic, split_part(error, ':', 1) FROM outbox.parked_key WHERE is_topic ORDER BY lane"
        ).fetchall()

    @property
    def of_keys(self) -> int:
        (count,) = self.conn.execute(
            "SELECT count(*) FROM outbox.parked_key WHERE NOT is_topic"
        ).fetchone() or (0,)
        return int(count)

    def is_settled(self) -> bool:
        """Whether everything that may be published is recorded."""
        return self.conn.execute(UNFINISHED).fetchone() == (0,)

    def is_published(self, topic: str, count: int) -> bool:
        """Whether so many messages of a topic are published."""
        query = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"
        return self.conn.execute(query, [topic]).fetchone() == (count,)

    def settle(self, session: Session) -> None:
        turn_until(session, lambda: self.is_settled() and not session.unsettled, "all that flows is recorded")

    def follow(self, session: Session) -> None:
        """Let the relay notice what has changed of the topics."""
        (wanted,) = self.conn.execute("SELECT generation FROM outbox.topic_generation").fetchone() or (0,)
        turn_until(session, lambda: session._hands.topics.generation == wanted, "the relay has seen it")

    def drain(self, session: Session) -> None:
        """Let the relay publish what waits for the topic."""
        turn_until(session, lambda: not self.parked, "the topic is drained")
        self.settle(session)

    def another_key(self, lane: int) -> str:
        """Return a third key of the parked topic, of this lane."""
        keys = (f"j{n}" for n in range(1_000))
        return next(key for key in keys if lane_of(self.sick, None, key.encode()) == lane)

    def check(
        self,
        topic: str,
        versions: Iterable[int],
        *,
        repeated: bool = False,
        also: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Check that these versions of both keys arrived in order, none missing; and nothing twice, or `repeated`."""
        versions = list(versions)
        expected = [(key, version) for key in self.keys[topic] for version in versions] + list(also)
        found = compare(read_topic(self.servers, topic), expected)
        assert not found.broken
        assert repeated or found.duplicate_records == 0
