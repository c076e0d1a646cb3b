"""Partitions and the relay: what has no partition is not published, and what has one does not wait for others."""

from __future__ import annotations

import logging
import time

import psycopg
import pytest

from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.locks import holding
from tests.support.plain_inserts import Connection, connect, decide, insert
from tests.support.relay_in_process import publish
from tests.support.relay_session import loop_of
from tests.support.relay_thread import RelayThread

NO_PARTITION = "a message's position has no partition: nothing is published until one is made"
RECORDED = "SELECT count(*) FROM outbox.publication p, unnest(p.positions)"


def use_up_all_partitions(conn: Connection, *, beyond: int = 10) -> None:
    """Let inserts fail and burn positions, as a service that retries them does."""
    conn.execute("SELECT setval('outbox.position', (SELECT max(upper) - 1 FROM outbox.partition))")
    for _ in range(beyond):
        with pytest.raises(psycopg.errors.CheckViolation, match="no partition"):
            insert(conn, "orders", "k", "b")


def halves(conn: Connection, topic: str, count: int) -> list[str]:
    return [insert(conn, topic, "k", f"k:{i}", state="UNKNOWN", producer_group="g") for i in range(count)]


def test_a_decision_beyond_the_last_partition_is_published_once_and_recorded(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        undecided = halves(conn, topic, 3)
        use_up_all_partitions(conn)
        for half in undecided:
            assert decide(conn, half, "COMMITTED")
        publish(database, bootstrap_servers, 3)
        assert conn.execute(RECORDED).fetchone() == (3,)
        assert insert(conn, topic, "k", "k:3")
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"k:0", b"k:1", b"k:2"]


def test_nothing_without_a_partition_is_published_while_none_can_be_made(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn:
        (half,) = halves(conn, topic, 1)
        use_up_all_partitions(conn)
        assert decide(conn, half, "COMMITTED")
        with holding(database, "LOCK TABLE outbox.message IN SHARE UPDATE EXCLUSIVE MODE"):
            with RelayThread(database, bootstrap_servers) as relay:
                said = relay.wait_for(NO_PARTITION)
                assert said["sqlstate"] == "55P03"
            assert read_topic(bootstrap_servers, topic) == []
        publish(database, bootstrap_servers, 1)
        assert conn.execute(RECORDED).fetchone() == (1,)
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"k:0"]


def test_a_lock_against_new_partitions_delays_no_message_that_has_a_partition(
    database: str, bootstrap_servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database) as conn, caplog.at_level(logging.INFO, "outbox"):
        # One partition ahead is missing, so that there is something to make.
        conn.execute("SELECT setval('outbox.position', (SELECT max(lower) FROM outbox.partition))")
        insert(conn, topic, "k", "k:0")
        with holding(database, "LOCK TABLE outbox.message IN SHARE UPDATE EXCLUSIVE MODE"):
            publish(database, bootstrap_servers, 1)
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"k:0"]
    assert "partitions not made" in caplog.text


def test_the_relay_polls_on_when_every_partition_is_full(
    database: str, bootstrap_servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    relay = Relay(RelayOptions(database, bootstrap_servers))
    with connect(database) as conn, caplog.at_level(logging.INFO, "outbox"):
        insert(conn, topic, "k", "k:0")
        with holding(database, "LOCK TABLE outbox.message IN SHARE UPDATE EXCLUSIVE MODE"):
            alone, until = 0, time.monotonic() + 60

            def use_up(session: Session) -> None:
                nonlocal alone
                if conn.execute("SELECT last_value FROM outbox.position").fetchone() == (1,):
                    use_up_all_partitions(conn)
                # Transactions of other tests may hold it up; each turn takes the next step of leaving.
                conn.execute("SELECT pg_current_xact_id()")
                session._at.retire_at = 0.0
                alone += len(loop_of(session).reads.partitions.live) < 2
                if alone > 5 or "refused" in caplog.text or time.monotonic() > until:
                    relay.stop()

            relay.on_turn = use_up
            relay.run()
    assert alone > 5
    assert "refused" not in caplog.text
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"k:0"]
