"""Floods of messages that cannot be published: no limit stops a lane, and a healthy topic goes on meanwhile.

The limits are lowered, so that some hundred messages are a flood.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from outbox_relay.publisher import opening
from outbox_relay.publisher.core.values import Limits
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, stopped, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

MOST_HOLDS = 20
TO_QUEUES = """
    INSERT INTO outbox.message (topic, body, queue) SELECT %s, 'x', 1000 + g FROM generate_series(1, %s) g
"""
TO_QUEUES_OF_LANES = """
    INSERT INTO outbox.message (topic, body, queue, lane) SELECT %s, 'x', 1000 + g, g %% 8 FROM generate_series(1, %s) g
"""
TO_TOPICS = """
    INSERT INTO outbox.message (topic, key, body) SELECT %s || g, 'k', 'x' FROM generate_series(1, %s) g
"""
GIVEN_UP = ("--reason", "no such queue")
SKIPPED = "SELECT count(*) FROM outbox.message WHERE state = 'SKIPPED' AND remark = 'no such queue'"
PARKED_TOPICS = "SELECT count(*) FROM outbox.parked_key WHERE is_topic"
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"
WAITING = "SELECT count(*) FROM outbox.waiting"
PARKED = (
    "SELECT count(*) FILTER (WHERE NOT is_topic), count(*) FILTER (WHERE is_topic) FROM outbox.parked_key"
)


class Healthy:
    """A topic with keys in all lanes, to which a test goes on sending."""

    def __init__(self, conn: Connection, topic: str) -> None:
        self.conn, self.topic = conn, topic
        self.keys = keys_of_lanes(conn, topic, *range(8))
        self.sent = 0

    def send(self, rounds: int = 1) -> None:
        """Write a message of each key, so many times."""
        for _ in range(rounds):
            for key in self.keys:
                insert(self.conn, self.topic, key, f"{key}:{self.sent}")
            self.sent += 1

    def flows(self) -> None:
        """Go on sending, and see all of it published."""
        self.send(5)
        expected = (8 * self.sent,)
        wait_until(
            lambda: self.conn.execute(PUBLISHED, [self.topic]).fetchone() == expected,
            "the healthy topic flows",
        )

    def check(self, bootstrap_servers: str) -> None:
        """Check that every message arrived once, in order."""
        expected = [(key, version) for key in self.keys for version in range(self.sent)]
        found = compare(read_topic(bootstrap_servers, self.topic), expected)
        assert not found.broken
        assert found.duplicate_records == 0


@pytest.fixture
def healthy(database: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> Iterator[Healthy]:
    monkeypatch.setattr(opening, "Limits", partial(Limits, holds=MOST_HOLDS))
    with connect(database) as conn:
        yield Healthy(conn, make_topic(partitions=1))


@pytest.mark.parametrize("flood", [TO_QUEUES, TO_TOPICS], ids=["of queues", "of topics"])
def test_a_flood_by_one_transaction_of_a_producer_stops_no_lane(
    database: str, bootstrap_servers: str, topic: str, healthy: Healthy, flood: str
) -> None:
    """Messages to queues that do not exist, of a topic that is not registered; or each to a topic that Kafka lacks."""
    conn, size = healthy.conn, 400
    with RelayThread(database, bootstrap_servers) as relay:
        healthy.flows()
        with conn.transaction():
            conn.execute("SET LOCAL ROLE outbox_producer")
            conn.execute(flood, [topic if flood is TO_QUEUES else "user-", size])
        healthy.flows()
        wait_until(lambda: conn.execute(WAITING).fetchone() == (size,), "all of the flood waits")
        healthy.flows()
        assert not stopped(conn)
        assert not relay.find("lane stopped")
        assert not relay.find("delivery failed")
        row = conn.execute(PARKED).fetchone()
    assert row is not None
    keys, topics = row
    assert (keys, topics) == ((0, size) if flood is TO_TOPICS else (MOST_HOLDS, 8))
    healthy.check(bootstrap_servers)


def test_an_operator_gives_a_flood_up_at_once(
    database: str, bootstrap_servers: str, topic: str, healthy: Healthy
) -> None:
    """What is held behind it is published, and the topic goes on; failing messages of another topic stay."""
    conn, size = healthy.conn, MOST_HOLDS + 4
    with RelayThread(database, bootstrap_servers) as relay:
        healthy.flows()
        insert(conn, topic, "before", b"before:0")
        wait_published(conn)
        other = insert(conn, healthy.topic, None, b"x", queue=98, lane=3)
        conn.execute(TO_QUEUES_OF_LANES, [topic, size])
        keys = keys_of_lanes(conn, topic, *range(8))
        for key in keys:
            insert(conn, topic, key, f"{key}:0")
        relay.wait_for("key parked", message_id=other)
        wait_until(lambda: conn.execute(PARKED_TOPICS).fetchone() == (8,), "the topic is parked in all lanes")

        def given_up() -> bool:
            ran = outbox("holds", "skip", *GIVEN_UP, "--topic", topic, "--json", OUTBOX_DSN=database)
            assert ran.json["failed"] == [] or ran.code == 1  # a key that is drained at this moment is left
            return conn.execute(PARKED).fetchone() == (1, 0)

        wait_until(given_up, "all of it is given up")
        wait_published(conn)
        assert conn.execute(SKIPPED).fetchone() == (size,)
        assert not stopped(conn)
        healthy.flows()
    found = compare(read_topic(bootstrap_servers, topic), [("before", 0), *((key, 0) for key in keys)])
    assert not found.broken
    assert found.duplicate_records == 0
