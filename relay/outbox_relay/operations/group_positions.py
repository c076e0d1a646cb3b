"""How far consumer groups of Kafka have come in the partitions of a topic to which nothing is published meanwhile.

A group has read a partition when it has committed an offset at or past the end that the partition had when it was first
asked for (`mark_ends`). What other producers append later does not count. Two kinds of partition need no such offset:

- One that has no records, or whose records were removed by Kafka's retention.
- One whose last offsets hold nothing for a reader: the ends of Kafka's transactions, and records that were rolled back.
  librdkafka's consumers commit the offset behind the last record that they got, which is in front of those. A reader of
  committed records finds none there (`next_readable`).

Compaction changes nothing: the last record of a partition stays, and offsets do not change.

The end is the high watermark, not the last stable offset: behind an open transaction of another producer messages may
wait that the groups have not read.

Messages that a group of the inbox has parked count as read, as they do for its positions: their keys wait there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)

from outbox_relay.operations.consumer_lag import KAFKA_TIMEOUT_S, SPEC, KafkaOffsets
from outbox_relay.operations.names import did_you_mean
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.text.formatting import count, many, printable


@dataclass
class GroupProgress:
    """What a group has not read of the topic."""

    group: str
    has_members: bool
    exists: bool
    behind: dict[int, int] = field(default_factory=dict)
    """How many offsets are left, by partition."""
    uncommitted: list[int] = field(default_factory=list)
    """Those of these partitions in which it has committed nothing."""

    @property
    def is_done(self) -> bool:
        """Whether it has read all."""
        return not self.behind

    def text(self) -> str:
        """State it in one line."""
        if self.is_done:
            return f"group {printable(self.group)} has read all of it"
        parts = ", ".join(map(str, sorted(self.behind)))
        offsets = count(sum(self.behind.values()))
        left = f"group {printable(self.group)} has {offsets} offsets to read in partitions {parts}"
        if not self.exists:
            return f"{left}; Kafka has no such group now: start its members"
        if not self.has_members:
            left += "; it has no member: start one"
        if self.uncommitted:
            left += f"; it has committed nothing in {many(len(self.uncommitted), 'partition')} of them"
        return left


class GroupPositions:
    """Asks Kafka where the groups are; each request waits 10 s at most."""

    def __init__(self, kafka: KafkaOffsets, topic: str, partitions: int, groups: Collection[str]) -> None:
        self._kafka, self._topic, self._groups = kafka, topic, sorted(set(groups))
        self._places = [(topic, part) for part in range(partitions)]
        self._ends: Mapping[int, int] = {}
        # Where the next record for the group is, so that it is looked for once for each offset.
        self._next: dict[tuple[str, int], int] = {}

    def mark_ends(self) -> None:
        """Note the ends up to which the groups have to read.

        Raises:
            OperatorError: no broker replies.
        """
        try:
            self._ends, self._next = self._offsets(is_end=True), {}
        except (KafkaException, TimeoutError) as error:
            raise self._kafka.unreachable(error) from None

    def require_readers(self) -> None:
        """Refuse groups that would keep the topic waiting for ever, before anything is held.

        Raises:
            TopicError: Kafka has no such group, it has messages to read and no member, or it does not read the topic.
            OperatorError: no broker replies.
        """
        try:
            known = self._states()
        except (KafkaException, TimeoutError) as error:
            raise self._kafka.unreachable(error) from None
        for group in self._groups:
            if group not in known:
                raise TopicError(
                    f"--wait-for-group {printable(group)}: Kafka at {self._kafka.bootstrap_servers} has no such "
                    f"consumer group, or does not let this user see it. {did_you_mean(group, known)}"
                )
        for found in self.read():
            if found.is_done:
                continue
            if set(found.behind) == set(found.uncommitted) == self._not_empty():
                raise TopicError(
                    f"--wait-for-group {printable(found.group)}: this group has committed no offset in topic "
                    f"{self._topic!r}; expected one that reads it. The topic would be held for as long as it does not"
                )
            if not found.has_members:
                raise TopicError(
                    f"--wait-for-group {found.text()}; nothing was held. Start it, or leave it out"
                )

    def read(self) -> list[GroupProgress]:
        """Return what each group has left to read, by the ends that were noted.

        Raises:
            OperatorError: no broker replies.
        """
        try:
            known, first = self._states(), self._offsets(is_end=False)
            return [self._progress(group, known.get(group), first) for group in self._groups]
        except (KafkaException, TimeoutError) as error:
            raise self._kafka.unreachable(error) from None

    def _progress(
        self, group: str, state: ConsumerGroupState | None, first: Mapping[int, int]
    ) -> GroupProgress:
        progress = GroupProgress(
            group, state not in (None, ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD), state is not None
        )
        committed = self._committed(group)
        begins = {part: max(first.get(part, 0), committed.get(part, 0)) for part in self._ends}
        starts = {
            (self._topic, part): begin
            for part, begin in begins.items()
            if begin < self._ends[part] and self._next.get((group, part), -1) < begin
        }
        for (_, part), (offset, is_record) in self._kafka.next_readable(starts).items():
            if is_record or offset >= self._ends[part]:
                self._next[group, part] = (
                    offset  # otherwise a transaction is open: what follows may become readable
                )
        for part, end in self._ends.items():
            if begins[part] < end and self._next.get((group, part), -1) < end:
                progress.behind[part] = end - begins[part]
                if part not in committed:
                    progress.uncommitted.append(part)
        return progress

    def _not_empty(self) -> set[int]:
        first = self._offsets(is_end=False)
        return {part for part, end in self._ends.items() if first[part] < end}

    def _states(self) -> dict[str, ConsumerGroupState]:
        found = self._kafka.admin.list_consumer_groups(request_timeout=KAFKA_TIMEOUT_S).result(
            KAFKA_TIMEOUT_S + 5
        )
        return {one.group_id: one.state for one in found.valid}

    def _committed(self, group: str) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in self._places])
        found = self._kafka.admin.list_consumer_group_offsets([asked], request_timeout=KAFKA_TIMEOUT_S)
        places: Sequence[TopicPartition] = found[group].result(KAFKA_TIMEOUT_S + 5).topic_partitions
        return {one.partition: one.offset for one in places if one.offset >= 0}

    def _offsets(self, *, is_end: bool) -> dict[int, int]:
        spec = SPEC.latest() if is_end else SPEC.earliest()
        asked = {TopicPartition(*place): spec for place in self._places}
        found = self._kafka.offsets(asked, IsolationLevel.READ_UNCOMMITTED)
        return {part: offset for (_, part), offset in found.items()}
