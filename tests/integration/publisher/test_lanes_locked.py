"""Locks of lanes that another session holds: named, and outlived."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from outbox_relay.publisher import lease
from outbox_relay.publisher.finder import prepare_session
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, wait_published
from tests.support.relay_thread import RelayThread

LOCKS = pytest.mark.parametrize(
    ("locks", "event"),
    [
        ("SELECT FROM outbox.lane FOR UPDATE", "lane row locked"),
        ("LOCK TABLE outbox.lease IN SHARE ROW EXCLUSIVE MODE", "the lanes are locked, waiting"),
    ],
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a taker see soon who holds the locks that it waits for."""
    monkeypatch.setattr(lease, "LOCK_WAIT_S", 0.1)


@LOCKS
def test_a_frozen_session_that_holds_the_lanes_locks_is_named_and_outlived(
    database: str, bootstrap_servers: str, topic: str, locks: LiteralString, event: str
) -> None:
    with connect(database) as conn:
        insert(conn, topic, "k", "k:0")
        with psycopg.connect(database, application_name="frozen relay", autocommit=True) as frozen:
            prepare_session(frozen, 0.7)
            frozen.execute("BEGIN")
            frozen.execute(locks)
            with RelayThread(database, bootstrap_servers) as relay:
                held_by = relay.wait_for(event)["held_by"]
                wait_published(conn)
                relay.stop()
                assert relay.error is None
            assert held_by[0].startswith(f"frozen relay (pid {frozen.info.backend_pid}, ")
            assert "idle in transaction" in held_by[0]
            with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
                frozen.execute("SELECT 1")
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"k:0"]


@LOCKS
def test_a_relay_that_waits_for_locks_of_the_lanes_stops_when_asked(
    database: str, bootstrap_servers: str, locks: LiteralString, event: str
) -> None:
    with psycopg.connect(database) as other:
        other.execute(locks)
        with RelayThread(database, bootstrap_servers) as relay:
            relay.wait_for(event)
            relay.stop()
            assert relay.error is None
