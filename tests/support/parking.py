"""A topic with a small limit: messages larger than it park their key; for tests that go turn by turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outbox.partitioning.lanes import lane_of
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, insert
from tests.support.relay_session import DEFAULTS, relay_session, turn_until

LIMIT = 10_000
REQUEST = "UPDATE outbox.parked_key SET requested_at = clock_timestamp()"
WAITING = "SELECT w.id, w.reason, w.in_doubt FROM outbox.waiting w ORDER BY w.place"
UNFINISHED = """
    SELECT count(*) FROM outbox.message_status
    WHERE state = 'COMMITTED' AND published_at IS NULL AND waiting IS NULL
"""


class Parking:
    """One topic with a small limit, and what a test does with it."""

    def __init__(self, conn: Connection, topic: str) -> None:
        self.conn = conn
        self.topic = topic
        conn.execute(
            "INSERT INTO outbox.topic (name, partitions, max_message_bytes) VALUES (%s, 1, %s)",
            [topic, LIMIT],
        )
        # Two keys of one lane.
        one, other, *_ = (f"k{n}" for n in range(200) if lane_of(topic, None, f"k{n}".encode()) == 3)
        self.bad, self.good = one, other

    def send(self, key: str, *versions: int, poison: bool = False) -> None:
        """Write messages of a key; a poisonous one is larger than its topic takes (the table trusts a stated lane)."""
        for version in versions:
            insert(
                self.conn,
                self.topic,
                key,
                f"{key}:{version}",
                lane=lane_of(self.topic, None, key.encode()),
                headers='{"much": "%s"}' % ("x" * LIMIT) if poison else None,
            )

    def fail(self, session: Session, *behind: int) -> None:
        """Park the bad key at its version 0, and hold these versions behind it."""
        self.send(self.bad, 0, poison=True)
        self.send(self.bad, *behind)
        self.settle(session)

    def repair(self) -> None:
        """Let the topic take the messages that it refused."""
        self.conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000000 WHERE name = %s", [self.topic])

    def request(self) -> None:
        """Ask for the drain of what is parked."""
        self.conn.execute(REQUEST)

    @property
    def reasons(self) -> list[str]:
        return [row[1] for row in self.conn.execute(WAITING)]

    @property
    def doubtful(self) -> list[bool]:
        return [row[2] for row in self.conn.execute(WAITING)]

    @property
    def head(self) -> str:
        row = self.conn.execute(
            "SELECT m.message_id::text FROM outbox.message m JOIN outbox.parked_key k ON k.head = m.id"
        ).fetchone()
        assert row is not None
        return str(row[0])

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        return self.conn.execute(
            "SELECT topic, order_key, error FROM outbox.parked_key ORDER BY number"
        ).fetchall()

    def is_done(self) -> bool:
        """Whether everything that may be published is recorded."""
        return self.conn.execute(UNFINISHED).fetchone() == (0,)

    def settle(self, session: Session) -> None:
        """Let the relay publish all that flows."""
        turn_until(session, lambda: self.is_done() and not session.unsettled, "all that flows is recorded")

    def drain(self, session: Session) -> None:
        """Let the relay publish what is parked, and what came behind it."""
        turn_until(session, lambda: not self.keys, "the keys are drained")
        self.settle(session)
        assert self.reasons == []

    def publish(self, session: Session) -> None:
        """Repair the cause, and let the relay publish all of it."""
        self.repair()
        self.request()
        self.drain(session)


@contextmanager
def relay(
    database: str, bootstrap_servers: str, *, clean: bool = True, kafka: Mapping[str, str] = DEFAULTS
) -> Iterator[Session]:
    with relay_session(database, bootstrap_servers, clean=clean, kafka=kafka) as session:
        yield session


def check(bootstrap_servers: str, parking: Parking, bad: int, good: int, *, repeated: bool = False) -> None:
    """Check that both keys arrived from version 0 on, in order, none missing; and nothing twice, or `repeated`."""
    expected = [(parking.bad, n) for n in range(bad)] + [(parking.good, n) for n in range(good)]
    found = compare(read_topic(bootstrap_servers, parking.topic), expected)
    assert not found.broken
    assert repeated or found.duplicate_records == 0
