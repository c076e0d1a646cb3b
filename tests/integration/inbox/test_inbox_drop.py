"""`outbox inbox`: days of the inbox are dropped when Kafka cannot deliver their messages again, and only then."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from outbox.inbox import ConsumeResult, DelaySchedule, plans
from tests.support.inbox_days import (
    born,
    delete_records,
    has_old_day,
    old_day,
    produce_old,
    reasons,
    run,
)
from tests.support.inbox_stage import InboxStage
from tests.support.logins import Logins
from tests.support.outbox_command import outbox
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

TOO_OLD = f"state = 'dead' AND fingerprint = '{plans.TOO_OLD}'"


def consume(inbox: InboxStage, topic: str, count: int) -> None:
    """Let the group read a topic until so many messages are applied, and no further."""
    with inbox.consumer(topic):
        inbox.wait_applied(count)
        wait_until(
            lambda: inbox.count("outbox.inbox_position", "next_off > 0"),
            "the positions are stored",
            seconds=30,
        )


def test_a_dropped_day_whose_messages_come_again_has_no_second_effect(inbox: InboxStage, topic: str) -> None:
    ids = produce_old(inbox, topic)
    inbox.produce(topic, "k", "today")
    inbox.flush()
    consume(inbox, topic, 6)
    delete_records(inbox, topic, 5)
    ran = run(inbox, "drop")
    assert (ran.code, old_day(ran)["outcome"], old_day(ran)["rows"]) == (0, "dropped", 5)
    assert not has_old_day(inbox)
    assert inbox.count("outbox.inbox") == 1
    inbox.produce(topic, "old", "0", message_id=ids[0], born_at=born())
    inbox.produce(topic, "old", "0", message_id=ids[0], born_at=born())
    inbox.produce(topic, "k", "last")
    inbox.flush()
    with inbox.consumer(topic):
        inbox.wait_applied(7)
        wait_until(lambda: inbox.committed(topic) == 9, "all messages are done")
    assert sorted(inbox.applied("body")) == ["0", "1", "2", "3", "4", "last", "today"]
    assert inbox.count("outbox.inbox_parked", TOO_OLD) == inbox.count("outbox.inbox_parked") == 1
    # The dead letter keeps its row until an operator has dealt with it.
    delete_records(inbox, topic, 9)
    ran = run(inbox, "drop")
    assert (ran.code, reasons(ran)) == (1, ["parked"])


def test_a_day_that_kafka_still_has_is_kept_and_nothing_is_changed(inbox: InboxStage, topic: str) -> None:
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    delete_records(inbox, topic, 4)
    ran = run(inbox, "drop")
    assert (ran.code, reasons(ran)) == (1, ["delivered"])
    assert f"{topic}[0] from offset 4 on" in old_day(ran)["reasons"][0]["detail"]
    assert inbox.count("outbox.inbox") == 5
    assert inbox.count("outbox.inbox_floor") == 0
    assert run(inbox, "ls").json["days"][0]["outcome"] == "refused"


def test_a_day_of_a_compacted_topic_goes_by_age_alone(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1, cleanup_policy="compact")
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    ran = run(inbox, "drop")
    assert reasons(ran) == ["delivered"]
    assert "--without-kafka" in old_day(ran)["reasons"][0]["detail"]
    assert outbox("inbox", "drop", "--dsn", inbox.dsn).code == 2
    assert outbox("inbox", "drop", "--dsn", inbox.dsn, "--without-kafka").code == 1, "it is not agreed to"
    assert has_old_day(inbox)
    ran = run(inbox, "drop", "--without-kafka", "--yes")
    assert (ran.code, old_day(ran)["outcome"]) == (0, "dropped")
    assert inbox.count("outbox.inbox_floor") == 1


def test_a_day_of_a_topic_that_was_deleted_is_dropped(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    admin = AdminClient({"bootstrap.servers": inbox.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=15).topics, "the topic is deleted")
    assert old_day(run(inbox, "drop"))["outcome"] == "dropped"


def test_a_day_of_another_cluster_is_kept(inbox: InboxStage, topic: str) -> None:
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    delete_records(inbox, topic, 5)
    inbox.conn.execute("UPDATE outbox.inbox_topic SET kafka_id = 'another/' || kafka_id")
    assert reasons(run(inbox, "drop")) == ["other_cluster"]


def test_a_day_of_which_a_message_is_parked_is_kept(inbox: InboxStage, topic: str) -> None:
    produce_old(inbox, topic, 1)
    with inbox.consumer(topic, lambda *_: ConsumeResult.RECONSUME_LATER, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.committed(topic) == 1, "it is parked")
    delete_records(inbox, topic, 1)
    assert reasons(run(inbox, "drop")) == ["parked"]
    inbox.conn.execute("DELETE FROM outbox.inbox_parked")
    assert old_day(run(inbox, "drop"))["outcome"] == "dropped"


def test_a_day_of_which_a_group_has_messages_to_read_is_kept(inbox: InboxStage, topic: str) -> None:
    """They were never applied; below a floor they would be set aside."""
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    delete_records(inbox, topic, 5)
    inbox.produce(topic, "k", "unread", partition=1, born_at=born(), timestamp=int(born() * 1000))
    inbox.flush()
    ran = run(inbox, "drop")
    assert reasons(ran) == ["behind"], old_day(ran)
    assert inbox.group in old_day(ran)["reasons"][0]["detail"]
    consume(inbox, topic, 6)
    assert reasons(run(inbox, "drop")) == ["delivered"], "it is one of the day's rows now"
    delete_records(inbox, topic, 1, partition=1)
    assert old_day(run(inbox, "drop"))["outcome"] == "dropped"


def test_a_day_is_kept_for_the_retention_after_its_last_message_was_handled(
    inbox: InboxStage, topic: str
) -> None:
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    delete_records(inbox, topic, 5)
    ran = run(inbox, "drop", older_than="7d")
    assert (ran.code, reasons(ran), old_day(ran)["outcome"]) == (0, ["young"], "kept")
    inbox.conn.execute("UPDATE outbox.inbox SET handled_at = now() - interval '8 days'")
    assert old_day(run(inbox, "drop", older_than="7d"))["outcome"] == "dropped"


def test_the_day_of_today_and_the_default_partition_are_never_dropped(inbox: InboxStage, topic: str) -> None:
    inbox.produce(topic, "k", "today")
    inbox.produce(topic, "k", "1970", born_at=1.0)
    inbox.flush()
    consume(inbox, topic, 2)
    ran = run(inbox, "drop", "--without-kafka", "--yes")
    assert ran.code == 0
    kept = {day["day"]: day["reasons"][0]["name"] for day in ran.json["days"] if day["outcome"] == "kept"}
    assert kept[None] == "default"
    assert set(kept.values()) == {"default", "young"}
    assert inbox.count("outbox.inbox") == 2
    assert [day["outcome"] for day in ran.json["days"] if day["rows"] == 0] == ["dropped"], (
        "yesterday is empty"
    )


def test_a_dry_run_and_a_list_change_nothing(inbox: InboxStage, topic: str) -> None:
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    delete_records(inbox, topic, 5)
    for ran in (run(inbox, "drop", "--dry-run"), run(inbox, "ls")):
        assert (ran.code, old_day(ran)["outcome"], old_day(ran)["groups"]) == (0, "droppable", 1)
    assert inbox.count("outbox.inbox") == 5
    assert inbox.count("outbox.inbox_floor") == 0
    table = outbox("inbox", "ls", "--dsn", inbox.dsn, "--older-than", "0s").out
    assert "unverified: no broker was asked" in table


def test_no_broker_is_an_error_and_drops_nothing(inbox: InboxStage, topic: str) -> None:
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    options = ["--dsn", inbox.dsn, "--older-than", "0s", "--kafka-config", "socket.timeout.ms=1000"]
    ran = outbox("inbox", "drop", *options, "--bootstrap-servers", "127.0.0.1:1")
    assert ran.code == 1
    assert "Kafka at 127.0.0.1:1 does not return" in ran.err
    assert inbox.count("outbox.inbox") == 5


def test_a_reader_may_list_days_and_only_the_owner_may_drop_them(
    inbox: InboxStage, logins: Logins, topic: str
) -> None:
    produce_old(inbox, topic)
    consume(inbox, topic, 5)
    delete_records(inbox, topic, 5)
    reader = logins.make("outbox_reader")
    assert old_day(run(inbox, "ls", dsn=reader))["outcome"] == "droppable"
    for role in ("outbox_reader", "outbox_operator", "outbox_consumer"):
        ran = run(inbox, "drop", dsn=logins.make(role))
        assert ran.code == 1
        assert "may not drop partitions" in ran.err
    for role in ("outbox_operator", "outbox_consumer"):
        with logins.connect(role) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("INSERT INTO outbox.inbox_floor VALUES (1, '2000-01-01')")
    assert inbox.count("outbox.inbox") == 5
