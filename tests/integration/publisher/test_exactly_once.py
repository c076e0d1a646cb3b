"""Exactly-once delivery on real servers: the ordinary way, holds inside transactions, and changes of the mode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

EXACTLY = ("--delivery", "exactly-once", "--lease", "2")
AT_LEAST = ("--delivery", "at-least-once", "--lease", "2")
SHARD = "SELECT name, is_over FROM outbox.exactly_once"
MODES = "SELECT DISTINCT mode FROM outbox.lane"
LEASED = "SELECT max(leased_until) FROM outbox.lease"
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def has_changed(conn: Connection, leased: object) -> bool:
    """Return whether a lease was renewed."""
    return conn.execute(LEASED).fetchone() != leased


def check_once(servers: str, topic: str, committed: list[tuple[str, int]]) -> None:
    """Insist that each message came once, in order."""
    found = compare(read_topic(servers, topic), committed)
    assert not found.broken
    assert found.duplicate_records == 0


def run_until_published(database: str, servers: str, conn: Connection, *options: str) -> None:
    with RelayProcess(database, servers, *options) as relay:
        relay.wait_for("lanes taken")
        wait_published(conn)
        relay.stop()


@pytest.mark.feature("H-44")
def test_messages_come_once_and_few_intents_stay(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=3)
    insert_numbered(conn, topic, 500)
    with RelayProcess(database, bootstrap_servers, *EXACTLY) as relay:
        wait_published(conn)
        insert_numbered(conn, topic, 50, start=500)
        wait_published(conn)
        relay.stop()
    check_once(bootstrap_servers, topic, numbered(550))
    run_until_published(database, bootstrap_servers, conn, *EXACTLY)
    row = conn.execute("SELECT count(*) <= 2, min(batch) > 0 FROM outbox.intent").fetchone()
    assert row == (True, True), "intents of no more use are deleted"
    assert conn.execute(MODES).fetchall() == [("exactly-once",)]
    missing = "SELECT count(*) FROM outbox.publication, LATERAL unnest(offsets) o WHERE o IS NULL"
    assert conn.execute(missing).fetchone() == (0,)


def test_a_message_that_kafka_refuses_is_held_and_takes_no_other_with_it(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    """The topic takes less than the relay has read of it: only the broker finds that out, within a transaction."""
    topic, other = make_topic(partitions=1), make_topic(partitions=2)
    with RelayProcess(database, bootstrap_servers, *EXACTLY) as relay:
        insert(conn, topic, "good", "good:0")
        wait_published(conn)
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
        limit = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([limit])[limit].result(30)
        with conn.transaction():
            insert(conn, topic, "good", "good:1")
            insert(conn, topic, "large", "x" * 5000)
            insert(conn, topic, "large", "large:2")
            insert(conn, topic, "good", "good:2")
        insert_numbered(conn, other, 100)
        wait_until(lambda: conn.execute(PUBLISHED, [other]).fetchone() == (100,), "the other topic flows")
        wait_until(
            lambda: conn.execute(PUBLISHED, [topic]).fetchone() == (3,), "other keys of the topic flow"
        )
        held = "SELECT order_key, error LIKE 'MSG_SIZE_TOO_LARGE%%' FROM outbox.parked_key WHERE topic = %s"
        assert conn.execute(held, [topic]).fetchall() == [(b"large", True)]
        doubts = conn.execute(
            "SELECT count(*) FILTER (WHERE in_doubt), count(*) FROM outbox.waiting"
        ).fetchone()
        assert doubts == (0, 2), "what was refused, and what is behind it, is certainly not in Kafka"
        relay.stop()
    check_once(bootstrap_servers, other, numbered(100))
    check_once(bootstrap_servers, topic, [("good", 0), ("good", 1), ("good", 2)])


def test_the_mode_changes_both_ways_when_the_old_owner_is_done(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    insert_numbered(conn, topic, 100)
    with RelayProcess(database, bootstrap_servers, *AT_LEAST) as first:
        wait_published(conn)
        with RelayProcess(database, bootstrap_servers, *EXACTLY) as second:
            second.wait_for("standing by")
            insert_numbered(conn, topic, 100, start=100)
            wait_published(conn)
            first.stop()
            insert_numbered(conn, topic, 100, start=200)
            wait_published(conn)
            assert second.find("exactly-once delivery begins")
            with RelayProcess(database, bootstrap_servers, *AT_LEAST) as third:
                third.wait_for("standing by")
                second.stop()
                insert_numbered(conn, topic, 100, start=300)
                wait_published(conn)
                assert third.find("batches proven")
                third.stop()
    check_once(bootstrap_servers, topic, numbered(400))
    assert conn.execute(MODES).fetchall() == [("at-least-once",)]
    assert [is_over for _, is_over in conn.execute(SHARD)] == [True]


def test_a_killed_owner_is_proven_by_a_relay_of_the_other_mode(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    topic, number = make_topic(partitions=2), 0
    for options in (EXACTLY, AT_LEAST, EXACTLY):
        with RelayProcess(database, bootstrap_servers, *options) as relay:
            insert_numbered(conn, topic, 200, start=number)
            wait_published(conn)
            relay.kill()
        number += 200
    insert_numbered(conn, topic, 50, start=number)
    run_until_published(database, bootstrap_servers, conn, *AT_LEAST)
    check_once(bootstrap_servers, topic, numbered(number + 50))


def test_a_relay_that_pauses_and_delivers_at_least_once_is_waited_for(
    database: str, bootstrap_servers: str, conn: Connection, make_topic: MakeTopic
) -> None:
    """Nothing fences it: it may send when it goes on."""
    topic = make_topic(partitions=2)
    insert_numbered(conn, topic, 100)
    with RelayProcess(database, bootstrap_servers, *AT_LEAST) as first:
        wait_published(conn)
        first.pause()
        with RelayProcess(database, bootstrap_servers, *EXACTLY) as second:
            second.wait_for("waiting for a relay that delivers at least once", owner=str)
            insert_numbered(conn, topic, 100, start=100)
            for _ in range(2):  # it looks several times between two renewals of its lease
                renewed = partial(has_changed, conn, conn.execute(LEASED).fetchone())
                wait_until(renewed, "it renews its lease")
            assert conn.execute("SELECT max(epoch) FROM outbox.lane").fetchone() == (1,), "nothing was taken"
            first.go_on()
            wait_published(conn)
            first.stop()
            second.wait_for("lanes taken")
            second.stop()
    check_once(bootstrap_servers, topic, numbered(200))
