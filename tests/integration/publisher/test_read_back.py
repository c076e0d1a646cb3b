"""A relay that takes over in doubt reads back what its predecessor sent, and publishes what is missing.

Each test lets a relay die with lanes, writes messages, and gives Kafka some of them, as the relay may have done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from outbox_local.stack.api import Stack
from outbox_relay.publisher.hands import read_back
from tests.support.kafka_records import message_ids, read_topic
from tests.support.kafka_transactions import kafka_transaction
from tests.support.left_in_doubt import leave_in_doubt, produce, sent_before
from tests.support.plain_inserts import Connection, connect, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import loop_of, relay_session, turn_until
from tests.support.secured_broker import SecuredBroker
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

PLACES = 'SELECT message_id::text, "offset" FROM outbox.message_status WHERE topic = %s ORDER BY id'
TOOK_OVER = """
    INSERT INTO outbox.failover (system_identifier, timeline, from_system_identifier, from_timeline) VALUES (1, 2, 1, 1)
"""
PENDING = "SELECT count(*) FROM outbox.message_status WHERE status = 'COMMITTED' AND waiting IS NULL"


def take_over(dsn: str, bootstrap_servers: str) -> None:
    """Let the next relay publish all there is."""
    with connect(dsn) as conn, relay_session(dsn, bootstrap_servers) as session:
        turn_until(session, lambda: conn.execute(PENDING).fetchone() == (0,), "all is published")


def bodies(bootstrap_servers: str, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in read_topic(bootstrap_servers, topic)]


@pytest.fixture
def one(make_topic: MakeTopic) -> str:
    """A topic of one partition."""
    return make_topic(partitions=1)


@pytest.mark.feature("H-43")
def test_what_a_dead_relay_sent_is_recorded_and_not_sent_again(
    database: str, bootstrap_servers: str, conn: Connection, one: str
) -> None:
    first, second, third = leave_in_doubt(
        database, bootstrap_servers, one, ("k", "1"), (None, "2"), ("k", "3")
    )
    sent_before(bootstrap_servers, one, (first, "k", "1"), (second, None, "2"))
    take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["1", "2", "3"]
    assert conn.execute(PLACES, [one]).fetchall() == [(first, 0), (second, 1), (third, 2)]


def test_behind_a_missing_message_all_of_its_key_are_sent_again(
    database: str, bootstrap_servers: str, conn: Connection, one: str
) -> None:
    first, second, other = leave_in_doubt(
        database, bootstrap_servers, one, ("k", "1"), ("k", "2"), ("other", "3")
    )
    sent_before(bootstrap_servers, one, (first, "k", "1"), (second, "k", "2"), (other, "other", "3"))
    # As retention would.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for reply in admin.delete_records([TopicPartition(one, 0, 1)]).values():
        reply.result(30)
    take_over(database, bootstrap_servers)
    assert conn.execute(PLACES, [one]).fetchall() == [(first, 3), (second, 4), (other, 2)]


@pytest.mark.parametrize("record", [("k", "changed"), ("other", "1"), (None, "1")])
def test_another_message_under_the_same_id_proves_nothing(
    database: str, bootstrap_servers: str, one: str, record: tuple[str | None, str]
) -> None:
    [message_id] = leave_in_doubt(database, bootstrap_servers, one, ("k", "1"))
    sent_before(bootstrap_servers, one, (message_id, *record))
    take_over(database, bootstrap_servers)
    assert message_ids(read_topic(bootstrap_servers, one)) == {message_id: 2}


def test_a_record_in_another_partition_proves_nothing(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    [message_id] = leave_in_doubt(database, bootstrap_servers, topic, ("k", "1"))
    with connect(database) as conn:
        conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 1)", [topic])
    sent_before(bootstrap_servers, topic, (message_id, "k", "1"), partition=1)
    take_over(database, bootstrap_servers)
    assert {record.partition for record in read_topic(bootstrap_servers, topic)} == {0, 1}


def test_a_record_of_an_aborted_transaction_proves_nothing(
    database: str, bootstrap_servers: str, one: str
) -> None:
    [message_id] = leave_in_doubt(database, bootstrap_servers, one, ("k", "1"))
    with kafka_transaction(bootstrap_servers, f"aborted-{one}", commit=False) as producer:
        produce(producer, one, (message_id, "k", "1"))
    take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["1"]


def test_an_open_transaction_of_another_producer_hides_nothing(
    database: str, bootstrap_servers: str, conn: Connection, one: str
) -> None:
    [message_id] = leave_in_doubt(database, bootstrap_servers, one, ("k", "1"))
    with kafka_transaction(bootstrap_servers, f"open-{one}") as producer:
        producer.produce(one, b"another's", partition=0)
        assert producer.flush(30) == 0
        sent_before(bootstrap_servers, one, (message_id, "k", "1"))
        take_over(database, bootstrap_servers)
    assert conn.execute(PLACES, [one]).fetchall() == [(message_id, 1)]


def test_an_open_transaction_of_another_servers_relay_proves_nothing(
    database: str, bootstrap_servers: str, conn: Connection, one: str
) -> None:
    """A restored backup need not know that its original delivers exactly once, and Kafka aborts what that one began."""
    [message_id] = leave_in_doubt(database, bootstrap_servers, one, ("k", "1"))
    conn.execute(TOOK_OVER)
    with kafka_transaction(bootstrap_servers, f"left-{one}", commit=False) as producer:
        produce(producer, one, (message_id, "k", "1"))
        take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["1"]


def test_what_was_published_in_front_of_the_last_recorded_offset_proves_nothing(
    database: str, bootstrap_servers: str, conn: Connection, one: str
) -> None:
    insert(conn, one, "k", "0")
    take_over(database, bootstrap_servers)
    early, late = leave_in_doubt(database, bootstrap_servers, one, ("k", "1"), ("other", "2"))
    sent_before(bootstrap_servers, one, (early, "k", "1"))
    # A relay that died since recorded something behind it.
    conn.execute("UPDATE outbox.publication SET offsets = '{1}'")
    sent_before(bootstrap_servers, one, (late, "other", "2"))
    take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["0", "1", "2", "1"]


def test_a_topic_that_was_made_again_meanwhile_proves_nothing(
    database: str, bootstrap_servers: str, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [message_id] = leave_in_doubt(database, bootstrap_servers, one, ("k", "1"))
    sent_before(bootstrap_servers, one, (message_id, "k", "1"))
    read, admin = read_back._read_logs, AdminClient({"bootstrap.servers": bootstrap_servers})

    def make_again(*given: Any, **others: Any) -> dict[read_back.Name, dict[str, read_back.LastRecord]]:
        found = read(*given, **others)
        assert found[one, 0], "it was found"
        admin.delete_topics([one])[one].result(30)

        def is_made() -> bool:
            try:
                admin.create_topics([NewTopic(one, 1, 1)])[one].result(30)
            except KafkaException as error:
                assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS  # noqa: PT017
                return False
            return True

        wait_until(is_made, "the topic is made again")
        return found

    monkeypatch.setattr(read_back, "_read_logs", make_again)
    take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["1"]


def test_a_message_is_sent_again_that_may_be_in_front_of_a_recorded_one(
    database: str, bootstrap_servers: str, one: str
) -> None:
    """No offset of the partition was recorded lately. Behind 2 is a message with a lower id, which may be recorded."""
    first, second = leave_in_doubt(database, bootstrap_servers, one, ("other", "1"), ("k", "2"))
    sent_before(bootstrap_servers, one, (second, "k", "2"), (first, "other", "1"))
    take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["2", "1", "2"]


def test_more_than_the_bound_is_published_again_and_said_so(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, bystander = make_topic(partitions=1), make_topic(partitions=1)
    monkeypatch.setattr(read_back, "MOST_S", 0.0)
    first, _ = leave_in_doubt(database, bootstrap_servers, topic, ("k", "1"), ("k", "2"))
    with connect(database) as conn:
        insert(conn, bystander, "k", "1")
    sent_before(bootstrap_servers, topic, (first, "k", "1"))
    with caplog.at_level(logging.INFO, "outbox"):
        take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, topic) == ["1", "1", "2"]
    assert bodies(bootstrap_servers, bystander) == ["1"]
    assert caplog.text.count("messages in doubt are published again") == 1


def test_the_last_records_are_read_where_there_are_too_many(
    database: str, bootstrap_servers: str, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_back, "MOST_RECORDS", 2)
    ids = leave_in_doubt(database, bootstrap_servers, one, ("a", "1"), ("b", "2"), ("c", "3"))
    records = [(id_, key, body) for id_, key, body in zip(ids, "abc", "123", strict=True)]
    sent_before(bootstrap_servers, one, *records)
    take_over(database, bootstrap_servers)
    assert bodies(bootstrap_servers, one) == ["1", "2", "3", "1"]


def test_nothing_is_read_back_after_a_clean_end(
    database: str, bootstrap_servers: str, conn: Connection, one: str, caplog: pytest.LogCaptureFixture
) -> None:
    take_over(database, bootstrap_servers)
    insert(conn, one, "k", "1")
    with caplog.at_level(logging.INFO, "outbox"):
        take_over(database, bootstrap_servers)
    assert "read back" not in caplog.text


def test_a_relay_reads_nothing_back_when_all_is_settled_that_was_in_doubt(
    database: str, bootstrap_servers: str, conn: Connection, one: str
) -> None:
    leave_in_doubt(database, bootstrap_servers, one, ("k", "1"))
    with relay_session(database, bootstrap_servers) as session:
        assert loop_of(session).read_back.is_open
        turn_until(session, lambda: not loop_of(session).read_back.is_open, "all is settled")
        assert conn.execute(PENDING).fetchone() == (0,)


@pytest.fixture
def broker(private_stack: Stack) -> Iterator[SecuredBroker]:
    """A broker where clients may do nothing yet."""
    with SecuredBroker(private_stack, guarded=True) as broker:
        yield broker


@pytest.mark.xdist_group("private stack")
@pytest.mark.parametrize("may_read", [False, True])
def test_a_relay_that_may_not_read_publishes_and_says_so(
    private_database: str, broker: SecuredBroker, may_read: bool
) -> None:
    topic = broker.make_topic(f"guarded-{uuid4().hex[:8]}", partitions=1)
    broker.grant(topic, AclOperation.DESCRIBE, AclOperation.WRITE)
    if may_read:
        broker.grant(topic, AclOperation.READ)
    first, _ = leave_in_doubt(private_database, broker.open_servers, topic, ("k", "1"), ("k", "2"))
    sent_before(broker.open_servers, topic, (first, "k", "1"))
    with (
        connect(private_database) as conn,
        RelayProcess(private_database, broker.bootstrap_servers, *broker.options) as relay,
    ):
        wait_published(conn)
        relay.stop()
        told = relay.count("messages in doubt are published again")
    assert (bodies(broker.open_servers, topic), told) == (
        (["1", "2"], 0) if may_read else (["1", "1", "2"], 1)
    )
