"""A group that is paused, or a topic in it: members stay, nothing more is applied, and nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from outbox.errors import ConfigurationError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, pause_group, resume_group
from outbox.inbox.metrics import prometheus_text, ready
from tests.support.inbox_stage import Connection, InboxStage, Listener, apply
from tests.support.outbox_command import outbox, succeed
from tests.support.scraping import samples
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

COUNT = 40


@pytest.fixture
def other(inbox: InboxStage) -> Iterator[InboxStage]:
    """An innocent group of the same database."""
    stage = InboxStage(inbox.dsn, inbox.bootstrap_servers)
    yield stage
    stage.close()


def named(name: str) -> Listener:
    """A listener that states whose effect it is."""
    return lambda conn, message: apply(conn, message, name)


def applied_by(inbox: InboxStage, name: str) -> list[int]:
    """What one member applied, in order."""
    rows = inbox.conn.execute("SELECT body FROM applied WHERE member = %s ORDER BY n", [name])
    return [int(body) for (body,) in rows]


@pytest.mark.feature("S-98")
def test_a_paused_group_applies_nothing_until_it_is_resumed_and_another_one_goes_on(
    inbox: InboxStage, other: InboxStage, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(partitions=1), ("--dsn", inbox.dsn, inbox.group)
    inbox.produce_numbered_in(topic, 1)
    with other.consumer(topic, named("innocent"), orderly=True):
        with inbox.consumer(topic, named("paused"), orderly=True) as consumer:
            wait_until(lambda: applied_by(inbox, "paused") == [0], "it runs")
            pausing = succeed("consumers", "pause", *group, "--reason", "the bank is away")
            assert (
                pausing.out
                == f"group {inbox.group} is paused; go on with: outbox consumers resume {inbox.group}\n"
            )
            wait_until(lambda: consumer.vitals().paused == {"": "the bank is away"}, "it is seen", seconds=60)
            wait_until(lambda: not consumer.vitals().partitions, "no partition is read")
            inbox.produce_numbered_in(topic, COUNT)
            wait_until(lambda: len(applied_by(inbox, "innocent")) == COUNT + 1, "the other group goes on")
            assert all(each.ok for each in ready([consumer])), "a pause is no trouble"
            assert samples(prometheus_text([consumer]))["outbox_member_pauses", inbox.group] == 1
        with inbox.consumer(topic, named("paused"), orderly=True) as consumer:
            wait_until(lambda: consumer.vitals().paused, "a new member knows it")
            inbox.produce_numbered_in(topic, 1)
            wait_until(lambda: len(applied_by(inbox, "innocent")) == COUNT + 2, "the other group goes on")
            assert applied_by(inbox, "paused") == [0]
            shown = succeed("consumers", "show", "--json", *group).json
            [pause] = shown["pauses"]
            assert (pause["topic"], pause["reason"]) == (None, "the bank is away")
            assert pause["paused_by"].startswith("operator:")
            assert "paused_groups" in [
                each["kind"] for each in outbox("status", "--json", "--dsn", inbox.dsn).json["problems"]
            ]
            assert "goes on" in succeed("consumers", "resume", *group).out
            wait_until(lambda: len(applied_by(inbox, "paused")) == COUNT + 2, "it goes on", seconds=120)
    assert applied_by(inbox, "paused") == applied_by(inbox, "innocent") == [0, *range(COUNT), 0]
    assert inbox.count("outbox.consumer_pause", "resumed_by LIKE 'operator:%'") == 1, "the audit"


def test_of_a_paused_topic_nothing_is_tried_again_and_another_topic_goes_on(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topics = make_topic(partitions=1), make_topic(partitions=1)
    failing = {"is_over": False}

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0" and not failing["is_over"]:
            return ConsumeResult.RECONSUME_LATER
        return apply(conn, message, message.topic)

    for topic in topics:
        inbox.produce_numbered_in(topic, 1)
    delays = DelaySchedule.of([0.2] * 1000)
    with inbox.consumer(dict.fromkeys(topics, "*"), listener, delays=delays, orderly=True) as consumer:
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 2, "a message of each topic is tried again")
        assert pause_group(inbox.conn, inbox.group, topic=topics[0], reason="duplicates")
        assert not pause_group(inbox.conn, inbox.group, topic=topics[0], reason="another one")
        wait_until(lambda: consumer.vitals().paused == {topics[0]: "duplicates"}, "it is seen", seconds=60)
        wait_until(lambda: len(consumer.vitals().partitions) == 1, "its partition is not read")
        failing["is_over"] = True
        for topic in topics:
            inbox.produce(topic, "k", "1")
        inbox.flush()
        wait_until(lambda: applied_by(inbox, topics[1]) == [0, 1], "the other topic goes on")
        assert applied_by(inbox, topics[0]) == []
        assert resume_group(inbox.conn, inbox.group, topic=topics[0])
        assert not resume_group(inbox.conn, inbox.group, topic=topics[0])
        wait_until(lambda: applied_by(inbox, topics[0]) == [0, 1], "it goes on", seconds=120)


def test_what_cannot_be_paused_is_named(inbox: InboxStage, topic: str) -> None:
    with psycopg.connect(inbox.dsn) as conn:
        with pytest.raises(
            ConfigurationError, match=r"group: 'nobody'; allowed: the name of a group that has run"
        ):
            pause_group(conn, "nobody", reason="x")
        with pytest.raises(ConfigurationError, match="reason: 0 characters"):
            pause_group(conn, "nobody", reason="")
    with inbox.consumer(topic):
        refused = outbox(
            "consumers", "pause", inbox.group, "--topic", "unheard", "--reason", "x", "--dsn", inbox.dsn
        )
    assert refused.code == 1
    assert f"does not read topic 'unheard'. Did you mean {topic!r}?" in refused.err or topic in refused.err
