"""`outbox consumers`: which groups there are, where they are, and how far Kafka is ahead of them."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, membership
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.outbox_command import outbox, succeed
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def _ls(inbox: InboxStage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = succeed(
        "consumers", "ls", "--json", "--dsn", inbox.dsn, "--bootstrap-servers", inbox.bootstrap_servers
    ).json
    return found


@pytest.mark.feature("S-98")
def test_a_group_that_does_not_run_is_listed_with_its_lag(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic):
        inbox.wait_applied(8)
        wait_until(lambda: _ls(inbox)[0]["lag"] == 0, "it has caught up")
        assert _ls(inbox)[0]["members"] == 1
    inbox.produce(topic, "k", "late", partition=2, timestamp=1_700_000_000_000)
    inbox.produce_numbered(topic, 2, keys=4)
    [row] = _ls(inbox)
    oldest = row.pop("oldest_age_seconds")
    assert "/" in row.pop("kafka_id")  # which is in many ids of clusters and topics, too
    assert row == {
        "consumer_group": inbox.group,
        "topic": topic,
        "orderly": False,
        "members": 0,
        "idle_members": 0,
        "partitions": 4,
        **dict.fromkeys(
            ("retries_due", "retries_later", "retries_failed", "waiting", "held_keys", "full_keys", "dead"), 0
        ),
        "lag": 3,
        "is_paused": False,
        "role": None,
    }
    assert oldest > 86_400 * 365, "the age is that of the oldest message"


@pytest.mark.feature("S-98")
def test_each_partition_is_shown_with_position_end_and_lag(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic):
        inbox.wait_applied(8)
    inbox.produce_numbered(topic, 5, keys=4)
    given = ("consumers", "show", inbox.group, "--dsn", inbox.dsn)
    kafka = ("--bootstrap-servers", inbox.bootstrap_servers)
    inbox.conn.execute("DELETE FROM outbox.inbox_position WHERE part = 3")
    found = succeed(*given, *kafka, "--json").json
    assert [(row["partition"], row["position"], row["end"], row["lag"]) for row in found["partitions"]] == [
        (0, 2, 4, 2),
        (1, 2, 3, 1),
        (2, 2, 3, 1),
        (3, None, 3, 3),
    ], "a partition without a position is read from its first offset"
    assert _ls(inbox)[0]["lag"] == 7
    assert (found["subscription"], found["members"]) == ({topic: "*"}, [])
    text = succeed(*given, *kafka).out
    assert "TOPIC" in text
    assert "LAG" in text
    without = succeed(*given)
    assert "LAG" not in without.out
    assert "give --bootstrap-servers" in without.err


@pytest.mark.feature("S-98")
def test_the_status_shows_the_lag_of_all_groups(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic):
        inbox.wait_applied(8)
        wait_until(lambda: _ls(inbox)[0]["lag"] == 0, "it has caught up")
    inbox.produce(topic, "k", "late", partition=2, timestamp=1_700_000_000_000)
    inbox.flush()
    given = ("status", "--dsn", inbox.dsn)
    kafka = ("--bootstrap-servers", inbox.bootstrap_servers)
    found = succeed(*given, *kafka, "--json").json["consumers"]
    assert found["lag"] == 1
    assert found["oldest_age_seconds"] > 86_400 * 365
    assert ", lag 1, the oldest message " in succeed(*given, *kafka).out
    assert "lag" not in succeed(*given, "--json").json["consumers"]
    away = succeed(*given, "--bootstrap-servers", "127.0.0.1:1")
    assert "lag is not known: cannot read Kafka at 127.0.0.1:1" in away.err
    assert ", 0 held keys" in away.out


def test_without_kafka_the_columns_of_lag_are_left_out(inbox: InboxStage, topic: str) -> None:
    assert succeed("consumers", "ls", "--dsn", inbox.dsn).out == "no consumer group\n"
    with inbox.consumer(topic):
        wait_until(lambda: inbox.count("outbox.inbox_position") == 4, "it has positions")
    ran = succeed("consumers", "ls", "--dsn", inbox.dsn)
    assert "lag is Kafka's: give --bootstrap-servers" in ran.err
    assert "LAG" not in ran.out
    assert "lag" not in succeed("consumers", "ls", "--json", "--dsn", inbox.dsn).json[0]
    assert (
        "LAG"
        in succeed("consumers", "ls", "--dsn", inbox.dsn, "--bootstrap-servers", inbox.bootstrap_servers).out
    )


def test_what_failed_is_counted_and_dead_letters_are_a_problem(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body in (b"0", b"1"):
            raise ValueError("never")
        return apply(conn, message)

    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic, listener, orderly=True, delays=DelaySchedule.of(["1h"])):
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 4, "two keys are held, with one behind each")
        inbox.conn.execute(
            "UPDATE outbox.inbox_parked SET due_at = now() WHERE id = "
            "(SELECT id FROM outbox.inbox_parked WHERE state = 'retry' ORDER BY id LIMIT 1)"
        )
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one is dead")
    [row] = _ls(inbox)
    names = ("orderly", "retries_due", "retries_later", "retries_failed", "waiting", "held_keys", "dead")
    assert [row[name] for name in names] == [True, 0, 1, 1, 2, 2, 1]
    lines = succeed("status", "--dsn", inbox.dsn).out.splitlines()
    assert "PROBLEM: 1 dead letter of consumer groups: outbox dlq summary" in lines
    assert any(
        line.split()[0] == "consumers" and "1 group, 1 dead letter, 1 retry, 2 held keys" in line
        for line in lines
        if line
    )
    found = outbox("status", "--check", "--json", "--dsn", inbox.dsn).json
    assert found["consumers"] == {
        "groups": 1,
        "dead": 1,
        "retries": 1,
        "retrying": {inbox.group: 1},
        "held_keys": 2,
        "idle_members": 0,
        "idle_group": None,
        "full_keys": 0,
        "full_group": None,
        "paused": 0,
        "paused_group": None,
    }
    assert "dead_letters" in [one["kind"] for one in found["problems"]]


@pytest.mark.feature("S-98")
def test_a_member_without_a_partition_is_reported_until_it_has_one(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    idle = "outbox.consumer_member", "partitions = 0 AND idle_since IS NOT NULL"
    with inbox.consumer(topic) as first:
        wait_until(lambda: inbox.count(*idle) == 0 < inbox.count(idle[0]), "it has the partition")
        with inbox.consumer(topic):
            wait_until(lambda: inbox.count(idle[0]) == 2, "there are two members")
            wait_until(lambda: inbox.count(*idle) == 1, "there is nothing for one of them")
            assert _ls(inbox)[0]["idle_members"] == 0, "it may be a rebalance"
            inbox.conn.execute(
                "UPDATE outbox.consumer_member SET idle_since = idle_since - interval '1 minute'"
            )
            [row] = _ls(inbox)
            assert (row["members"], row["idle_members"]) == (2, 1)
            given = ("--dsn", inbox.dsn)
            shown = succeed("consumers", "show", inbox.group, *given).out
            assert re.search(
                "runs, 0 partitions since .*runs, 1 partition,|1 partition,.*0 partitions since", shown, re.S
            )
            problem = f"such as {inbox.group}, read no partition: "
            assert problem in succeed("status", *given).out
            found = outbox("status", "--check", "--json", *given).json
            assert "idle_members" in [one["kind"] for one in found["problems"]]
            first.close()
            wait_until(lambda: inbox.count(*idle) == 0, "the other one takes the partition")
            assert _ls(inbox)[0]["idle_members"] == 0
            assert problem not in succeed("status", *given).out


def test_the_time_without_a_partition_counts_from_when_it_began(inbox: InboxStage) -> None:
    def since(partitions: int) -> object:
        with inbox.conn.transaction():
            run(inbox.conn, membership.register("points", "m", "{}", orderly=False, partitions=partitions))
        [(found,)] = inbox.conn.execute("SELECT idle_since FROM outbox.consumer_member").fetchall()
        return found

    began = since(0)
    assert began is not None
    assert since(0) == began
    assert since(2) is None
    assert since(0) != began


@pytest.mark.feature("S-98")
def test_lag_ends_at_the_last_stable_offset(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_in_transactions(topic, 3)
    producer = Producer(
        {"bootstrap.servers": inbox.bootstrap_servers, "transactional.id": f"test-{uuid4()}", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "open", "k", 0)
    producer.flush(30)
    with inbox.consumer(topic):
        inbox.wait_applied(3)
        wait_until(lambda: _ls(inbox)[0]["lag"] == 0, "nothing that is committed is left")
    producer.commit_transaction(30)
    assert _ls(inbox)[0]["lag"] == 2, "the message, and the end of its transaction"


def test_a_topic_that_was_made_again_has_no_lag_for_its_old_position(inbox: InboxStage, topic: str) -> None:
    with inbox.consumer(topic):
        wait_until(lambda: inbox.count("outbox.inbox_position") == 4, "it has positions")
    inbox.conn.execute("UPDATE outbox.inbox_topic SET kafka_id = 'cluster/of a topic that was deleted'")
    [row] = _ls(inbox)
    assert (row["topic"], row["lag"], row["oldest_age_seconds"]) == (topic, None, None)


def test_an_unknown_group_and_kafka_away_are_refused_by_name(inbox: InboxStage, topic: str) -> None:
    ran = outbox("consumers", "show", "nobody", "--dsn", inbox.dsn)
    assert (ran.code, "None exists yet" in ran.err) == (1, True)
    with inbox.consumer(topic):
        wait_until(lambda: inbox.count("outbox.inbox_position") == 4, "it has positions")
    ran = outbox("consumers", "show", "nobody", "--dsn", inbox.dsn)
    assert f"There are: {inbox.group}" in ran.err
    ran = outbox("consumers", "ls", "--dsn", inbox.dsn, "--bootstrap-servers", "localhost:1")
    assert (ran.code, "cannot read Kafka at localhost:1" in ran.err) == (1, True)
