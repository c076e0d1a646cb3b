"""A batch: rows given to Kafka together, and the offsets that come back.

Within a partition librdkafka reports deliveries in the order of produce(), so offsets are appended per partition
and matched by index: no callback per message has to know which message it is for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import KafkaError, Message

from outbox_relay.finder.snapshot import Progress
from outbox_relay.publishing.errors import Unpublishable

Delivered = Callable[[KafkaError | None, Message], None]


class Slot:
    """The messages of a batch that go to one partition of one topic, and their offsets so far."""

    __slots__ = ("delivered", "indexes", "offsets", "partition", "topic")

    def __init__(self, topic: str, partition: int, fail: Callable[[Slot, KafkaError], None]) -> None:
        self.topic = topic
        self.partition = partition
        self.indexes: list[int] = []
        self.offsets: list[int] = []
        # A delivered message has an offset; the driver's type allows None for one that is not.
        append = cast("Callable[[int | None], None]", self.offsets.append)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                append(message.offset())
            else:
                fail(self, error)

        self.delivered: Delivered = delivered


@dataclass(slots=True)
class Stop:
    """A lane that stops inside a batch: its own progress, and why."""

    lane: int
    progress: Progress
    message_id: str
    reason: Unpublishable


@dataclass(slots=True)
class Publication:
    """One row of outbox.publication: positions ascending, with their partitions and offsets."""

    positions: Sequence[int]
    partitions: Sequence[int]
    offsets: Sequence[int]


@dataclass(slots=True)
class Batch:
    """What was produced from one page, which lanes it speaks for, and how far it brings them."""

    lanes: tuple[int, ...]
    progress: Progress
    positions: list[int] = field(default_factory=list)
    row_lanes: list[int] = field(default_factory=list)
    message_ids: list[str] = field(default_factory=list)
    slots: dict[tuple[str, int], Slot] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)

    @property
    def is_acknowledged(self) -> bool:
        """Whether Kafka has acknowledged every message."""
        return all(len(slot.offsets) == len(slot.indexes) for slot in self.slots.values())

    def outcome(self) -> Publication:
        """Return where every message went.

        Raises:
            RuntimeError: offsets of a partition do not ascend: our matching would be wrong, so nothing is
                recorded.
        """
        partitions = [0] * len(self.positions)
        offsets = [0] * len(self.positions)
        for slot in self.slots.values():
            last = -1
            for index, offset in zip(slot.indexes, slot.offsets, strict=True):
                if offset <= last:
                    raise RuntimeError(
                        f"offset {offset} after {last} in {slot.topic}[{slot.partition}]: deliveries out of order"
                    )
                last = offset
                partitions[index] = slot.partition
                offsets[index] = offset
        return Publication(self.positions, partitions, offsets)


def runs(batches: Iterable[Batch], most: int) -> Iterator[list[Batch]]:
    """Yield runs of batches that one publication can tell of: of the same lanes, of `most` messages together.

    The last one's progress holds for all. A batch in which a lane stopped ends its run, because what follows speaks
    for fewer lanes.
    """
    run: list[Batch] = []
    messages = 0
    for batch in batches:
        if run and (batch.lanes != run[-1].lanes or run[-1].stops or messages + len(batch.positions) > most):
            yield run
            run, messages = [], 0
        run.append(batch)
        messages += len(batch.positions)
    if run:
        yield run


def publications(run: Iterable[Batch], bounds: list[int]) -> Iterator[Publication]:
    """Yield the rows to record for a run of batches, split where positions cross the bounds of partitions."""
    rows = [
        row
        for batch in run
        for outcome in (batch.outcome(),)
        for row in zip(outcome.positions, outcome.partitions, outcome.offsets, strict=True)
    ]
    rows.sort()
    start = 0
    while start < len(rows):
        following = bisect_left(bounds, rows[start][0] + 1)
        end = bisect_left(rows, (bounds[following],), start) if following < len(bounds) else len(rows)
        positions, partitions, offsets = zip(*rows[start:end], strict=True)
        yield Publication(positions, partitions, offsets)
        start = end
