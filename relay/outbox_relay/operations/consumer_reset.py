"""Sets the positions of a consumer group that does not run: what it reads again, or what it skips.

Messages that the group has handled are not applied again, however far a position is set back: the inbox refuses them.
What is skipped has no effect and no row; what is parked stays parked.

A member begins at the lower of PostgreSQL's position and Kafka's offset, so both are written, PostgreSQL's first. The
schedule:

1. The group is locked, so that no member joins. Members that were seen within a minute: refused. Positions that are not
   as they were shown to the operator: refused.
2. The positions are set and their generation counts up, in the same transaction. A process that dies before its commit
   has changed nothing. A member that stood still for a minute and goes on later stores nothing under the old
   generation.
3. Kafka's offsets are set. A process that dies before that, or Kafka refuses: a reset back holds, because PostgreSQL
   has the lower offset. After a reset forward the group goes on at Kafka's lower offset and skips nothing; the command
   has to be repeated. A request that timed out is one of both.
4. A member that starts between 2 and 3 is in Kafka's group, so Kafka refuses 3: as above.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from outbox_relay.operations import consumers, filters
from outbox_relay.operations.consumer_lag import KAFKA_TIMEOUT_S, SPEC, KafkaOffsets, TopicOffsets
from outbox_relay.operations.messages import Row
from outbox_relay.operations.names import require_known
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.errors import OperatorError, OptionError

Positions = Mapping[int, tuple[int, int]]
"""Offset and generation by partition."""


@dataclass(frozen=True)
class Move:
    """A partition, its position and the one that it shall have; `begin`: None without a position."""

    partition: int
    begin: int | None
    to: int


@dataclass(frozen=True)
class Reset:
    """What shall change, as an operator is shown it."""

    group: str
    topic: str
    kafka_id: str
    listed: Positions
    moves: Sequence[Move]

    @property
    def is_forward(self) -> bool:
        """Whether it skips messages somewhere."""
        return any(move.begin is None or move.to > move.begin for move in self.moves)


class KafkaNotResetError(OperatorError):
    """PostgreSQL has the new positions, and Kafka the old offsets."""


def plan(
    conn: psycopg.Connection[Any],
    kafka: KafkaOffsets,
    group: str,
    topic: str,
    *,
    to: str,
    partitions: Collection[int] = (),
) -> Reset:
    """Find what a reset changes; nothing is written.

    Args:
        conn: an autocommit connection.
        kafka: where the topic is.
        group: its name.
        topic: its name.
        to: `first`, `last`, an offset, or a time.
        partitions: those to set; empty: all of the topic.

    Raises:
        OperatorError: The group runs, or it has no position in the topic, or Kafka has no such topic.
        OptionError: `to` cannot be read, or an offset is not one of the partition's.
    """
    if to not in {"first", "last"} and not (to.isascii() and to.isdigit()):
        filters.read_moment("--to", to)  # a wrong option is refused before anything is looked up
    consumers.find(conn, group)
    _require_no_member(consumers.members(conn, group), group)
    offsets = kafka.read([topic]).get(topic)
    if offsets is None:
        require_known(conn, topic=topic)
        raise OperatorError(f"Kafka at {kafka.bootstrap_servers} has no topic {topic!r}")
    listed = _positions(conn, group, offsets.kafka_id)
    if not listed:
        raise OperatorError(
            f"group {group!r} has no position in topic {topic!r}; it begins at `consume_from` when it runs. "
            f"What it has: outbox consumers show {group}"
        )
    unknown = sorted(set(partitions) - offsets.ends.keys())
    if unknown:
        raise OptionError(
            f"--partition {unknown[0]}: topic {topic!r} has partitions 0 to {len(offsets.ends) - 1}"
        )
    parts = sorted(partitions or offsets.ends)
    targets = _targets(kafka, topic, offsets, to, parts)
    moves = [Move(part, listed[part][0] if part in listed else None, targets[part]) for part in parts]
    return Reset(group, topic, offsets.kafka_id, listed, moves)


def apply(conn: psycopg.Connection[Any], kafka: KafkaOffsets, reset: Reset) -> None:
    """Set the positions, in PostgreSQL and then in Kafka.

    Args:
        conn: an autocommit connection.
        kafka: where the topic is.
        reset: as it was shown.

    Raises:
        OperatorError: A member runs, or positions have changed since they were shown; nothing is changed.
        KafkaNotResetError: Kafka has refused.
    """
    require_empty(kafka, reset.group)
    with conn.transaction():
        [(group_id,)] = conn.execute(consumers.STATEMENTS["lock_group"], {"group": reset.group}).fetchall()
        _require_no_member(consumers.members(conn, reset.group), reset.group)
        if _positions(conn, reset.group, reset.kafka_id) != reset.listed:
            raise OperatorError(
                f"positions of group {reset.group!r} have changed since they were shown; nothing was changed. "
                "Give the command again"
            )
        values = {
            "group_id": group_id,
            "kafka_id": reset.kafka_id,
            "parts": [move.partition for move in reset.moves],
            "offsets": [move.to for move in reset.moves],
        }
        conn.execute(consumers.STATEMENTS["reset"], values)
    places = [TopicPartition(reset.topic, move.partition, move.to) for move in reset.moves]
    try:
        futures = kafka.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(reset.group, places)], request_timeout=KAFKA_TIMEOUT_S
        )
        for future in futures.values():
            for each in future.result(KAFKA_TIMEOUT_S + 5).topic_partitions:
                if each.error is not None:
                    raise KafkaException(each.error)
    except (KafkaException, TimeoutError) as error:
        repeat = "give the command again, else the group goes on at Kafka's lower offsets and skips nothing"
        raise KafkaNotResetError(
            f"PostgreSQL has the new positions, Kafka's offsets are not set: {readable(error)}\n"
            + (repeat if reset.is_forward else "the group begins at the new positions all the same")
        ) from error


def _targets(
    kafka: KafkaOffsets, topic: str, offsets: TopicOffsets, to: str, parts: Sequence[int]
) -> dict[int, int]:
    if to == "first":
        return {part: offsets.first[part] for part in parts}
    if to == "last":
        return {part: offsets.ends[part] for part in parts}
    if to.isascii() and to.isdigit():
        if len(parts) > 1:
            raise OptionError(f"--to {to}: an offset is one partition's own; name it: --partition N")
        low, high = offsets.first[parts[0]], offsets.ends[parts[0]]
        if not low <= int(to) <= high:
            raise OptionError(f"--to {to}: partition {parts[0]} of {topic!r} has offsets {low} to {high}")
        return {parts[0]: int(to)}
    moment = filters.at(filters.read_moment("--to", to), datetime.now(UTC))
    spec = SPEC.for_timestamp(max(0, int(moment.timestamp() * 1000)))
    try:
        found = kafka.offsets({TopicPartition(topic, part): spec for part in parts})
    except (KafkaException, TimeoutError) as error:
        raise kafka.unreachable(error) from None
    # -1: no message is that young.
    return {
        part: min(offsets.ends[part], at) if at >= 0 else offsets.ends[part]
        for (_, part), at in found.items()
    }


def _positions(conn: psycopg.Connection[Any], group: str, kafka_id: str) -> Positions:
    return {
        row["partition"]: (row["position"], row["generation"])
        for row in consumers.positions(conn, group)
        if row["kafka_id"] == kafka_id
    }


def _require_no_member(members: Sequence[Row], group: str) -> None:
    running = [row["member"] for row in members if row["runs"]]
    if running:
        raise OperatorError(
            f"members of group {group!r} run, or were seen within a minute: {', '.join(running)}. They would go on "
            "where they are; stop them first. Nothing was changed"
        )


def require_empty(kafka: KafkaOffsets, group: str) -> None:
    """Refuse a group that Kafka knows members of: it would refuse its part when PostgreSQL's is done."""
    try:
        found = kafka.admin.describe_consumer_groups([group], request_timeout=KAFKA_TIMEOUT_S)[group].result(
            KAFKA_TIMEOUT_S + 5
        )
    except (KafkaException, TimeoutError) as error:
        raise kafka.unreachable(error) from None
    if found.state not in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD):
        names = ", ".join(member.client_id for member in found.members) or "(joining)"
        raise OperatorError(
            f"Kafka has members of group {group!r}: {names}. Stop them, and wait until Kafka has noticed (their "
            "session time-out, 45 s by default). Nothing was changed"
        )
