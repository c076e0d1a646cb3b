"""Partitions on their way to being read: those that are left unread, and topics without an id."""

from __future__ import annotations

import pytest
from confluent_kafka import Uuid

from outbox.inbox.core.openings import Waiting
from outbox.inbox.core.partitions import EVERY_TOPIC, Pauses
from outbox.inbox.kafka_offsets import UnidentifiedTopicError, id_of

PLACE = ("orders", 0)


@pytest.mark.parametrize("end", ["assigned again", "given away"])
def test_a_partition_is_left_unread_until_it_is_assigned_again_or_given_away(end: str) -> None:
    waiting = Waiting(Pauses())
    waiting.add([PLACE, ("orders", 1)])
    waiting.stop(PLACE, "a gap")
    assert waiting.stopped == {PLACE: "a gap"}
    assert [question.parts for question in waiting.due(0.0)] == [(1,)]
    if end == "assigned again":
        waiting.add([PLACE])
        assert [question.parts for question in waiting.due(0.0)] == [(0,)]
    else:
        waiting.remove(PLACE)
    assert waiting.stopped == {}


def test_a_topic_without_an_id_is_refused_and_the_error_names_what_is_wrong() -> None:
    expected = "the brokers state no id of topic 'orders'.*expected: Kafka 2.8 or newer.*upgrade them"
    with pytest.raises(UnidentifiedTopicError, match=expected):
        id_of("orders", Uuid(0, 0))
    assert id_of("orders", Uuid(0, 1)) == str(Uuid(0, 1))


@pytest.mark.parametrize("paused", ["orders", EVERY_TOPIC])
def test_a_partition_of_a_paused_topic_is_asked_for_once_that_is_resumed(paused: str) -> None:
    pauses = Pauses()
    waiting = Waiting(pauses)
    waiting.add([PLACE, ("other", 1)])
    pauses.topics = {paused: "why"}
    asked = [question.topic for question in waiting.due(0.0)]
    assert asked == ([] if paused == EVERY_TOPIC else ["other"])
    pauses.topics = {}
    assert [question.topic for question in waiting.due(0.0)] == [
        topic for topic in ("orders", "other") if topic not in asked
    ]
