"""What is delivered: tags, records of others, rewound offsets, start positions, members that differ."""

from __future__ import annotations

import logging
import threading

import psycopg
import pytest

from outbox.errors import InvalidSubscriptionError, SubscriptionConflictError
from outbox.inbox import FIRST, LAST, ConsumedMessage, ConsumeFrom, ConsumeResult, PushConsumer, threads
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


@pytest.mark.feature("S-88")
def test_skipped_messages_move_the_offset(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    for number, tags in enumerate(["paid", "sent", "paid||vip", None, "lost", "sent"]):
        inbox.produce(topic, "k", str(number), tags=tags)
    inbox.flush()
    with inbox.consumer({topic: "paid || lost"}):
        inbox.wait_applied(3)
    assert sorted(inbox.applied("body")) == ["0", "2", "4"]
    assert inbox.committed(topic) == 6


def test_records_without_our_headers_are_applied_once(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    inbox.produce(topic, None, "plain", message_id=None)
    inbox.produce(topic, "k", "no uuid", message_id="rubbish", headers=(("x", b"\xff"), ("x", None)))
    inbox.produce(topic, "k", None)
    inbox.produce(topic, "k", b"\x00\x01")
    inbox.flush()
    with inbox.consumer(topic):
        inbox.wait_applied(3)
        wait_until(lambda: inbox.count("outbox.inbox") == 4 or None, "all are in the inbox")
    before = sorted(map(str, inbox.applied()))
    inbox.set_committed(topic, {0: 0})
    inbox.produce(topic, "k", "last")
    inbox.flush()
    with inbox.consumer(topic):
        inbox.wait_applied(len(before) + 1)
    assert inbox.count("applied") == len(before) + 1


def test_offsets_set_to_zero_apply_nothing_twice(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic):
        inbox.wait_applied(20)
    inbox.set_committed(topic, dict.fromkeys(range(4), 0))
    inbox.produce_numbered(topic, 4, start=20)
    with inbox.consumer(topic):
        inbox.wait_applied(24)
    assert inbox.count("applied") == 24


def test_offsets_that_kafka_lost_are_taken_from_postgresql(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_numbered_in(topic, 5)
    with inbox.consumer(topic, consume_from=LAST, group="lost") as consumer:
        wait_until(lambda: inbox.count("outbox.inbox_position"), "the group has a position")
        inbox.produce(topic, "k", "5")
        inbox.flush()
        inbox.wait_applied(1)
    assert consumer.member.group == "lost"
    inbox.forget_offsets("lost")
    inbox.produce(topic, "k", "6")
    inbox.flush()
    with inbox.consumer(topic, consume_from=LAST, group="lost"):
        inbox.wait_applied(2)
    assert inbox.applied("body") == ["5", "6"]


def test_offsets_of_kafka_ahead_of_a_restored_database_are_read_again(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_numbered_in(topic, 3)
    with inbox.consumer(topic, orderly=True):
        inbox.wait_applied(3)
    inbox.conn.execute("DELETE FROM applied WHERE body = '2'")
    inbox.conn.execute("DELETE FROM outbox.inbox WHERE off = 2")
    inbox.conn.execute("UPDATE outbox.inbox_position SET next_off = 2")
    with inbox.consumer(topic, orderly=True):
        inbox.wait_applied(3)
    assert inbox.applied("body") == ["0", "1", "2"]


def test_a_position_that_the_database_lost_is_not_taken_from_kafka(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic):
        inbox.wait_applied(20)
    # As after a restore to a time at which the partition was new.
    inbox.conn.execute(
        "DELETE FROM applied USING outbox.inbox i WHERE i.message_id = applied.message_id AND part = 1"
    )
    inbox.conn.execute("DELETE FROM outbox.inbox WHERE part = 1")
    inbox.conn.execute("DELETE FROM outbox.inbox_position WHERE part = 1")
    with inbox.consumer(topic):
        inbox.wait_applied(20)
    assert inbox.count("applied") == 20


def test_a_group_that_kafka_knows_and_the_database_does_not_goes_on_at_its_offsets(
    inbox: InboxStage, topic: str
) -> None:
    inbox.produce_numbered(topic, 40)
    inbox.set_committed(topic, {0: 12, 1: 12, 2: 8, 3: 7})
    with inbox.consumer(topic):
        inbox.wait_applied(1)
        # One member opens all partitions; those that another one opens later have the same offsets.
        wait_until(lambda: inbox.count("outbox.inbox_position", "next_off > 7") == 4, "all have positions")
    assert inbox.count("applied") == 1


def test_an_id_without_a_time_of_birth_is_applied_once_on_two_days(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    own = (("outbox-id", b"6f7c1f1e-0a53-4c3c-9d0c-2a6f1c4b8e11"), ("outbox-born-at", b"rubbish"))
    for timestamp in (1_700_000_000_000, 1_700_200_000_000):
        inbox.produce(topic, "k", "1", message_id=None, headers=own, timestamp=timestamp)
    inbox.produce(topic, "k", "2")
    inbox.flush()
    with inbox.consumer(topic, orderly=True):
        wait_until(lambda: "2" in inbox.applied("body"), "the last one is applied")
    assert inbox.applied("body") == ["1", "2"]


@pytest.mark.feature("S-89")
@pytest.mark.parametrize("name", ["first", "last", "timestamp"])
def test_a_new_group_begins_where_it_is_told(
    inbox: InboxStage, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    topic = make_topic(partitions=1)
    inbox.produce(topic, "k", "old")
    inbox.flush()
    row = inbox.conn.execute("SELECT clock_timestamp() + interval '1 hour'").fetchone()
    assert row is not None
    begins = {"first": FIRST, "last": LAST, "timestamp": ConsumeFrom.timestamp(row[0])}[name]
    with (
        caplog.at_level(logging.INFO, "outbox.inbox"),
        inbox.consumer(topic, consume_from=begins, orderly=True),
    ):
        wait_until(lambda: inbox.count("outbox.inbox_position"), "the group has a position")
        inbox.produce(topic, "k", "new")
        inbox.flush()
        inbox.wait_applied(2 if name == "first" else 1)
    assert inbox.applied("body") == (["old", "new"] if name == "first" else ["new"])
    assert f"{topic}[0] is read from offset {0 if name == 'first' else 1}: " in caplog.text


@pytest.mark.feature("S-89")
def test_where_a_new_group_begins_cannot_be_left_out(inbox: InboxStage, topic: str) -> None:
    with pytest.raises(TypeError, match="consume_from"):
        PushConsumer(
            inbox.group,
            {topic: "*"},
            apply,
            dsn=inbox.dsn,
            kafka={"bootstrap.servers": inbox.bootstrap_servers},
        )


def test_a_member_with_another_subscription_is_refused(inbox: InboxStage, topic: str) -> None:
    with inbox.consumer({topic: "a"}):
        wait_until(lambda: inbox.count("outbox.consumer_member"), "the member is listed")
        with pytest.raises(SubscriptionConflictError, match="would skip messages of each other"):
            inbox.consumer({topic: "b"}).run()
        with pytest.raises(SubscriptionConflictError, match="an orderly listener"):
            inbox.consumer({topic: "a"}, orderly=True).run()
    assert inbox.count("outbox.consumer_member") == 0
    inbox.produce(topic, "k", "1", tags="b")
    inbox.flush()
    with inbox.consumer({topic: "b"}):
        inbox.wait_applied(1)


@pytest.mark.feature("S-78")
def test_a_group_of_topics_of_several_types_is_refused(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topics = {kind: make_topic(partitions=1) for kind in ("NORMAL", "FIFO", "MIXED", "unregistered")}
    for kind in ("NORMAL", "FIFO", "MIXED"):
        inbox.conn.execute(
            "INSERT INTO outbox.topic (name, message_type, partitions) VALUES (%s, %s, 1)",
            [topics[kind], kind],
        )
    with pytest.raises(InvalidSubscriptionError, match="Use a group for each type") as refused:
        inbox.consumer(dict.fromkeys(topics.values(), "*")).run()
    assert f"{topics['FIFO']} is FIFO, {topics['NORMAL']} is NORMAL" in str(refused.value)
    assert inbox.count("outbox.consumer_group") == 0, "nothing was registered"
    inbox.produce(topics["FIFO"], "k", "1")
    inbox.flush()
    with inbox.consumer({topic: "*" for kind, topic in topics.items() if kind != "NORMAL"}):
        inbox.wait_applied(1)


def test_lag_becomes_zero_on_a_topic_of_kafka_transactions(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    inbox.produce_in_transactions(topic, 3)
    with inbox.consumer(topic):
        inbox.wait_applied(3)
        wait_until(lambda: inbox.committed(topic) == inbox.end_of(topic), "nothing lies behind the offset")


def test_listeners_see_what_was_committed_before_each_statement(inbox: InboxStage, topic: str) -> None:
    seen = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(conn.execute("SHOW transaction_isolation").fetchone())
        return apply(conn, message)

    def connected() -> Connection:
        return psycopg.connect(inbox.dsn, options="-c default_transaction_isolation=serializable")

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener, dsn=connected):
        inbox.wait_applied(1)
    assert seen == [("read committed",)]


def test_a_partition_that_was_paused_and_given_away_is_read_when_it_comes_back(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    with inbox.consumer(topic) as consumer:
        inbox.produce_numbered_in(topic, 1)
        inbox.wait_applied(1)
        poller = consumer._poller
        assert poller is not None
        wait_until(lambda: inbox.committed(topic) == 1, "the offset is committed")
        place, once, done = [(topic, 0)], poller.run_once, threading.Event()

        def given_away_and_back() -> None:
            once()
            if not done.is_set():
                # As a backlog and two rebalances do, in the thread that owns the client.
                poller.client.pause(place)
                poller.give_away(place, in_kafka=True)
                poller.waiting.add(place)
                done.set()

        poller.run_once = given_away_and_back  # type: ignore[method-assign]
        assert done.wait(60)
        inbox.produce(topic, "k", "again")
        inbox.flush()
        inbox.wait_applied(2)


def test_a_connection_that_an_application_cannot_make_for_a_while_ends_no_thread(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LAST_PAUSE", threads.FIRST_PAUSE)  # else it takes half a minute
    refused: list[int] = []

    def connected() -> Connection:
        if threading.current_thread().name.startswith("outbox-listener") and len(refused) < 30:
            refused.append(1)
            raise RuntimeError("no token")
        return psycopg.connect(inbox.dsn)

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, dsn=connected):
        inbox.wait_applied(8)
    assert len(refused) == 30
