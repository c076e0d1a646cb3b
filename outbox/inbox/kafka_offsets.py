"""What Kafka knows of partitions that were assigned: its offsets of the group, and where their logs begin and end."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox.inbox.keeper import Opening
from outbox.inbox.repeats import QuietLog
from outbox.inbox.settings import ConsumerSettings
from outbox.inbox.starts import ConsumeFrom, Known

REPLY_TIME = 5.0
"""Seconds for one reply of Kafka."""
_CONNECTING = ("bootstrap.servers", "security.", "sasl.", "ssl.")


def read_opening(
    consumer: Consumer,
    settings: ConsumerSettings,
    topic: str,
    parts: Sequence[int],
    *,
    ticket: int,
    quiet: QuietLog,
) -> Opening:
    """Ask Kafka about partitions of one topic; for the thread that polls only.

    Args:
        consumer: the client of the member.
        settings: of the member.
        topic: of the partitions.
        parts: the partitions.
        ticket: of their assignment.
        quiet: for the lines of a client.

    Raises:
        KafkaException: Kafka is away, or refuses.
        TimeoutError: It has not returned the id of the topic in time.
    """
    metadata = consumer.list_topics(topic, timeout=REPLY_TIME)
    everywhere = sorted(metadata.topics[topic].partitions)
    places = [TopicPartition(topic, part) for part in sorted({*everywhere, *parts})]
    committed = {
        each.partition: each.offset
        for each in _checked(consumer.committed(places, timeout=REPLY_TIME))
        if each.offset >= 0
    }
    wanted = parts if committed else {*everywhere, *parts}
    marks = {part: _marks(consumer, topic, part) for part in wanted}
    known = {part: Known(*marks[part], committed.get(part)) for part in parts}
    initial = committed or _initial(consumer, settings.consume_from, topic, marks)
    return Opening(
        topic,
        f"{metadata.cluster_id}/{_kafka_id(settings, topic, quiet)}",
        known,
        initial,
        "Kafka's offsets" if committed else str(settings.consume_from),
        ticket,
    )


def _marks(consumer: Consumer, topic: str, part: int) -> tuple[int, int]:
    marks = consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=REPLY_TIME)
    if marks is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return (marks[0], marks[1])


def _initial(
    consumer: Consumer, begins: ConsumeFrom, topic: str, marks: dict[int, tuple[int, int]]
) -> dict[int, int]:
    if begins.milliseconds is None:
        return {part: low if begins.is_first else high for part, (low, high) in marks.items()}
    asked = [TopicPartition(topic, part, begins.milliseconds) for part in marks]
    found = _checked(consumer.offsets_for_times(asked, timeout=REPLY_TIME))
    return {each.partition: each.offset if each.offset >= 0 else marks[each.partition][1] for each in found}


def _kafka_id(settings: ConsumerSettings, topic: str, quiet: QuietLog) -> str:
    """Ask for the id of a topic, by a client for this question: one that is kept may lose its brokers (decision 91)."""
    config = {name: value for name, value in settings.kafka.items() if name.startswith(_CONNECTING)}
    admin = AdminClient(config, logger=quiet)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(REPLY_TIME)
    return str(described.topic_id)


def _checked(found: list[TopicPartition]) -> list[TopicPartition]:
    """Return what Kafka said of partitions, if it said something of each: a missing offset is not an error."""
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return found
