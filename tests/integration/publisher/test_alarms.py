"""Alarms reach a receiver over HTTP: once per cause, cleared once, signed, however many relays run and restart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.alarm_receiver import Receiver
from tests.support.callback_peer import SECRET
from tests.support.locks import holding
from tests.support.plain_inserts import Connection, insert, insert_unchecked, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.stopped_lanes import set_aside
from tests.support.waiting import wait_until

OPTIONS = ("--alarm-every", "200ms", "--alarm-allow-network", "127.0.0.0/8")
BODY = "a body that must never leave"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def relay(database: str, bootstrap_servers: str, receiver: Receiver, *options: str) -> RelayProcess:
    return RelayProcess(
        database,
        bootstrap_servers,
        *("--alarm-webhook", receiver.url, *OPTIONS, *options),
        variables={"OUTBOX_ALARM_SECRET": SECRET},
    )


def hold_a_message(conn: Connection, topic: str) -> None:
    """By one that the relay does not read for its size, whose key is too long to be read."""
    insert_unchecked(conn, topic, "k" * 1_001, BODY * (70_000_000 // len(BODY)), lane=3)


def raise_group_alarm(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('shop', 'exhausted', '2 wait')"
    )


@pytest.mark.feature("H-15")
def test_a_held_message_is_sent_once_signed_and_without_its_body(
    conn: Connection, database: str, bootstrap_servers: str, topic: str, receiver: Receiver
) -> None:
    hold_a_message(conn, topic)
    with relay(database, bootstrap_servers, receiver) as process:
        receiver.wait("hold", ["raised"])
        process.stop()
    question = receiver.taken[0]
    assert question.json["cause"].startswith("message of topic ")
    assert "MESSAGE_TOO_LARGE" in question.json["detail"]
    assert BODY.encode() not in question.body


@pytest.mark.feature("H-15")
def test_held_keys_are_one_alarm_per_topic_until_they_are_drained(
    conn: Connection, database: str, bootstrap_servers: str, topic: str, receiver: Receiver
) -> None:
    for queue in (98, 99):
        insert(conn, topic, "k", BODY, queue=queue, lane=3)
    with relay(database, bootstrap_servers, receiver) as process:
        receiver.wait("hold", ["raised"])
        conn.execute("UPDATE outbox.message SET queue = 0")
        conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp()")
        receiver.wait("hold", ["raised", "cleared"])
        process.stop()
    question = receiver.taken[0]
    assert question.json["cause"] == f"key of topic {topic}"
    assert question.json["detail"].startswith("holds: 2, since 20")
    assert "Z: QUEUE_OUT_OF_RANGE" in question.json["detail"]
    assert question.json["detail"].endswith(f": outbox holds ls --topic {topic}")
    assert BODY.encode() not in question.body


@pytest.mark.feature("H-15")
def test_an_alarm_is_cleared_once_when_its_cause_is_over(
    conn: Connection, database: str, bootstrap_servers: str, receiver: Receiver
) -> None:
    raise_group_alarm(conn)
    with relay(database, bootstrap_servers, receiver) as process:
        receiver.wait("half_message_exhausted", ["raised"])
        conn.execute("DELETE FROM outbox.alarm")
        receiver.wait("half_message_exhausted", ["raised", "cleared"])
        wait_until(lambda: conn.execute("SELECT FROM outbox.notice").fetchall() == [], "it is forgotten")
        raise_group_alarm(conn)
        receiver.wait("half_message_exhausted", ["raised", "cleared", "raised"])
        process.stop()
    first, over, second = (question.json for question in receiver.taken)
    assert first["id"] == over["id"] != second["id"]
    assert json.loads(receiver.taken[0].body)["cause"] == "group shop"


@pytest.mark.feature("H-15")
def test_an_alarm_is_sent_again_until_the_receiver_takes_it(
    conn: Connection, database: str, bootstrap_servers: str, receiver: Receiver
) -> None:
    receiver.status = 503
    raise_group_alarm(conn)
    with relay(database, bootstrap_servers, receiver) as process:
        assert process.wait_for("alarm not sent")["error"] == "status 503"
        wait_until(lambda: len(receiver.refused) >= 2, "it is tried again")
        process.kill()
    receiver.status = 204
    # What one relay could not send, the next one does.
    with relay(database, bootstrap_servers, receiver) as process:
        receiver.wait("half_message_exhausted", ["raised"])
        process.stop()


@pytest.mark.feature("H-15")
def test_two_relays_and_restarts_send_each_alarm_once(
    conn: Connection, database: str, bootstrap_servers: str, receiver: Receiver
) -> None:
    raise_group_alarm(conn)
    with (
        relay(database, bootstrap_servers, receiver) as first,
        relay(database, bootstrap_servers, receiver) as second,
    ):
        receiver.wait("half_message_exhausted", ["raised"])
        first.wait_until_joined()
        second.wait_until_joined()
        first.stop()
        second.stop()
    with relay(database, bootstrap_servers, receiver) as third:
        third.wait_until_running()
        conn.execute("DELETE FROM outbox.alarm")
        receiver.wait("half_message_exhausted", ["raised", "cleared"])
        third.stop()
    assert len(receiver.taken) == 2


@pytest.mark.feature("H-15")
def test_a_late_backlog_is_an_alarm_until_it_is_published(
    conn: Connection, database: str, bootstrap_servers: str, topic: str, receiver: Receiver
) -> None:
    age = ("--alarm-backlog-age", "1s")
    with relay(database, bootstrap_servers, receiver, *age) as process:
        process.wait_until_running()
        with holding(database, "LOCK TABLE outbox.publication IN EXCLUSIVE MODE"):
            insert(conn, topic, "k", BODY)
            receiver.wait("backlog", ["raised"])
        (late,) = receiver.of("backlog")
        receiver.wait("backlog", ["raised", "cleared"])
        process.stop()
    assert late["cause"] == f"topic {topic}"


@pytest.mark.feature("H-15")
def test_dead_messages_are_one_alarm_per_topic(
    conn: Connection, database: str, bootstrap_servers: str, topic: str, receiver: Receiver
) -> None:
    with RelayProcess(database, bootstrap_servers) as process:
        for number in range(2):
            insert(conn, topic, f"k{number}", BODY)
        wait_published(conn)
        process.stop()
    set_aside(conn, *(row[0] for row in conn.execute("SELECT id FROM outbox.message").fetchall()))
    with relay(database, bootstrap_servers, receiver) as process:
        receiver.wait("message_dead", ["raised"])
        process.stop()
    question = receiver.taken[0]
    assert question.json["cause"] == f"topic {topic}"
    assert question.json["detail"].startswith("2 DEAD, the first is message ")
    assert BODY.encode() not in question.body


@pytest.mark.feature("H-15")
def test_an_address_that_is_not_allowed_is_never_called(
    conn: Connection, database: str, bootstrap_servers: str, receiver: Receiver
) -> None:
    raise_group_alarm(conn)
    process = RelayProcess(
        database,
        bootstrap_servers,
        *("--alarm-webhook", receiver.url, "--alarm-every", "200ms"),
        variables={"OUTBOX_ALARM_SECRET": SECRET},
    )
    with process:
        error = process.wait_for("alarm not sent")["error"]
        process.stop()
    assert "127.0.0.1 is not a public address" in error
    assert receiver.peer.connections == 0
