"""Records that other programs made of a message, with its headers: each is applied once, and a redelivery is refused.

Kafka Streams, Kafka Connect and MirrorMaker copy headers. So a group that reads a topic and what was derived from it
gets several records with one `outbox-id`.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from outbox import Message, Outbox
from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult
from outbox.rocketmq.consumer import ClientConfiguration, FilterExpression, SimpleConsumerBuilder
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.outbox_command import succeed
from tests.support.relay_in_process import publish
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

BORN = 1_795_000_000.0
KINDS: dict[str, dict[str, Any]] = {
    "single": {},
    "orderly": {"orderly": True},
    "batches": {"listener": apply_all, "batch": 10},
    "orderly batches": {"listener": apply_all, "batch": 10, "orderly": True},
}


class Copies:
    """Two topics of a group, and records with the headers of one message."""

    def __init__(self, inbox: InboxStage, make_topic: MakeTopic) -> None:
        self.inbox, self.topic, self.derived = inbox, make_topic(), make_topic()
        self._read = 0

    @property
    def topics(self) -> dict[str, str]:
        """What the group reads."""
        return {self.topic: "*", self.derived: "*"}

    def produce(
        self, topic: str, body: str, message_id: str, *, partition: int = 0, key: str | None = "k"
    ) -> None:
        """Produce one record with the headers of a message."""
        self.inbox.produce(topic, key, body, message_id=message_id, born_at=BORN, partition=partition)
        self.inbox.flush()
        self._read += 1

    def wait(self) -> None:
        """Wait until the group has passed all records."""
        passed = "SELECT sum(next_off) FROM outbox.inbox_position"
        wait_until(
            lambda: self.inbox.conn.execute(passed).fetchall() == [(self._read,)], "all records are passed"
        )


@pytest.fixture
def copies(inbox: InboxStage, make_topic: MakeTopic) -> Copies:
    """A group that reads a topic, and another one that is derived from it."""
    return Copies(inbox, make_topic)


def some_id() -> str:
    """The id of a message of the relay, as an application may choose it."""
    return "0197f0a0-0000-4000-8000-000000000001"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_first", [True, False], ids=["before the copy", "after the copy"])
def test_a_routed_record_is_applied_beside_its_original_however_often_both_come(
    copies: Copies, kind: str, is_first: bool
) -> None:
    topics = [copies.topic, copies.derived] if is_first else [copies.derived, copies.topic]
    with copies.inbox.consumer(copies.topics, **KINDS[kind]):
        for again in range(3):
            for (
                topic
            ) in topics:  # the relay publishes again after a crash: in the partition, or in another one
                copies.produce(topic, "same", some_id(), partition=again)
                copies.wait()
    assert len(set(copies.inbox.applied())) == len(copies.inbox.applied()) == 2
    assert copies.inbox.count("outbox.inbox_parked") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_each_result_of_a_flat_map_is_applied_once_however_often_it_comes(copies: Copies, kind: str) -> None:
    results = ["one", "two", "three"]
    copies.produce(copies.topic, "original", some_id())
    for _ in range(2):
        for body in results:
            copies.produce(copies.derived, body, some_id())
    with copies.inbox.consumer(copies.topics, **KINDS[kind]):
        copies.wait()
        for body in results:
            copies.produce(copies.derived, body, some_id(), partition=1)
        copies.wait()
    assert Counter(copies.inbox.applied("body")) == Counter(["original", *results])
    assert len(set(copies.inbox.applied())) == 4
    assert copies.inbox.count("outbox.inbox_parked") == 0


def test_a_record_that_a_program_writes_back_into_the_topic_is_applied_once(copies: Copies) -> None:
    with copies.inbox.consumer(copies.topics):
        for body in ("original", "changed", "original", "changed"):
            copies.produce(copies.topic, body, some_id())
            copies.wait()
    assert copies.inbox.applied("body") == ["original", "changed"]


class Failing:
    """Fails with a body at its first runs."""

    def __init__(self, body: bytes, runs: int) -> None:
        self._body, self.left, self._lock = body, runs, threading.Lock()

    def __call__(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        """Write the row of the message."""
        with self._lock:
            if message.body == self._body and self.left:
                self.left -= 1
                return ConsumeResult.RECONSUME_LATER
        return apply(conn, message)


def test_a_copy_that_fails_is_parked_dies_and_is_redriven_under_its_own_id(copies: Copies) -> None:
    listener = Failing(b"copy", runs=4)
    with copies.inbox.consumer(copies.topics, listener):
        copies.produce(copies.topic, "original", some_id())
        copies.wait()
        copies.produce(copies.derived, "copy", some_id())
        wait_until(lambda: copies.inbox.count("outbox.inbox_parked", "state = 'dead'"), "the copy is dead")
        copies.produce(copies.derived, "copy", some_id())
        copies.wait()
        assert copies.inbox.applied("body") == ["original"]
        succeed("dlq", "redrive", "--group", copies.inbox.group, "--yes", "--dsn", copies.inbox.dsn)
        copies.inbox.wait_applied(2)
        copies.produce(copies.derived, "copy", some_id())
        copies.wait()
    assert copies.inbox.applied("body") == ["original", "copy"]
    assert copies.inbox.count("outbox.inbox_parked") == 0


def test_copies_keep_their_place_behind_a_message_of_their_key_that_failed(copies: Copies) -> None:
    """Also those whose id was taken before their key was held: they are parked together with the others."""
    ids = [f"0197f0a0-0000-4000-8000-00000000010{number}" for number in range(10)]
    with copies.inbox.consumer(copies.topics):
        for number, each in enumerate(ids[::2]):
            copies.produce(copies.topic, f"original {number}", each, key=None)
        copies.wait()
    copies.produce(copies.derived, "first", "0197f0a0-0000-4000-8000-000000000200")
    for number, each in enumerate(ids):
        copies.produce(copies.derived, f"{number}", each)
    copies.inbox.conn.execute("TRUNCATE applied")
    group = {"orderly": True, "workers": 2, "retry_workers": 1}
    with copies.inbox.consumer(copies.topics, Failing(b"first", runs=2), **group):
        copies.inbox.wait_applied(11)
    assert copies.inbox.applied("body") == ["first", *map(str, range(10))]


def test_a_copy_that_is_discarded_is_recorded_and_not_run_again(copies: Copies) -> None:
    runs: Counter[bytes | None] = Counter()

    def discard(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        runs[message.body] += 1
        return ConsumeResult.DISCARD

    with copies.inbox.consumer(copies.topics, discard):
        for body in ("original", "copy", "copy"):
            copies.produce(copies.topic, body, some_id())
            copies.wait()
    assert runs == {b"original": 1, b"copy": 1}
    assert copies.inbox.count("outbox.inbox") == 2


def test_a_topic_that_was_made_again_has_no_copies_but_the_messages_of_before(copies: Copies) -> None:
    inbox = copies.inbox
    admin = AdminClient({"bootstrap.servers": inbox.bootstrap_servers, "log_level": 0})
    inbox.produce(copies.topic, "k", "body", message_id=some_id(), born_at=BORN)
    inbox.flush()
    with inbox.consumer(copies.topic):
        inbox.wait_applied(1)
    for deleted in admin.delete_topics([copies.topic]).values():
        deleted.result(15)
    wait_until(lambda: copies.topic not in admin.list_topics(timeout=15).topics, "the topic is gone")
    for made in admin.create_topics([NewTopic(copies.topic, 4, 1)]).values():
        made.result(15)
    stage = InboxStage(
        inbox.dsn, inbox.bootstrap_servers, group=inbox.group
    )  # a client that has not seen the old one
    stage.produce(copies.topic, "k", "body", message_id=some_id(), born_at=BORN)
    stage.flush()
    consumer = stage.consumer(copies.topic)
    with consumer:
        wait_until(lambda: consumer.vitals().messages.get("refused"), "the message is refused")
    assert stage.count("applied") == 1
    stage.close()


def test_what_a_mirror_of_another_cluster_brings_again_is_refused(copies: Copies) -> None:
    inbox, count = copies.inbox, 20
    for number in range(count):
        copies.produce(copies.topic, str(number), f"0197f0a0-0000-4000-8000-0000000003{number:02}")
    with inbox.consumer(copies.topic):
        inbox.wait_applied(count)
        wait_until(lambda: inbox.committed(copies.topic) == count, "all is stored")
    # The group's rows come from a cluster that is gone, where the topic had its name there.
    inbox.conn.execute("UPDATE outbox.inbox_topic SET kafka_id = 'gone/' || kafka_id, name = 'x.' || name")
    inbox.set_committed(copies.topic, {0: 0})
    consumer = inbox.consumer(copies.topic)
    with consumer:
        wait_until(lambda: consumer.vitals().messages.get("refused") == count, "all are refused")
    assert inbox.count("applied") == count


def test_a_simple_consumer_receives_an_original_and_its_copies(copies: Copies) -> None:
    for topic, body in ((copies.topic, "a"), (copies.derived, "a"), (copies.derived, "b")):
        copies.produce(topic, body, some_id(), key=None)
    builder = (
        SimpleConsumerBuilder(copies.inbox.dsn)
        .set_client_configuration(ClientConfiguration(copies.inbox.bootstrap_servers))
        .set_consumer_group(copies.inbox.group)
        .set_subscription_expressions({topic: FilterExpression("*") for topic in copies.topics})
        .set_consume_from(FIRST)
        .set_await_duration(10.0)
    )
    received: list[tuple[str, bytes | None]] = []
    with builder.build() as consumer:

        def all_received() -> bool:
            for view in consumer.receive(3, timedelta(seconds=60)):
                received.append((view.topic, view.body))
                consumer.ack(view)
            return len(received) == 3

        wait_until(all_received, "three messages are received")
    assert sorted(received) == sorted([(copies.topic, b"a"), (copies.derived, b"a"), (copies.derived, b"b")])


def test_a_replay_gives_a_message_again_whose_id_a_copy_has_taken(copies: Copies) -> None:
    """The group passed the message without applying it, as after a reset to a later offset; it has applied the copy."""
    inbox = copies.inbox
    with inbox.conn.transaction():
        receipt = Outbox().send(inbox.conn, Message(copies.topic, key="k", body="body"))
    born = inbox.conn.execute("SELECT extract(epoch FROM born_at)::float8 FROM outbox.message").fetchall()[0][
        0
    ]
    publish(inbox.dsn, inbox.bootstrap_servers, 1)
    inbox.produce(copies.derived, "k", "body", message_id=receipt.message_id, born_at=born)
    inbox.flush()
    with inbox.consumer(copies.topics):
        inbox.wait_applied(2)
        wait_until(
            lambda: inbox.count("outbox.inbox_position", "next_off > 0") == 2, "the positions are stored"
        )
    kept = "topic_id = (SELECT id FROM outbox.inbox_topic WHERE name = %s)"
    inbox.conn.execute(f"DELETE FROM outbox.inbox WHERE {kept}", [copies.topic])
    inbox.conn.execute(
        f"UPDATE outbox.inbox SET message_id = %s WHERE {kept}", [receipt.message_id, copies.derived]
    )
    command = ("consumers", "replay", inbox.group, "--topic", copies.topic, "--from", "1h", "--yes", "--json")
    assert succeed(*command, "--dsn", inbox.dsn).json["parked"] == 1
    with inbox.consumer(copies.topics):
        inbox.wait_applied(3)
    assert succeed(*command, "--dsn", inbox.dsn).json["parked"] == 0
