"""A snapshot held open and a writer left open make the relay neither slow nor slower as time goes on."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from psycopg import sql

from outbox_relay.publisher.finder import Finder, Slice
from tests.support.bare_reader import Reading
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until

PART = 500
"""Messages of one transaction."""
WINDOW = 60_000
"""Messages whose drain is one measurement."""
PAIRS = 24


@contextmanager
def held(dsn: str, topic: str) -> Iterator[None]:
    """Keep a snapshot and a transaction that has written a message open until the end of the block."""
    with psycopg.connect(dsn) as reader, psycopg.connect(dsn) as writer:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM outbox.message")
        insert(writer, topic, "open", "open:1")
        yield
        writer.rollback()


class Arrivals:
    """How many records a topic of one partition has, by its high watermark."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._place = TopicPartition(topic, 0)
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": "arrivals", "log_level": 0}
        )

    def count(self) -> int:
        return int(self._consumer.get_watermark_offsets(self._place, timeout=15)[1])

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.count() >= count, f"{count} records arrive")

    def close(self) -> None:
        self._consumer.close()


def pages_touched(finder: Finder, reading: Reading) -> int:
    """Buffers that one poll of the finder's own statement touches, from the newest snapshot on."""
    snapshot = reading.finder.here()[0]
    finder.name_partitions(reading.partitions.tables)
    values = finder.poll_values(snapshot, Slice(frozenset(range(8))))
    explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + finder.poll_statement(
        Slice(frozenset(range(8)))
    )
    row = finder.conn.execute(explain, values).fetchone()
    assert row is not None
    answer: Any = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    plan = answer[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def insert_parts(conn: Connection, topic: str, count: int) -> None:
    for start in range(0, count, PART):
        insert_numbered(conn, topic, PART, start=start)


@pytest.mark.feature("S-35")
def test_a_poll_under_a_held_snapshot_touches_no_more_pages_as_more_is_published(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    arrivals = Arrivals(bootstrap_servers, topic)
    reading = Reading(database, page=5_000)
    with (
        connect(database) as conn,
        RelayProcess(database, bootstrap_servers) as relay,
        held(database, topic),
    ):
        touched = []
        for total in (2_000, 10_000, 30_000):
            insert_parts(conn, topic, total - arrivals.count())
            arrivals.wait_for(total)
            touched.append(min(pages_touched(reading.finder, reading) for _ in range(5)))
        relay.stop()
    reading.close()
    arrivals.close()
    # An index of the tree may have grown by a level meanwhile: one page more for each of its scans.
    assert touched[-1] <= touched[0] + 2 * 8 * len(reading.partitions.tables), touched
    assert touched[-1] < 100, touched


class Line:
    """A database, its relay and its topic."""

    def __init__(self, dsn: str, bootstrap_servers: str, topic: str, relay: RelayProcess) -> None:
        self.relay, self.topic = relay, topic
        self.conn = connect(dsn)
        self.arrivals = Arrivals(bootstrap_servers, topic)
        self.rates: list[float] = []

    def measure(self) -> None:
        """Drain one window: written while the relay is paused, for less than its lease."""
        before = self.arrivals.count()
        self.relay.pause()
        insert_parts(self.conn, self.topic, WINDOW)
        begin = time.monotonic()
        self.relay.go_on()
        self.arrivals.wait_for(before + WINDOW)
        self.rates.append(WINDOW / (time.monotonic() - begin))

    def close(self) -> None:
        self.conn.close()
        self.arrivals.close()


@pytest.mark.long
def test_the_rate_stays_with_a_snapshot_and_a_writer_held_for_minutes(
    make_database: MakeDatabase, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """Two databases, one with the hold from beginning to end; windows alternate, medians are compared."""
    held_database, free_database = make_database(), make_database()
    held_topic, free_topic = make_topic(partitions=1), make_topic(partitions=1)
    options = ("--lease", "60")
    with (
        RelayProcess(held_database, bootstrap_servers, *options) as one,
        RelayProcess(free_database, bootstrap_servers, *options) as other,
        held(held_database, held_topic),
    ):
        lines = [
            Line(held_database, bootstrap_servers, held_topic, one.wait_until_running()),
            Line(free_database, bootstrap_servers, free_topic, other.wait_until_running()),
        ]
        for number in range(PAIRS):
            for line in lines if number % 2 else reversed(lines):
                line.measure()
        one.stop()
        other.stop()
    for line in lines:
        line.close()
    under_hold, free = (statistics.median(line.rates[2:]) for line in lines)
    assert under_hold >= 0.95 * free, f"{under_hold:.0f} of {free:.0f} messages/s"
