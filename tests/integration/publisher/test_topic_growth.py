"""Partitions that are added in Kafka move no key, and operators hear of them."""

from __future__ import annotations

import pytest

from outbox_relay.publisher.hands import topic_watch
from tests.support.alarm_turns import take_turn
from tests.support.kafka_records import compare, read_topic
from tests.support.locks import holding
from tests.support.logins import Logins
from tests.support.moved_keys import grow
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert_numbered, numbered, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until

NOTICE = "SELECT cause, detail, cleared_at IS NULL FROM outbox.notice WHERE kind = 'topic_grown'"
SEEN = "SELECT partitions, partitions_in_kafka FROM outbox.topic WHERE name = %s"

STATED = """
    SELECT partitions_in_kafka > partitions
        AND (SELECT min(topics_seen - pg_catalog.cardinality(topics_behind)) FROM outbox.lease) = g.generation
    FROM outbox.topic, outbox.topic_generation g
"""
PARKED = "SELECT count(*) FROM outbox.waiting WHERE reason = 'parked'"
ALL = "SELECT count(*) FROM outbox.message_status WHERE status = 'PUBLISHED'"


@pytest.mark.feature("H-15")
def test_growth_in_kafka_moves_no_key_and_is_a_problem_until_it_is_pinned(
    conn: Connection,
    database: str,
    bootstrap_servers: str,
    topic: str,
    *,
    logins: Logins,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_watch, "REFRESH_S", 0.05)
    with RelayThread(logins.make("outbox_relay"), bootstrap_servers) as relay:
        insert_numbered(conn, topic, 100)
        wait_published(conn)
        row = conn.execute(SEEN, [topic]).fetchone()
        assert row is not None
        pinned, seen = row
        assert seen == pinned
        take_turn(database)
        assert conn.execute(NOTICE).fetchall() == []
        with holding(database, "SELECT FROM outbox.topic FOR UPDATE"):
            grow(bootstrap_servers, topic, pinned + 3)
            # An operator changes the topic at this moment: publishing goes on, and does not wait for that.
            relay.wait_for("topic has grown", topic=topic, pinned=pinned, in_kafka=pinned + 3)
            insert_numbered(conn, topic, 100, start=100)
            wait_published(conn)
            assert conn.execute(SEEN, [topic]).fetchone() == (pinned, pinned)
        wait_until(
            lambda: conn.execute(SEEN, [topic]).fetchone() == (pinned, pinned + 3), "the growth is written"
        )
        records = read_topic(bootstrap_servers, topic)
        assert not compare(records, numbered(200)).broken
        assert max(record.partition for record in records) < pinned
        ran = outbox("status", "--check", OUTBOX_DSN=database)
        assert (ran.code, f"topic {topic} has {pinned + 3} partitions in Kafka" in ran.out) == (1, True)
        take_turn(database)
        assert conn.execute(NOTICE).fetchall() == [
            (
                f"topic {topic}",
                f"{pinned + 3} partitions in Kafka, pinned to {pinned}: no key moves, and the new ones stay empty",
                True,
            )
        ]
        succeed(
            *("topic", "alter", topic, "--partitions", str(pinned + 3), "--move-keys"),
            OUTBOX_DSN=database,
            OUTBOX_BOOTSTRAP_SERVERS=bootstrap_servers,
        )
        take_turn(database)
        assert [row[2] for row in conn.execute(NOTICE).fetchall()] == [False]
        assert outbox("status", "--check", OUTBOX_DSN=database).code == 0


def test_a_topic_may_pause_when_it_grows_and_goes_on_when_its_partitions_are_used(
    conn: Connection, database: str, bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "REFRESH_S", 0.05)
    given = {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}
    with RelayThread(database, bootstrap_servers, lease=1.5) as relay:
        insert_numbered(conn, topic, 50)
        wait_published(conn)
        assert succeed("topic", "on-growth", topic, "pause", "--json", **given).json["changed"] is True
        assert "as it was" in succeed("topic", "on-growth", topic, "pause", **given).out
        (pinned,) = conn.execute("SELECT partitions FROM outbox.topic").fetchone() or (0,)
        insert_numbered(conn, topic, 50, start=50)
        wait_published(conn)
        grow(bootstrap_servers, topic, pinned + 2)
        wait_until(lambda: conn.execute(STATED).fetchone() == (True,), "the relay has noticed it")
        insert_numbered(conn, topic, 50, start=100)
        wait_until(lambda: conn.execute(PARKED).fetchone() == (50,), "its messages wait")
        assert len(read_topic(bootstrap_servers, topic)) == 100
        listed = succeed("holds", "ls", **given).out
        assert f"Kafka has {pinned + 2} partitions of it and {pinned} are pinned" in listed
        succeed("topic", "repartition", topic, "--to", str(pinned + 2), **given)
        wait_until(lambda: conn.execute(ALL).fetchone() == (150,), "it goes on")
        grow(bootstrap_servers, topic, pinned + 3)
        wait_until(lambda: conn.execute(STATED).fetchone() == (True,), "the relay has noticed it again")
        insert_numbered(conn, topic, 10, start=150)
        wait_until(lambda: conn.execute(PARKED).fetchone() == (10,), "its messages wait again")
        assert succeed("topic", "resume", topic, "--json", **given).json["changed"] is True
        wait_until(lambda: conn.execute(ALL).fetchone() == (160,), "it goes on as it is")
    assert relay.error is None
    assert len(read_topic(bootstrap_servers, topic)) == 160
    assert outbox("topic", "on-growth", "nowhere", "pause", **given).code == 1
