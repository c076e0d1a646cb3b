"""A large backlog, as after an outage, drains in time linear in its size, in bounded memory, and in order."""

from __future__ import annotations

import statistics
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.plain_inserts import connect, insert_numbered
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.topic_parking import PAUSE, RESUME
from tests.support.waiting import wait_until

pytestmark = pytest.mark.scale

SIZES = (200_000, 1_000_000)
PAUSED = (300_000, 1_000_000)
"""Messages that wait for a paused topic."""
REPEATS = 3
PART = 10_000
"""Messages of one transaction."""
KEYS = 5_000
PARTITIONS = 4
MEMORY = 150 * 1_000_000
"""Bytes that a relay may take at its peak."""
WAITING = "SELECT count(*) FROM outbox.waiting WHERE reason = 'parked'"


class Check:
    """Reads numbered messages as they come and keeps no more of them than the newest of each key."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "check",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]

    def arrived(self) -> int:
        """How many records the topic has, by its high watermarks."""
        return sum(self._consumer.get_watermark_offsets(place, timeout=15)[1] for place in self._places)

    def read(self, count: int) -> None:
        """Read so many records; insist on every number once, ascending within its key."""
        newest: dict[bytes, int] = {}
        seen = bytearray(count)
        self._consumer.assign(self._places)
        for _ in range(0, count, 1_000):
            left = count - sum(seen)
            for message in self._consumer.consume(min(left, 1_000), timeout=30):
                key, value = message.key(), message.value()
                assert message.error() is None
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                number = int(value.rpartition(b":")[2])
                assert newest.get(key, -1) < number, f"{value!r} comes after {newest[key]}"
                newest[key] = number
                seen[number] = 1
        assert sum(seen) == count, f"{count - sum(seen)} messages are missing"

    def close(self) -> None:
        self._consumer.close()


def drain(dsn: str, bootstrap_servers: str, topic: str, size: int) -> tuple[float, int]:
    """Let a backlog pile up while no relay runs; answer the rate of its drain and the relay's memory."""
    with connect(dsn) as conn:
        with RelayProcess(dsn, bootstrap_servers) as relay:
            relay.wait_until_running()
            check = Check(bootstrap_servers, topic)
            insert_numbered(conn, topic, 1, keys=KEYS)
            wait_until(lambda: check.arrived() == 1, "the first message arrives")
            relay.stop()
        for start in range(1, size, PART):
            insert_numbered(conn, topic, min(PART, size - start), keys=KEYS, start=start)
        with RelayProcess(dsn, bootstrap_servers) as relay:
            relay.wait_until_running()
            begin = time.monotonic()
            wait_until(lambda: check.arrived() >= size, f"{size} messages arrive", seconds=300)
            rate = size / (time.monotonic() - begin)
            memory = relay.memory_peak()
            relay.stop()
    assert check.arrived() == size
    check.read(size)
    check.close()
    return rate, memory


def test_a_backlog_drains_in_time_linear_in_its_size_and_in_bounded_memory(
    make_database: MakeDatabase, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    rates: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(REPEATS):
        for size in SIZES:
            rate, memory = drain(make_database(), bootstrap_servers, make_topic(PARTITIONS), size)
            rates[size].append(rate)
            assert memory <= MEMORY, f"{memory / 1e6:.0f} MB for a backlog of {size}"
    small, large = (statistics.median(rates[size]) for size in SIZES)
    assert 0.7 <= large / small <= 1.5, f"messages/s: {rates}"


@pytest.mark.feature("S-38")
@pytest.mark.parametrize("size", PAUSED)
def test_a_paused_topic_keeps_its_backlog_in_bounded_memory_until_it_is_resumed(
    make_database: MakeDatabase, bootstrap_servers: str, make_topic: MakeTopic, size: int
) -> None:
    """The relay that held it ends; its successor reads what waits once more, and drains it when it is resumed."""
    dsn, topic = make_database(), make_topic(PARTITIONS)
    check = Check(bootstrap_servers, topic)
    figures: dict[str, float] = {}
    with connect(dsn) as conn:
        with RelayProcess(dsn, bootstrap_servers) as relay:
            relay.wait_until_running()
            insert_numbered(conn, topic, 1, keys=KEYS)
            wait_until(lambda: check.arrived() == 1, "the first message arrives")
            conn.execute(PAUSE, [topic])
            for start in range(1, size, PART):
                insert_numbered(conn, topic, min(PART, size - start), keys=KEYS, start=start)
            begin = time.monotonic()
            wait_until(
                lambda: conn.execute(WAITING).fetchone() == (size - 1,), "all of it waits", seconds=300
            )
            figures["held"] = time.monotonic() - begin
            figures["MB of the first"] = relay.memory_peak() / 1e6
            relay.stop()
        with RelayProcess(dsn, bootstrap_servers) as relay:
            relay.wait_until_running()
            begin = time.monotonic()
            conn.execute(RESUME, [topic])
            wait_until(lambda: check.arrived() >= size, f"{size} messages arrive", seconds=600)
            figures["drained"] = time.monotonic() - begin
            wait_until(lambda: conn.execute(WAITING).fetchone() == (0,), "nothing waits")
            figures["MB of the second"] = relay.memory_peak() / 1e6
            relay.stop()
    assert check.arrived() == size
    check.read(size)
    check.close()
    assert max(figures["MB of the first"], figures["MB of the second"]) * 1e6 <= MEMORY, figures
