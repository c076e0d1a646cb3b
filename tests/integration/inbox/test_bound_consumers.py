"""Consumers of a group that is bound to a role: its own run as before, others are told, and no message is lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from outbox.errors import ConsumerFailedError
from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox.rocketmq.consumer import ClientConfiguration, FilterExpression, SimpleConsumerBuilder
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.relay_in_process import publish
from tests.support.waiting import wait_until

ONCE = DelaySchedule.of([])
COPIES = "DLQ.points"


@pytest.fixture
def owner(inbox: InboxStage, logins: Logins) -> str:
    """The login of an application that is a member of a role, to which its group is bound before it runs."""
    dsn = logins.make("outbox_consumer")
    role = f"{logins.newest}_app"
    inbox.conn.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))
    inbox.conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(logins.newest)))
    inbox.conn.execute("GRANT INSERT ON applied TO PUBLIC")
    ran = succeed("consumers", "bind", inbox.group, role, "--dsn", logins.make("outbox_operator"))
    assert ran.out == f"bound group {inbox.group} to the role {role}; no member of it has run yet\n"
    logins.roles.append(role)
    return dsn


def failing_first(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Fail with one message twice, with another one for ever, and apply the rest."""
    if message.body == b"3" or (message.body == b"1" and message.reconsume_times < 2):
        raise ValueError("not yet")
    return apply(conn, message)


def batch_failing_first(conn: Connection, messages: Sequence[ConsumedMessage]) -> Any:
    return [failing_first(conn, each) for each in messages]


def test_a_member_of_the_role_consumes_with_retries_held_keys_and_dead_letters(
    inbox: InboxStage, logins: Logins, owner: str, topic: str
) -> None:
    inbox.conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [COPIES])
    login = psycopg.conninfo.conninfo_to_dict(owner)["user"]
    inbox.conn.execute(sql.SQL("GRANT outbox_producer TO {}").format(sql.Identifier(str(login))))
    inbox.produce_numbered(topic, 12, keys=4)
    with inbox.consumer(topic, failing_first, dsn=owner, orderly=True, dead_letter_topic=COPIES):
        inbox.wait_applied(9)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 1, "one is dead")
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 3, "two wait behind it")
        wait_until(lambda: inbox.count("outbox.inbox_position", "next_off = 3") == 4, "positions are stored")
    assert inbox.by_key() == {"k0": [0, 4, 8], "k1": [1, 5, 9], "k2": [2, 6, 10]}
    assert inbox.conn.execute("SELECT topic, body FROM outbox.message").fetchall() == [(COPIES, b"3")]
    [(number,)] = inbox.conn.execute("SELECT id FROM outbox.inbox_parked WHERE state = 'dead'").fetchall()
    succeed("dlq", "redrive", str(number), "--yes", "--dsn", logins.make("outbox_operator"))
    with inbox.consumer(topic, dsn=owner, orderly=True):
        inbox.wait_applied(12)
    assert inbox.by_key()["k3"] == [3, 7, 11]
    assert not inbox.count("outbox.inbox_held_key")


def test_a_member_of_the_role_consumes_in_batches(inbox: InboxStage, owner: str, topic: str) -> None:
    ids = inbox.produce_numbered(topic, 30)
    with inbox.consumer(topic, apply_all, dsn=owner, batch=10):
        inbox.wait_applied(30)
    assert sorted(inbox.applied()) == sorted(ids)


def test_a_member_of_the_role_receives_and_acknowledges(inbox: InboxStage, owner: str, topic: str) -> None:
    inbox.produce_numbered(topic, 6)
    builder = (
        SimpleConsumerBuilder(owner)
        .set_client_configuration(ClientConfiguration(inbox.bootstrap_servers))
        .set_consumer_group(inbox.group)
        .set_subscription_expressions({topic: FilterExpression("*")})
        .set_consume_from(FIRST)
        .set_await_duration(10.0)
    )
    bodies: list[bytes] = []
    with builder.build() as consumer, psycopg.connect(owner) as conn:

        def receive() -> bool:
            for view in consumer.receive(10, timedelta(seconds=60)):
                consumer.ack(view, conn)
                conn.commit()
                bodies.append(view.body or b"")
            return len(bodies) == 6

        wait_until(receive, "all are received and acknowledged")
    assert sorted(bodies) == [b"%d" % n for n in range(6)]
    assert not inbox.count("outbox.inbox_parked")


