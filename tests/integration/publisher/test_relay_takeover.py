"""What a relay finds when it takes over: progress in the middle of a backlog, or messages of another cluster."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session
from outbox_relay.testing.publishing import publish_all
from tests.support.kafka_records import read_topic
from tests.support.relay_in_process import publish
from tests.support.relay_session import relay_session, turn_until

Connection = psycopg.Connection[tuple[object, ...]]


def send(conn: Connection, topic: str, count: int, first: int = 0) -> None:
    conn.execute(
        "INSERT INTO outbox.message (topic, key, body) "
        "SELECT %s, 'k', convert_to(i::text, 'utf8') FROM generate_series(%s::int, %s::int) i",
        [topic, first, first + count - 1],
    )


def run_relay(dsn: str, bootstrap_servers: str, messages: int, *, page: int = 5_000) -> None:
    """Let a relay publish so many messages; one after it finds none that is left."""
    publish(dsn, bootstrap_servers, messages, page=page)
    assert publish_all(dsn, bootstrap_servers) == 0


def values(bootstrap_servers: str, topic: str) -> list[int]:
    return [int(record.value or b"") for record in read_topic(bootstrap_servers, topic)]


def test_a_takeover_that_stopped_in_a_backlog_repeats_nothing_that_is_recorded(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        send(conn, topic, 95)
    relay = Relay(RelayOptions(database, bootstrap_servers, page=10))

    def stop_early(session: Session) -> None:
        if session.counts.recorded:
            relay.stop()

    relay.on_turn = stop_early
    relay.run()
    assert 0 < len(values(bootstrap_servers, topic)) < 95
    with psycopg.connect(database) as conn:
        row = conn.execute("SELECT 95 - sum(cardinality(positions)) FROM outbox.publication").fetchone()
    assert row is not None
    run_relay(database, bootstrap_servers, row[0], page=10)
    assert values(bootstrap_servers, topic) == list(range(95))


def test_messages_restored_from_another_cluster_are_published_once_and_in_order(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        send(conn, topic, 20)
    run_relay(database, bootstrap_servers, 20)
    with psycopg.connect(database, autocommit=True) as conn:
        send(conn, topic, 30, first=20)
        # A dump carries xids as data: in a younger cluster they lie in the future, whether published or not.
        conn.execute("UPDATE outbox.message SET xid = (xid::text::bigint + 1000000000)::text::xid8")
        conn.execute("UPDATE outbox.lane SET system_identifier = 1, owner = NULL")
    run_relay(database, bootstrap_servers, 30, page=7)
    with psycopg.connect(database, autocommit=True) as conn:
        send(conn, topic, 5, first=50)
    run_relay(database, bootstrap_servers, 5, page=7)
    assert values(bootstrap_servers, topic) == list(range(55))


def test_a_transaction_open_across_a_restore_stays_behind_older_messages_of_its_key(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with psycopg.connect(database, autocommit=True) as conn, psycopg.connect(database) as producer:
        send(conn, topic, 20)
        conn.execute("UPDATE outbox.message SET xid = (xid::text::bigint + 1000000000)::text::xid8")
        conn.execute("UPDATE outbox.lane SET system_identifier = 1, timeline = 1, owner = NULL")
        send(producer, topic, 5, first=20)  # has its positions, and commits after the lanes were taken
        with relay_session(database, bootstrap_servers) as session:
            producer.commit()
            turn_until(session, lambda: session.counts.recorded >= 25, "all is published")
    assert values(bootstrap_servers, topic) == list(range(25))


def test_what_is_published_with_the_xid_of_a_running_transaction_stays_published(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with psycopg.connect(database, autocommit=True) as conn, psycopg.connect(database) as producer:
        send(conn, topic, 20)
        run_relay(database, bootstrap_servers, 20)
        send(producer, topic, 1, first=20)
        row = producer.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        # A restore from another cluster: the xids that came with it are data, and one of them runs here just now.
        conn.execute("UPDATE outbox.message SET xid = %s::text::xid8", [row[0]])
        conn.execute("UPDATE outbox.lane SET system_identifier = 1, timeline = 1, owner = NULL")
        conn.execute("UPDATE outbox.origin SET xid = '3'")
        with relay_session(database, bootstrap_servers) as session:
            for _ in range(20):
                session.run_once(0.005)
            producer.commit()
            turn_until(session, lambda: session.counts.recorded >= 1, "the new one is published")
            for _ in range(20):
                session.run_once(0.005)
    assert values(bootstrap_servers, topic) == list(range(21))


def test_the_sweep_publishes_what_was_only_recorded(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        send(conn, topic, 10)
        conn.execute(
            "UPDATE outbox.lane SET snapshot = pg_current_snapshot(), joined = 1000000, "
            "system_identifier = (SELECT system_identifier FROM pg_control_system())"
        )
    publish(database, bootstrap_servers, 10, sweep_every=0.2)
    assert values(bootstrap_servers, topic) == list(range(10))


REPLICATION = Path(__file__).resolve().parents[3] / "docs" / "operations" / "postgresql.md"


def test_a_copy_by_logical_replication_goes_on_after_the_pages_statement(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    (statement,) = re.findall(r"```sql\n(.*?;)\s*```", REPLICATION.read_text(encoding="utf-8"), re.DOTALL)
    with psycopg.connect(database, autocommit=True) as conn:
        send(conn, topic, 20)
        run_relay(database, bootstrap_servers, 20)
        # What a subscription leaves behind: the rows, of another cluster, and sequences that were never used.
        conn.execute("UPDATE outbox.lane SET system_identifier = 1")
        conn.execute("SELECT setval('outbox.position', 1, false), setval('outbox.epoch', 1, false)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            send(conn, topic, 1)
        conn.execute(statement)
        epochs = conn.execute("SELECT max(epoch) FROM outbox.lane").fetchone()
        send(conn, topic, 20, first=20)
        run_relay(database, bootstrap_servers, 20)
        assert epochs
        assert conn.execute("SELECT min(epoch) > %s FROM outbox.lane", epochs).fetchone() == (True,)
    assert values(bootstrap_servers, topic) == list(range(40))
