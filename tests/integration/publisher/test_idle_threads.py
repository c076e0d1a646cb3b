"""A relay that has nothing to do keeps two threads: its loop, and the one that renews its lease."""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox_relay.database import periodic
from outbox_relay.publisher.hands import topic_watch
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, insert_numbered, numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until

MOST = 2


def threads() -> int:
    """Count the threads of this process, those of Kafka's clients included."""
    return len([*Path("/proc/self/task").iterdir()])


def test_an_idle_relay_lets_go_of_its_threads_and_publishes_when_a_message_comes(
    database: str, bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "FORGET_S", 1.0)
    monkeypatch.setattr(topic_watch, "REFRESH_S", 0.5)
    periodic.CLOCK.end(periodic.CLOCK.at(0.0, print))  # its thread is the process's
    before = threads()
    with RelayThread(database, bootstrap_servers) as relay, connect(database) as conn:
        relay.wait_for("lanes taken")
        for start in (0, 50):
            wait_until(lambda: threads() <= before + MOST, "nothing but the loop and the lease is left")
            insert_numbered(conn, topic, 50, start=start)
            wait_published(conn)
        wait_until(lambda: threads() <= before + MOST, "nothing but the loop and the lease is left")
    assert not compare(read_topic(bootstrap_servers, topic), numbered(100)).broken