@pytest.mark.parametrize("role", ["member", "operator"])
def test_a_replay_by_a_member_of_the_role_or_an_operator(
    inbox: InboxStage, logins: Logins, owner: str, topic: str, role: str
) -> None:
    with psycopg.connect(inbox.dsn) as conn:
        for number in range(6):
            Outbox().send(conn, Message(topic, key=b"k%d" % (number % 2), body=b"%d" % number))
    publish(inbox.dsn, inbox.bootstrap_servers, 6)
    with inbox.consumer(topic, dsn=owner, orderly=True):
        inbox.wait_applied(6)
    dsn = owner if role == "member" else logins.make("outbox_operator")
    login = str(psycopg.conninfo.conninfo_to_dict(dsn)["user"])
    for each in ("outbox_consumer", "outbox_etl"):
        inbox.conn.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(each), sql.Identifier(login)))
    given = ("consumers", "replay", inbox.group, "--topic", topic, "--key", "k1", "--again", "--yes", "--dsn")
    stranger = logins.make("outbox_consumer")
    refused = outbox(*given, stranger)
    assert refused.code != 0
    assert "is bound to the role" in refused.err
    succeed(*given, dsn)
    with inbox.consumer(topic, dsn=owner, orderly=True):
        inbox.wait_applied(9)
    assert inbox.by_key() == {"k0": [0, 2, 4], "k1": [1, 3, 5, 1, 3, 5]}


def test_a_strangers_consumer_is_told_and_an_innocent_group_goes_on(
    inbox: InboxStage, logins: Logins, owner: str, topic: str
) -> None:
    stranger = logins.make("outbox_consumer")
    name = logins.newest
    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, dsn=stranger, group="innocent") as innocent:
        inbox.wait_applied(8)
        with pytest.raises(ConsumerFailedError) as told:
            inbox.consumer(topic, dsn=stranger).run()
        text = str(told.value)
        assert text.startswith(f"group {inbox.group!r} is bound to the role ")
        assert f"the user {name} is not a member of it; run: GRANT " in text
        assert text.endswith(f'TO "{name}", or: outbox consumers unbind {inbox.group}')
        inbox.produce_numbered(topic, 8, start=8)
        inbox.wait_applied(16)  # of the innocent group, by the same login
        assert innocent.vitals().trouble is None
    with inbox.consumer(topic, dsn=owner):
        inbox.wait_applied(32)
    assert sorted(inbox.applied("body")) == sorted([str(n) for n in range(16)] * 2)


def test_a_group_that_is_bound_while_a_strangers_member_runs_loses_nothing(
    inbox: InboxStage, logins: Logins, owner: str, topic: str
) -> None:
    succeed("consumers", "unbind", inbox.group, "--dsn", inbox.dsn)
    role = logins.roles[-1]
    stranger = logins.make("outbox_consumer")
    inbox.produce_numbered(topic, 8)
    running = inbox.consumer(topic, lambda conn, message: apply(conn, message, "stranger"), dsn=stranger)
    running.start()
    inbox.wait_applied(8)
    succeed("consumers", "bind", inbox.group, role, "--dsn", inbox.dsn)
    inbox.produce_numbered(topic, 40, start=8)
    wait_until(lambda: _has_ended(running), "the stranger's member has ended")
    with pytest.raises(ConsumerFailedError, match=f"is bound to the role {role}"):
        running.close()
    with inbox.consumer(topic, lambda conn, message: apply(conn, message, "owner"), dsn=owner):
        inbox.wait_applied(48)
    assert sorted(map(int, inbox.applied("body"))) == list(range(48)), "each message once"
    by_strangers = inbox.count("applied", "member = 'stranger'")
    assert by_strangers == 8, "nothing was applied for the group by a stranger once it was bound"


