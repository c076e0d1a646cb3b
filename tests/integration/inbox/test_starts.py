"""Where a group goes on: at its own position, in partitions and topics that are new, where records are gone."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from outbox.inbox import FIRST, LAST, ConsumeFrom
from outbox.inbox.metrics import prometheus_text, ready
from tests.support.inbox_days import delete_records
from tests.support.inbox_stage import InboxStage
from tests.support.moved_keys import grow
from tests.support.scraping import samples
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def send(inbox: InboxStage, topic: str, *bodies: str, partition: int = 0) -> None:
    """Produce messages of one key."""
    for body in bodies:
        inbox.produce(topic, "k", body, partition=partition)
    inbox.flush()


@pytest.mark.feature("S-89")
@pytest.mark.parametrize("later", [FIRST, LAST])
def test_a_group_that_has_a_position_goes_on_there_whatever_its_setting(
    inbox: InboxStage, make_topic: MakeTopic, later: ConsumeFrom
) -> None:
    topic = make_topic(partitions=1)
    send(inbox, topic, "before")
    with inbox.consumer(topic, consume_from=LAST, orderly=True):
        wait_until(lambda: inbox.count("outbox.inbox_position"), "the group has a position")
        send(inbox, topic, "one")
        inbox.wait_applied(1)
    send(inbox, topic, "while it was away")
    with inbox.consumer(topic, consume_from=later, orderly=True):
        send(inbox, topic, "two")
        inbox.wait_applied(3)
    assert inbox.applied("body") == ["one", "while it was away", "two"]


@pytest.mark.feature("S-89")
def test_a_partition_that_is_added_is_read_from_its_beginning(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    send(inbox, topic, "before")
    with inbox.consumer(topic, consume_from=LAST, orderly=True):
        wait_until(lambda: inbox.count("outbox.inbox_position"), "the group has a position")
    grow(inbox.bootstrap_servers, topic, 2)
    with closing(InboxStage(inbox.dsn, inbox.bootstrap_servers)) as other:  # whose producer knows it
        send(other, topic, "in the new one", partition=1)
    with inbox.consumer(topic, consume_from=LAST, orderly=True):
        inbox.wait_applied(1)
    assert inbox.applied("body") == ["in the new one"]


@pytest.mark.parametrize("on_gap", ["stop", "continue"])
def test_records_that_kafka_deleted_before_the_group_had_them_are_reported(
    inbox: InboxStage, make_topic: MakeTopic, on_gap: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Partition 0 has lost records that the group has not handled; partition 1 has not."""
    topic = make_topic(partitions=2)
    send(inbox, topic, "0")
    with inbox.consumer(topic, orderly=True):
        inbox.wait_applied(1)
    send(inbox, topic, "1", "2", "3")
    delete_records(inbox, topic, 3)
    caplog.set_level(logging.ERROR, "outbox.inbox")
    with inbox.consumer(topic, orderly=True, on_gap=on_gap) as consumer:
        send(inbox, topic, "other", partition=1)
        inbox.wait_applied(2 if on_gap == "stop" else 3)
        wait_until(lambda: "does not have offsets 1 to 2" in caplog.text, "the gap is reported")
        stopped, expected = consumer.vitals().stopped, {(topic, 0): "Kafka does not have offsets 1 to 2"}
        read = {each.partition for each in consumer.vitals().partitions}
        [check], page = list(ready([consumer])), samples(prometheus_text([consumer]))
    assert stopped == (expected if on_gap == "stop" else {})
    assert check.ok is (on_gap == "continue")
    assert (f"{topic}[0]: Kafka does not have offsets 1 to 2" in str(check.detail)) is (on_gap == "stop")
    assert page["outbox_member_partitions_stopped", inbox.group] == len(stopped)
    assert f"{topic}[0]: Kafka does not have offsets 1 to 2, which group {inbox.group} has not" in caplog.text
    assert read == ({1} if on_gap == "stop" else {0, 1})
    assert sorted(inbox.applied("body")) == (["0", "other"] if on_gap == "stop" else ["0", "3", "other"])
    assert (
        inbox.count("outbox.inbox_position", f"part = 0 AND next_off = {1 if on_gap == 'stop' else 4}") == 1
    )


@pytest.mark.feature("S-89")
def test_a_topic_that_was_made_again_is_another_topic(inbox: InboxStage, make_topic: MakeTopic) -> None:
    """Its records have no ids of their own, and lie at the offsets that the old ones had."""
    topic = make_topic(partitions=1)
    for body in ("0", "1"):
        inbox.produce(topic, "k", body, message_id=None)
    inbox.flush()
    with inbox.consumer(topic, orderly=True):
        inbox.wait_applied(2)
    admin = AdminClient({"bootstrap.servers": inbox.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=15).topics, "it is gone")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    wait_until(lambda: topic in admin.list_topics(timeout=15).topics, "it is there again")
    for body in ("2", "3"):
        inbox.produce(topic, "k", body, message_id=None)
    inbox.flush()
    with inbox.consumer(topic, orderly=True):
        inbox.wait_applied(4)
    assert inbox.applied("body") == ["0", "1", "2", "3"]
    assert inbox.count("outbox.inbox_topic") == 2
