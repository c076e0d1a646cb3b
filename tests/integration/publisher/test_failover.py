"""A standby that lagged is promoted: what survives is published, and what only Kafka has is listed by its id."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from outbox.wire import row_id_of
from outbox_local.stack.api import Stack
from outbox_relay.operations import tail
from outbox_relay.operations.lost_messages import STATEMENTS
from tests.support.kafka_records import compare, read_topic
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import (
    Connection,
    connect,
    decide,
    insert,
    insert_numbered,
    numbered,
    wait_published,
)
from tests.support.promotion import promote
from tests.support.publications import value
from tests.support.query_plans import scans
from tests.support.relay_process import RelayProcess
from tests.support.servers import MakeTopic
from tests.support.standbys import has_replayed, standby
from tests.support.waiting import wait_until

RECEIVING = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')"


@pytest.mark.feature("H-16")
def test_what_a_promoted_standby_lacks_is_listed_and_the_rest_is_published(
    private_stack: Stack, private_database: str, make_private_topic: MakeTopic
) -> None:
    kafka, topic = private_stack.bootstrap_servers, make_private_topic()
    with standby(private_stack, private_database) as promoted:
        with connect(private_database) as conn, RelayProcess(private_database, kafka) as relay:
            conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [topic])
            insert_numbered(conn, topic, 60)
            undecided = insert(conn, topic, "half", "half:0", state="UNKNOWN", producer_group="g")
            wait_published(conn)
            wait_until(lambda: has_replayed(promoted, private_database), "the standby to be level")
            with connect(promoted) as there:
                there.execute("ALTER SYSTEM SET primary_conninfo = ''")
                there.execute("SELECT pg_reload_conf()")
                wait_until(lambda: not value(there, RECEIVING), "the standby to lag")
            lost = {insert(conn, topic, f"lost-{i}", "lost:0") for i in range(12)}
            assert decide(conn, undecided, "COMMITTED") == 1
            wait_published(conn)
            relay.kill()
        private_stack.stop_postgres()
        with connect(promoted) as conn, RelayProcess(promoted, kafka) as relay:
            refused = relay.wait_for("PostgreSQL refused, trying again", sqlstate="25006")
            assert "the server is a standby" in refused["hint"]
            assert "target_session_attrs=read-write" in refused["hint"]
            assert value(conn, "SELECT pg_promote()")
            assert _ids(conn).isdisjoint(lost), "the standby has lost them"
            insert_numbered(conn, topic, 30, start=60)
            wait_published(conn)
            assert relay.find("this server took over from another one", repair="outbox failover scan")
            relay.stop()
            with RelayProcess(promoted, kafka) as later:
                later.wait_until_running()
                assert not later.find("this server took over from another one"), "it is noted once"
                later.stop()
            records = [
                record for record in read_topic(kafka, topic) if record.key not in {None, b"half"}
                and not record.key.startswith(b"lost")
            ]  # fmt: skip
            assert not compare(records, numbered(90)).broken
            _scan_finds(promoted, kafka, topic, lost, undecided)


def _ids(conn: Connection) -> set[str]:
    return {row[0] for row in conn.execute("SELECT message_id::text FROM outbox.message").fetchall()}


def _scan_finds(dsn: str, kafka: str, topic: str, lost: set[str], undecided: str) -> None:
    problems = outbox("status", "--json", "--dsn", dsn).json["problems"]
    assert "outbox failover scan" in {problem["command"] for problem in problems}
    place = ("--dsn", dsn, "--bootstrap-servers", kafka)
    found = outbox("failover", "scan", "--json", *place)
    assert found.code == 1
    assert {one["message_id"]: one["state"] for one in found.json["lost"]} == {
        **dict.fromkeys(lost), undecided: "UNKNOWN"
    }  # fmt: skip
    assert found.json["topics"] == [topic]
    (server,) = succeed("failover", "ls", "--json", "--dsn", dsn).json
    assert (server["lost"], server["timeline"]) == (13, server["from_timeline"] + 1)
    problems = outbox("status", "--json", "--dsn", dsn).json["problems"]
    assert "outbox failover scan" not in {problem["command"] for problem in problems}
    shown = outbox("failover", "scan", *place, "--topic", topic)
    assert shown.code == 1
    assert all(message_id in shown.out for message_id in {*lost, undecided})
    assert "13 messages lost" in shown.out


@pytest.mark.feature("H-16")
def test_a_promotion_that_lost_nothing_is_noticed_and_nothing_is_listed(
    private_stack: Stack, private_database: str, make_private_topic: MakeTopic
) -> None:
    kafka, topic = private_stack.bootstrap_servers, make_private_topic()
    with connect(private_database) as conn, RelayProcess(private_database, kafka) as relay:
        insert_numbered(conn, topic, 20)
        wait_published(conn)
        relay.stop()
    promote(private_stack)
    with connect(private_database) as conn, RelayProcess(private_database, kafka) as relay:
        insert_numbered(conn, topic, 20, start=20)
        wait_published(conn)
        relay.stop()
    place = ("--dsn", private_database, "--bootstrap-servers", kafka)
    found = succeed("failover", "scan", "--json", *place).json
    assert (found["lost"], found["topics"]) == ([], [topic])
    assert found["records"] >= 20
    assert succeed("failover", "ls", "--json", "--dsn", private_database).json[0]["lost"] == 0
    assert "0 messages lost" in succeed("failover", "scan", *place).out


def test_a_scan_without_a_place_to_begin_says_what_to_name(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    place = ("--dsn", database, "--bootstrap-servers", bootstrap_servers)
    refused = outbox("failover", "scan", *place)
    assert (refused.code, "--since TIME" in refused.err) == (1, True)
    assert succeed("failover", "ls", "--dsn", database).out == "no other server took over\n"
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        given = insert(conn, topic, "k", "k:0", message_id="0190163d-8694-739b-aea5-966c26f8ad90")
        gone = insert(conn, topic, "k", "k:1", message_id="0190163d-8694-739b-aea5-966c26f8ad91")
        wait_published(conn)
        relay.stop()
        conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER ALL")
        conn.execute("DELETE FROM outbox.message WHERE message_id = %s", [gone])
    found = outbox("failover", "scan", "--json", "--since", "1h", "--topic", topic, *place)
    assert [one["message_id"] for one in found.json["lost"]] == [gone]
    assert given != gone
    missing = outbox("failover", "scan", "--since", "1h", "--topic", "no.such.topic", *place)
    assert (missing.code, "has no topic 'no.such.topic'" in missing.err) == (1, True)


def test_no_topic_that_is_deleted_meanwhile_or_has_no_leader_ends_a_scan(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, used, deleted, sick = make_topic(), make_topic(), make_topic(), make_topic()
    gone = {used, deleted}

    class Late(Consumer):
        """Answers with what the brokers know; at once, a topic of it is deleted and another one loses its leader."""

        def list_topics(self, *arguments: Any, **named: Any) -> Any:
            known = super().list_topics(*arguments, **named)
            admin = AdminClient({"bootstrap.servers": bootstrap_servers})
            for deletion in admin.delete_topics(list(gone)).values():
                deletion.result(10)
            wait_until(lambda: not gone & admin.list_topics(timeout=10).topics.keys(), "they are gone")
            known.topics[sick].partitions[2].leader = -1
            return known

    monkeypatch.setattr(tail, "Consumer", Late)
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        for topic in (own, used, deleted, sick):
            insert(conn, topic, "k", "k:0")
        wait_published(conn)
        relay.stop()
        conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER ALL")
        conn.execute("DELETE FROM outbox.message WHERE topic = ANY (%s)", [[deleted, sick]])
        conn.execute("DELETE FROM outbox.topic WHERE name = ANY (%s)", [[deleted, sick]])
    place = ("--since", "1h", "--dsn", database, "--bootstrap-servers", bootstrap_servers)
    found = outbox("failover", "scan", "--json", *place)
    assert found.code == 0, found.err
    assert (found.json["topics"], found.json["missing"]) == (sorted([own, used]), [used])
    assert sick in found.json["not_read"]
    assert not gone & set(found.json["not_read"])
    named = make_topic()
    gone = {named}
    refused = outbox("failover", "scan", "--topic", named, *place)
    assert (refused.code, f"has no topic '{named}'" in refused.err) == (1, True)


def test_rows_of_ids_are_read_by_indexes_however_many_there_are(database: str) -> None:
    with connect(database) as conn:
        insert_numbered(conn, "t", 2000)
        foreign = insert(conn, "t", "k", "k:0", message_id="0190163d-8694-739b-aea5-966c26f8ad90")
        conn.execute(STATEMENTS["prefer_indexes"])
        own = [UUID(message_id) for message_id in sorted(_ids(conn) - {foreign})[:100]]
        values: dict[str, list[Any]] = {
            "ids": [row_id_of(message_id) for message_id in own],
            "message_ids": own,
        }
        for name, given in (
            ("states", values),
            ("states_of_foreign", {**values, "message_ids": [UUID(foreign)]}),
        ):
            assert len(conn.execute(STATEMENTS[name], given).fetchall()) == len(given["message_ids"])
            (plan,) = conn.execute(
                f"EXPLAIN (ANALYZE, FORMAT json) {STATEMENTS[name]}", given
            ).fetchone() or ([],)
            read = {node["Node Type"] for node in scans(plan[0]["Plan"], "message")}
            assert read <= {"Index Scan", "Bitmap Heap Scan", "Bitmap Index Scan"}