def test_a_default_of_the_database_that_refuses_policies_changes_nothing(
    inbox: InboxStage, logins: Logins, owner: str, topic: str
) -> None:
    inbox.conn.execute(
        "DO $$ BEGIN EXECUTE pg_catalog.format('ALTER DATABASE %I SET row_security = off', current_database()); END $$"
    )
    inbox.produce_numbered(topic, 4)
    with inbox.consumer(topic, lambda *_: ConsumeResult.RECONSUME_LATER, dsn=owner, delays=ONCE):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 4, "all are dead letters")
    operator = logins.make("outbox_operator")
    given = ("--dsn", operator)
    [row] = succeed("consumers", "ls", "--json", *given).json
    assert (row["dead"], row["role"]) == (4, logins.roles[-1])
    assert logins.roles[-1] in succeed("consumers", "ls", *given).out
    shown = succeed("consumers", "show", inbox.group, "--json", *given).json
    assert (shown["role"], len(shown["partitions"])) == (logins.roles[-1], 4)
    assert logins.roles[-1] in succeed("consumers", "show", inbox.group, *given).out
    ids = [str(each["id"]) for each in succeed("dlq", "ls", "--json", *given).json]
    assert len(ids) == 4
    assert succeed("dlq", "summary", "--json", *given).json[0]["messages"] == 4
    succeed("dlq", "show", ids[0], *given)
    succeed("dlq", "redrive", ids[0], "--yes", *given)
    succeed("dlq", "discard", ids[1], "--yes", *given)
    assert inbox.count("outbox.inbox_parked") == 3
    assert succeed("dlq", "hold", *given).out == "no parked message lacks its held key\n"
    succeed("inbox", "ls", *given)
    kafka = ("--bootstrap-servers", inbox.bootstrap_servers)
    inbox.conn.execute("UPDATE outbox.consumer_member SET seen_at = now() - interval '2 minutes'")
    reset = ("consumers", "reset", inbox.group, topic, "--to", "first", "--yes", "--json", *given, *kafka)
    wait_until(lambda: outbox(*reset).code == 0, "the positions are reset, once Kafka has no member")
    assert inbox.count("outbox.inbox_position", "next_off = 0 AND generation > 0") == 4
    assert succeed("status", "--json", *given).json["consumers"]["dead"] == 2
    succeed("inbox", "drop", "--older-than", "30d", "--dry-run", "--without-kafka", "--dsn", inbox.dsn)


def test_a_command_names_the_role_of_a_group_that_it_does_not_see(
    inbox: InboxStage, logins: Logins, owner: str
) -> None:
    stranger = logins.make("outbox_consumer")
    ran = outbox("consumers", "show", inbox.group, "--dsn", stranger)
    assert ran.code == 1
    assert (
        f"consumer group {inbox.group!r} is bound to the role {logins.roles[-1]}: the user {logins.newest} "
        "does not see it" in ran.err
    )
    assert f'GRANT outbox_operator TO "{logins.newest}"' in ran.err
    assert succeed("consumers", "ls", "--json", "--dsn", stranger).json == []


def test_a_role_that_is_not_there_is_refused_with_the_nearest_names(inbox: InboxStage, owner: str) -> None:
    ran = outbox("consumers", "bind", inbox.group, "outbox_consumr", "--dsn", inbox.dsn)
    assert ran.code == 1
    assert "there is no role 'outbox_consumr'. Did you mean 'outbox_consumer'" in ran.err
    assert 'CREATE ROLE "outbox_consumr" NOLOGIN' in ran.err
    unknown = outbox("consumers", "unbind", "nobody", "--dsn", inbox.dsn)
    assert unknown.code == 1
    assert f"there is no consumer group 'nobody'. There are: {inbox.group}" in unknown.err


def _has_ended(consumer: PushConsumer) -> bool:
    return consumer.vitals().defect is not None
