"""Erasure from end to end: what was sent before is unreadable everywhere, and consumers go on with what comes after."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.errors import ConfigurationError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from outbox.inbox.metrics import prometheus_text
from tests.support.encrypted_bodies import encryption
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.kafka_records import read_topic
from tests.support.logins import Logins
from tests.support.outbox_command import succeed
from tests.support.relay_session import relay_session, turn_until
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("H-25")


async def apply_async(conn: psycopg.AsyncConnection[Any], message: ConsumedMessage) -> ConsumeResult:
    """Write one row for a message: an asynchronous listener."""
    assert message.key is not None
    assert message.body is not None
    await conn.execute(
        "INSERT INTO applied (message_id, key, body) VALUES (%s, %s, %s)",
        [message.message_id, message.key.decode(), message.body.decode()],
    )
    return ConsumeResult.SUCCESS


def send(stage: InboxStage, topic: str, bodies: dict[str, list[str]]) -> None:
    """Send by the outbox, and publish by a relay."""
    outbox = Outbox(codecs={topic: encryption()})
    with psycopg.connect(stage.dsn) as conn:
        for key, texts in bodies.items():
            for body in texts:
                outbox.send(conn, Message(topic, key, body, queue=0))
    count = sum(map(len, bodies.values()))
    end = stage.end_of(topic) + count
    with relay_session(stage.dsn, stage.bootstrap_servers) as session:
        turn_until(session, lambda: stage.end_of(topic) >= end, f"{count} messages are in Kafka")


@pytest.mark.parametrize("kind", ["single", "orderly", "batch", "async"])
def test_erased_messages_are_discarded_and_later_ones_applied(
    inbox: InboxStage, topic: str, kind: str
) -> None:
    how: dict[str, dict[str, Any]] = {
        "single": {},
        "orderly": {"orderly": True},
        "batch": {"listener": apply_all, "batch": 100, "linger": 0.2},
        "async": {"listener": apply_async},
    }
    send(inbox, topic, {"k1": ["a", "b"], "k2": ["c"]})
    gone = succeed("key", "destroy", "customer/k1", "--yes", "--json", OUTBOX_DSN=inbox.dsn).json
    assert [key["state"] for key in gone["destroyed"]] == ["destroyed"]
    send(inbox, topic, {"k1": ["d"], "k2": ["e"]})
    stored = [record.value for record in read_topic(inbox.bootstrap_servers, topic)]
    assert len(stored) == 5
    assert all(value is not None and len(value) == 47 for value in stored), "nothing is in clear in Kafka"
    with inbox.consumer(topic, codecs={topic: encryption()}, **how[kind]) as consumer:
        inbox.wait_applied(3)
        wait_until(lambda: consumer.vitals().lag == 0, "all is done")
        vitals = consumer.vitals()
        assert (vitals.erased, vitals.messages["discarded"], vitals.messages["parked"]) == (2, 2, 0)
        assert f'outbox_member_erased_total{{group="{inbox.group}"}} 2' in prometheus_text([consumer])
    assert inbox_bodies(inbox, "k1") == ["d"]
    in_order = inbox_bodies(inbox, "k2")
    assert (in_order if kind == "orderly" else sorted(in_order)) == ["c", "e"]
    assert inbox.count("outbox.inbox") == 5
    assert inbox.count("outbox.inbox_parked") == 0


def inbox_bodies(stage: InboxStage, key: str) -> list[str]:
    rows = stage.conn.execute("SELECT body FROM applied WHERE key = %s ORDER BY n", [key])
    return [body for (body,) in rows.fetchall()]


def test_a_parked_message_that_is_erased_lets_its_key_go_on(inbox: InboxStage, topic: str) -> None:
    """Its body is parked as it was in Kafka, so destroying the key erases that copy, too."""
    fails = [True]

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"a" and fails[0]:
            raise ValueError("not yet")
        return apply(conn, message)

    send(inbox, topic, {"k1": ["a"]})
    options: dict[str, Any] = {"orderly": True, "delays": DelaySchedule.of([0.2] * 100)}
    with inbox.consumer(topic, listener, codecs={topic: encryption(cache_seconds=0)}, **options) as consumer:
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "it is parked")
        assert inbox.count("outbox.inbox_parked", "position('a'::bytea IN body) = length(body)") == 0
        succeed("key", "destroy", "customer/k1", "--yes", OUTBOX_DSN=inbox.dsn)
        send(inbox, topic, {"k1": ["b"]})
        inbox.wait_applied(1)
        assert consumer.vitals().erased >= 1
    assert inbox_bodies(inbox, "k1") == ["b"]
    assert inbox.count("outbox.inbox_parked") == 0


def test_an_unknown_key_parks_its_message_and_loses_nothing(inbox: InboxStage, topic: str) -> None:
    send(inbox, topic, {"k1": ["a"]})
    inbox.conn.execute("CREATE TABLE kept AS TABLE outbox.subject_key; DELETE FROM outbox.subject_key")
    with inbox.consumer(topic, codecs={topic: encryption()}, delays=DelaySchedule.of([0.1] * 200)):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "attempts > 1"), "it is tried again")
        (failure,) = inbox.conn.execute("SELECT fingerprint FROM outbox.inbox_parked").fetchone() or ("",)
        assert failure.startswith("UnknownKeyError")
        inbox.conn.execute("INSERT INTO outbox.subject_key TABLE kept")
        inbox.wait_applied(1)
    assert inbox.applied("body") == ["a"]


def test_a_consumer_and_a_producer_may_read_keys_and_services_may_not(
    inbox: InboxStage, logins: Logins, topic: str
) -> None:
    outbox = Outbox(codecs={topic: encryption()})
    with logins.connect("outbox_producer") as producer, producer.transaction():
        outbox.send(producer, Message(topic, "k1", "a", queue=0))
    with logins.connect("outbox_producer") as producer, pytest.raises(psycopg.errors.InsufficientPrivilege):
        producer.execute("SELECT outbox.destroy_keys('customer/k1')")
    with logins.connect("outbox_consumer") as consumer:
        assert len(consumer.execute("SELECT wrapped FROM outbox.subject_key").fetchall()) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            consumer.execute("UPDATE outbox.subject_key SET wrapped = ''")
    with psycopg.connect(inbox.dsn, autocommit=True) as admin:
        for statement in [succeed("db", "sql", "--roles").out]:  # which grants all tables to some, again
            admin.execute(statement.encode())
    for role in ("outbox_relay", "outbox_checker", "outbox_etl", "outbox_reader"):
        with logins.connect(role) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT id FROM outbox.subject_key")
    succeed("key", "destroy", "customer/k1", "--yes", OUTBOX_DSN=logins.make("outbox_operator"))
    assert inbox.count("outbox.subject_key", "destroyed_by LIKE 'test_%' AND wrapped IS NULL") == 1


def test_a_codec_of_a_topic_that_is_not_read_is_refused(inbox: InboxStage, topic: str) -> None:
    with pytest.raises(ConfigurationError, match="does not read topic 'others'"):
        inbox.consumer(topic, codecs={"others": encryption()})
