"""Reconcile finds what was done to one message, in Kafka or in the warehouse, and says which message and where."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.relay_process import RelayProcess
from tests.servers import MakeTopic
from tests.spark.reconciling import World, told
from tests.writing import connect, insert_numbered, wait_published

# py4j leaves its sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def world(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, small_spark: SparkSession, tmp_path: Path
) -> Iterator[World]:
    """An outbox without a relay."""
    made = World(database, bootstrap_servers, make_topic(partitions=1), small_spark, tmp_path / "warehouse")
    yield made
    made.conn.close()


@pytest.fixture
def iceberg(world: World) -> Iterator[World]:
    """The same with Iceberg tables, which SQL can change behind everybody's back."""
    made = replace(world, format="iceberg")
    yield made
    made.conn.close()


def test_what_a_relay_published_is_proven_window_after_window(
    world: World, database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=4)
    with connect(database) as conn, RelayProcess(database, bootstrap_servers).wait_until_running():
        insert_numbered(conn, topic, 500)
        wait_published(conn)
        world.export()
        first = world.reconcile()
        insert_numbered(conn, topic, 300, start=500)
        wait_published(conn)
        world.export()
        second = world.reconcile()
    nothing = world.reconcile()
    everything = world.reconcile(everything=True)
    for outcome in (first, second, nothing, everything):
        assert outcome.problems == 0, outcome.found
        assert outcome.exit_code == 0
    assert (first.messages, second.messages, everything.messages) == (500, 300, 800)
    assert sum(row["kafka"] for row in everything.partitions) == 800
    for row in everything.partitions:
        assert row["postgres_checksum"] == row["kafka_checksum"] == row["warehouse_checksum"]
    assert second.window_lo == first.window_hi
    proven = [(first.window_lo, first.window_hi), (second.window_lo, second.window_hi), (0, second.window_hi)]
    certificates = [(lo, hi, problems) for lo, hi, _, problems, _ in world.certificates()]
    assert certificates == [(lo, hi, 0) for lo, hi in proven]
    assert {each[4] for each in world.certificates()} == {world.settings.target}


def test_a_message_lost_in_kafka_is_named_with_the_place_where_it_was_recorded(world: World) -> None:
    sent = world.write(5)
    offset = world.produce(*sent[:2])
    world.produce(sent[2], foreign=True)
    world.produce(*sent[3:])
    world.record(sent, offset)
    world.export()
    outcome = world.reconcile()
    assert told(outcome, "missing", "kafka") == [(sent[2].message_id, offset + 2)]
    assert outcome.problems == 1
    assert outcome.notes["foreign"] == 1
    assert outcome.exit_code == 1
    assert [row[3] for row in world.certificates()] == [1]


def test_a_message_doubled_in_kafka_is_named_with_its_second_place(world: World) -> None:
    sent = world.write(3)
    world.publish(sent)
    second = world.produce(sent[1])
    world.export()
    outcome = world.reconcile()
    assert told(outcome, "doubled", "kafka") == [(sent[1].message_id, second)]
    assert outcome.problems == 1
    allowed = world.reconcile(allow_doubled=True)
    assert [each.message_id for each in allowed.allowed] == [sent[1].message_id]
    assert allowed.problems == 0
    assert [row[3] for row in world.certificates()] == [1, 0]


def test_a_message_doubled_after_its_window_was_proven_is_named(world: World) -> None:
    sent = world.write(3)
    world.publish(sent)
    world.export()
    assert world.reconcile().problems == 0
    second = world.produce(sent[1])
    world.publish(world.write(1, start=3))
    world.export()
    assert told(world.reconcile(), "doubled", "kafka") == [(sent[1].message_id, second)]


def test_messages_swapped_in_kafka_are_named_and_so_is_their_order(world: World) -> None:
    sent = world.write(4)
    offset = world.produce(sent[0], sent[2], sent[1], sent[3])
    world.record(sent, offset)
    world.export()
    outcome = world.reconcile()
    assert sorted(told(outcome, "misplaced", "kafka")) == sorted(
        [(sent[1].message_id, offset + 1), (sent[2].message_id, offset + 2)]
    )
    assert told(outcome, "out_of_order", "kafka") == [(sent[1].message_id, offset + 2)]
    assert outcome.problems == 3


def test_a_message_that_a_relay_saw_and_published_too_late_is_out_of_order(world: World) -> None:
    sent = world.write(3)
    world.publish([sent[0], sent[2]])
    offset = world.publish([sent[1]])
    world.export()
    outcome = world.reconcile()
    assert told(outcome, "out_of_order", "kafka") == [(sent[1].message_id, offset)]
    assert outcome.problems == 1


