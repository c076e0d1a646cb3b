"""`outbox topic pause` and `resume`: refused for unknown topics, repeated in safety, shown where topics are listed."""

from __future__ import annotations

import threading

import pytest

from tests.support.locks import holding
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert, wait_published
from tests.support.publications import value
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.topic_parking import TopicParking
from tests.support.waiting import wait_until


@pytest.mark.feature("H-19")
def test_a_topic_is_paused_once_all_relays_have_stated_it_and_goes_on(
    database: str, conn: Connection, bootstrap_servers: str
) -> None:
    topics = TopicParking(conn, bootstrap_servers)
    given = {"OUTBOX_DSN": database}
    with relay_session(database, bootstrap_servers) as session:
        done = threading.Event()
        ran = []

        def command() -> None:
            ran.append(outbox("topic", "pause", topics.sick, "--reason", " mended ", "--json", **given))
            done.set()

        thread = threading.Thread(target=command)
        thread.start()
        turn_until(session, done.is_set, "the command ends")
        thread.join()
        assert ran[0].code == 0, ran[0].err
        document = ran[0].json
        assert (document["changed"], document["reason"]) == (True, "mended")
        assert [relay["has_applied"] for relay in document["relays"]] == [True]
        topics.send()
        topics.settle(session)
        assert topics.reasons == ["parked"] * 2
        listed = succeed("holds", "ls", **given).out
        assert f"topic {topics.sick}, all of it: held since" in listed
        assert f"outbox topic resume {topics.sick}" in listed
        held = succeed("message", "ls", "--json", **given).json
        assert {one["waiting"] for one in held if one["topic"] == topics.sick} == {"held"}
        (problem,) = (
            one for one in succeed("status", "--json", **given).json["problems"] if one["kind"] == "hold"
        )
        assert problem["command"] == f"outbox holds ls --topic {topics.sick} --error TOPIC_PAUSED"
        resumed = succeed("topic", "resume", topics.sick, "--json", **given).json
        assert resumed == {"topic": topics.sick, "changed": True, "waiting": 2}
        topics.drain(session)
    topics.check(topics.sick, range(1))


def test_a_pause_is_repeated_in_safety_and_shown(
    database: str, conn: Connection, bootstrap_servers: str
) -> None:
    topics = TopicParking(conn, bootstrap_servers)
    given = {"OUTBOX_DSN": database}
    assert "is not paused" in succeed("topic", "resume", topics.sick, **given).out
    first = succeed("topic", "pause", topics.sick, "--reason", "first", "--json", **given).json
    again = succeed("topic", "pause", topics.sick, "--reason", "second", **given)
    assert "is paused already, since 20" in again.err
    assert ": first" in again.err
    shown = succeed("topic", "show", topics.sick, "--json", **given).json
    assert (shown["paused_at"], shown["pause_reason"]) == (first["paused_at"], "first")
    assert f"by {first['paused_by']}: first" in succeed("topic", "show", topics.sick, **given).out
    (listed,) = [one for one in succeed("topic", "ls", "--json", **given).json if one["name"] == topics.sick]
    assert listed["pause_reason"] == "first"
    assert value(conn, "SELECT generation FROM outbox.topic_generation") == 1, "it has changed once"


def test_what_cannot_be_paused_is_refused_by_name(
    database: str, conn: Connection, bootstrap_servers: str
) -> None:
    topics = TopicParking(conn, bootstrap_servers)
    for command in (("pause", "nowhere", "--reason", "x"), ("resume", "nowhere")):
        ran = outbox("topic", *command, OUTBOX_DSN=database)
        assert (ran.code, "topic 'nowhere' is not registered" in ran.err) == (1, True)
    assert outbox("topic", "pause", topics.sick, OUTBOX_DSN=database).code == 2
    ran = outbox("topic", "pause", topics.sick, "--reason", "  ", OUTBOX_DSN=database)
    assert "--reason is empty" in ran.err
    assert value(conn, "SELECT count(*) FROM outbox.topic WHERE paused_at IS NOT NULL") == 0


def test_a_relay_that_does_not_state_the_pause_is_named(
    database: str, conn: Connection, bootstrap_servers: str
) -> None:
    topics = TopicParking(conn, bootstrap_servers)
    with relay_session(database, bootstrap_servers) as session:
        given = ("topic", "pause", topics.sick, "--reason", "x", "--timeout", "0")
        ran = outbox(*given, OUTBOX_DSN=database)
        assert ran.code == 1
        assert "these relays have not paused" in ran.err
        assert f"to wait on: outbox topic pause {topics.sick} --reason TEXT" in ran.err
        topics.follow(session)
        session.hand_over()


def test_an_operators_login_is_enough_and_a_readers_is_not(
    database: str, conn: Connection, bootstrap_servers: str, logins: Logins
) -> None:
    topics = TopicParking(conn, bootstrap_servers)
    given = ("topic", "pause", topics.sick, "--reason", "x")
    assert outbox(*given, OUTBOX_DSN=logins.make("outbox_reader")).code == 1
    operator = logins.make("outbox_operator")
    succeed(*given, OUTBOX_DSN=operator)
    insert(conn, topics.sick, "k", b"x")
    succeed("topic", "resume", topics.sick, OUTBOX_DSN=operator)
    with holding(database, "SELECT FROM outbox.lane FOR UPDATE"):
        succeed(*given, OUTBOX_DSN=operator)


def test_a_relay_that_stands_by_delays_no_pause(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    with (
        RelayThread(database, bootstrap_servers, lease=1.0),
        RelayThread(database, bootstrap_servers, lease=1.0),
    ):
        insert(conn, topic, "k", b"k:0")
        wait_published(conn)
        wait_until(
            lambda: value(conn, "SELECT count(*) FROM outbox.lease") == 2, "one leads, and one stands by"
        )
        ran = outbox("topic", "pause", topic, "--reason", "to see", "--timeout", "60", OUTBOX_DSN=database)
        assert ran.code == 0, ran.err