def test_a_message_overtaken_by_one_of_a_transaction_that_ran_beside_is_no_problem(world: World) -> None:
    with connect(world.dsn) as slow, slow.transaction():
        late = World.write(_on(world, slow), 1)
        early = world.write(1, start=1)
        world.publish(early)
    world.publish(late)
    assert late[0].position < early[0].position
    world.export()
    outcome = world.reconcile()
    assert outcome.problems == 0, outcome.found
    assert outcome.notes["overtaken"] == 1


def test_a_record_with_another_body_is_named(world: World) -> None:
    sent = world.write(3)
    sent[1].body = "something else"
    offset = world.publish(sent)
    world.export()
    assert told(world.reconcile(), "altered", "kafka") == [(sent[1].message_id, offset + 1)]


def test_a_record_whose_message_was_never_committed_or_never_known_is_named(world: World) -> None:
    sent = world.write(2)
    world.publish(sent)
    world.conn.execute("DELETE FROM outbox.message WHERE message_id = %s", [sent[1].message_id])
    half = world.conn.execute(
        "INSERT INTO outbox.message (topic, key, body, state, producer_group) "
        "VALUES (%s, 'h', 'h', 'UNKNOWN', 'g') RETURNING message_id::text, position",
        [world.topic],
    ).fetchone()
    assert half is not None
    sent[0].message_id, sent[0].body = half[0], "h"
    ghost = world.produce(sent[0])
    sent[0].message_id = "11111111-2222-4333-8444-555555555555"
    stranger = world.produce(sent[0])
    world.export()
    outcome = world.reconcile()
    assert told(outcome, "not_committed", "kafka") == [(half[0], ghost)]
    assert (sent[0].message_id, stranger) in told(outcome, "unknown", "kafka")
    shared = world.reconcile(shared_topics=True)
    assert told(shared, "unknown", "kafka") == []


def test_what_retention_took_from_kafka_is_told_and_not_missing(world: World) -> None:
    sent = world.write(5)
    offset = world.publish(sent)
    admin = AdminClient({"bootstrap.servers": world.bootstrap_servers})
    for done in admin.delete_records([TopicPartition(world.topic, 0, offset + 2)]).values():
        done.result(30)
    world.export()
    outcome = world.reconcile()
    assert outcome.problems == 0, outcome.found
    assert outcome.notes["no_longer_in_kafka"] == 2
    assert outcome.partitions[0]["kafka"] == 3


POSITION = "(SELECT position FROM {history} WHERE message_id = '%s')"
SABOTAGE = {
    "a row deleted": ("DELETE FROM {history} WHERE message_id = '%s'", "missing"),
    "a row doubled": ("INSERT INTO {history} SELECT * FROM {history} WHERE message_id = '%s'", "doubled"),
    "a body changed": ("UPDATE {history} SET body = binary('x') WHERE message_id = '%s'", "altered"),
    "an offset changed": ("UPDATE {history} SET offset = offset + 1 WHERE message_id = '%s'", "altered"),
    "a publication deleted": (f"DELETE FROM {{publications}} WHERE position = {POSITION}", "missing"),
    "a publication doubled": (
        f"INSERT INTO {{publications}} SELECT * FROM {{publications}} WHERE position = {POSITION}",
        "doubled",
    ),
    "a message that PostgreSQL lost": (None, "extra"),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_what_happened_to_one_row_of_the_warehouse_is_named(iceberg: World, what: str) -> None:
    world = iceberg
    sent = world.write(5)
    world.publish(sent)
    world.export()
    assert world.reconcile().problems == 0
    victim = sent[2].message_id
    statement, kind = SABOTAGE[what]
    if statement is None:
        world.conn.execute("DELETE FROM outbox.message WHERE message_id = %s", [victim])
    else:
        world.sql(statement % victim)
    outcome = world.reconcile(everything=True)
    assert victim in [message_id for message_id, _ in told(outcome, kind, "warehouse")]
    assert {each.message_id for each in outcome.found} == {victim}
    assert outcome.exit_code == 1
    assert world.reconcile().problems, "a proof that was taken back is asked for again"


def test_the_certificate_says_where_the_next_verification_goes_on(world: World) -> None:
    world.publish(world.write(3))
    world.export()
    outcome = world.reconcile()
    row = world.conn.execute("SELECT checksum FROM outbox.certificate").fetchone()
    assert row is not None
    assert json.loads(row[0]) == {"sums": dict(outcome.sums), "kafka": {world.topic: {"0": 3}}}


def _on(world: World, conn: object) -> World:
    """The same world, writing over another connection."""
    other = object.__new__(World)
    other.__dict__ |= world.__dict__ | {"conn": conn}
    return other
