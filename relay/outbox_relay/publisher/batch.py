"""A batch: rows given to Kafka together, and the offsets that come back.

Within a partition librdkafka reports deliveries in the order of produce(), so offsets are appended per partition
and matched by index: no callback per message has to know which message it is for.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from confluent_kafka import KafkaError, Message

from outbox_relay.publisher.errors import OutOfOrderError, Refused, Unpublishable
from outbox_relay.publisher.finder import RawRow
from outbox_relay.publisher.parked import Claim, KeyDrain
from outbox_relay.publisher.snapshot import Progress, Snapshot

Delivered = Callable[[KafkaError | None, Message], None]


class Slot:
    """The messages of a batch that go to one partition of one topic, and their offsets so far."""

    __slots__ = ("delivered", "failed", "indexes", "offsets", "partition", "refused", "topic")

    def __init__(self, topic: str, partition: int, fail: Callable[[Slot, KafkaError], None]) -> None:
        self.topic = topic
        self.partition = partition
        self.indexes: list[int] = []
        self.offsets: list[int] = []
        self.failed = 0
        self.refused: list[int] = []
        """Places in `indexes` of the messages that a broker refused."""
        # A delivered message has an offset; the driver's type allows None for one that is not.
        append = cast("Callable[[int | None], None]", self.offsets.append)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                append(message.offset())
            else:
                fail(self, error)

        self.delivered: Delivered = delivered


def ignore(slot: Slot, error: KafkaError) -> None:
    """Take no notice of a failure: nothing waits for the messages of this slot."""


@dataclass(slots=True)
class Stop:
    """A lane that stops inside a batch: its own progress, and why."""

    lane: int
    progress: Progress
    position: int
    message_id: str
    reason: Unpublishable
    in_flight: bool = False
    """The message was given to Kafka and may be there: it may not be set aside as one that was never published."""


class Traced(Protocol):
    """The span of a batch."""

    def end(self, error: str | None = None) -> None:
        """End it, if that was not done; `error`: why the batch is not recorded."""


@dataclass(slots=True)
class Publication:
    """One row of outbox.publication: positions ascending, with their partitions and offsets."""

    positions: Sequence[int]
    partitions: Sequence[int]
    offsets: Sequence[int]


@dataclass(slots=True)
class Batch:
    """What was produced from one page, which lanes it speaks for, and how far it brings them.

    A batch can be divided by lanes (`part`). Parts share the arrays and slots of the whole, because deliveries are
    matched by their order in a slot; `chosen` names the lanes whose rows a part counts, and None means all.
    """

    lanes: tuple[int, ...]
    progress: Progress
    before: Progress
    """How far its lanes were before it; the place of a stop inside lies between the two."""
    since: float = field(default_factory=time.monotonic)
    born: float | None = None
    """When its first message was inserted, in seconds since 1970, if it has waited since then."""
    positions: list[int] = field(default_factory=list)
    row_lanes: list[int] = field(default_factory=list)
    message_ids: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    slots: dict[tuple[str, int], Slot] = field(default_factory=dict)
    stops: list[Stop] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    """Messages of parked keys: those that fail, and those held behind them."""
    drain: KeyDrain | None = None
    """The key whose held messages these are; such a batch brings no lane further."""
    alone: RawRow | None = None
    """Its message, if it was made of one row."""
    chosen: frozenset[int] | None = None
    needs: list[tuple[Slot, int]] = field(default_factory=list)
    """Of a part: how many offsets of each slot acknowledge all its rows there."""
    messages: int = 0
    """Rows that it counts."""
    topic: int | None = None
    """The hash of its topic, if it is of one that is read apart; see lane_groups.py."""
    seen: Snapshot | None = None
    """What was visible when its page was read, or the list that the page is of was begun."""
    span: Traced | None = None
    """What a trace shows of it; None: nothing is traced. Its parts share it."""
    acknowledged_at: float | None = None
    """When it was noticed that Kafka has acknowledged it in full, as of `time.monotonic()`."""
    ended_at: int | None = None
    """The position of the message for which the local queue had no room; None: the page was published to its end."""

    @property
    def is_acknowledged(self) -> bool:
        """Whether Kafka has acknowledged every message that it counts."""
        if self.chosen is not None:
            return all(len(slot.offsets) >= need for slot, need in self.needs)
        return all(len(slot.offsets) == len(slot.indexes) for slot in self.slots.values())

    @property
    def speaks_for(self) -> frozenset[int]:
        """The lanes that it brings further, to its end or to a stop inside."""
        lanes = frozenset(self.lanes) | {stop.lane for stop in self.stops}
        return lanes if self.drain is None else lanes | {self.drain.lane}

    def part(self, lanes: frozenset[int]) -> Batch:
        """Return the part of these lanes; the rest is the part of the others."""
        needs = []
        for slot in self.slots.values():
            rows = (
                n for n in range(len(slot.indexes), 0, -1) if self.row_lanes[slot.indexes[n - 1]] in lanes
            )
            need = next(rows, 0)
            if need:
                needs.append((slot, need))
        return replace(
            self,
            lanes=tuple(lane for lane in self.lanes if lane in lanes),
            stops=[stop for stop in self.stops if stop.lane in lanes],
            claims=[claim for claim in self.claims if claim.lane in lanes],
            chosen=lanes,
            needs=needs,
            messages=sum(lane in lanes for lane in self.row_lanes),
        )

    def waiting(self) -> Iterator[tuple[Slot, int]]:
        """Yield each slot with the index of the first message that this batch waits for there."""
        for slot in self.slots.values():
            for index in slot.indexes[len(slot.offsets) :]:
                if self.chosen is None or self.row_lanes[index] in self.chosen:
                    yield slot, index
                    break

    def waiting_lanes(self, slots: Collection[tuple[str, int]]) -> set[int]:
        """Return the lanes of the messages that wait in these slots."""
        lanes = {
            self.row_lanes[index]
            for key, slot in self.slots.items()
            if key in slots
            for index in slot.indexes[len(slot.offsets) :]
        }
        return lanes if self.chosen is None else lanes & self.chosen

    def outcome(self) -> Publication:
        """Return where every message that it counts went.

        Raises:
            OutOfOrderError: offsets of a partition do not ascend: our matching would be wrong, so nothing is
                recorded.
        """
        partitions = [0] * len(self.positions)
        offsets = [-1] * len(self.positions)
        chosen, row_lanes = self.chosen, self.row_lanes
        for slot in self.slots.values():
            last = -1
            # A part may be acknowledged while messages of others behind it are not.
            for index, offset in zip(slot.indexes, slot.offsets, strict=chosen is None):
                if offset <= last:
                    raise OutOfOrderError(
                        f"offset {offset} after {last} in {slot.topic}[{slot.partition}]: deliveries out of order",
                        self._last_of_lanes(slot),
                    )
                last = offset
                partitions[index] = slot.partition
                offsets[index] = offset
        if chosen is None:
            return Publication(self.positions, partitions, offsets)
        mine = [index for index, lane in enumerate(row_lanes) if lane in chosen]
        return Publication(*([values[i] for i in mine] for values in (self.positions, partitions, offsets)))

    def up_to(self, lane: int, stop: Stop, end: int) -> Batch:
        """Return a batch of its own: the messages of a lane before the index `end`, all acknowledged, and its stop."""
        left = Batch((), self.progress, self.before, stops=[stop])
        left.claims = [
            claim for claim in self.claims if claim.lane == lane and claim.position < stop.position
        ]
        for key, slot in self.slots.items():
            copy = Slot(slot.topic, slot.partition, ignore)
            for index, offset in zip(slot.indexes, slot.offsets, strict=False):
                if index < end and self.row_lanes[index] == lane:
                    copy.indexes.append(len(left.positions))
                    copy.offsets.append(offset)
                    left.positions.append(self.positions[index])
                    left.row_lanes.append(lane)
                    left.message_ids.append(self.message_ids[index])
            left.slots[key] = copy
        left.messages = len(left.positions)
        return left

    def _last_of_lanes(self, slot: Slot) -> dict[int, Refused]:
        found: dict[int, Refused] = {}
        for index in slot.indexes:
            reason = f"OFFSETS_OUT_OF_ORDER: topic {slot.topic!r}, partition {slot.partition}"
            found[self.row_lanes[index]] = Refused(
                self.positions[index], self.message_ids[index], slot.topic, reason
            )
        return found


def just_before(position: int, progress: Progress, before: Progress) -> Progress:
    """Return the progress of a lane that stops inside a page: all of the difference below `position` is published.

    Unless the page is of one part of a split: positions of the others may lie below it, so the lane stays where it was.
    """
    if progress.is_floor:
        return before
    base: Snapshot = before.snapshot if before.base is None else before.base
    return Progress(progress.snapshot, base, position - 1, before.is_partial)


def runs(batches: Iterable[Batch], most: int) -> Iterator[list[Batch]]:
    """Yield runs of batches that one publication can record: of the same lanes, of `most` messages and claims together.

    The last one's progress holds for all. A batch in which a lane stopped ends its run, because what follows speaks
    for fewer lanes. A drain is recorded by itself, and so are batches of a topic that is read apart: millions of
    positions may lie between its backlog and the new messages of others, and a search for one of them would read
    every publication that spans it.
    """
    run: list[Batch] = []
    messages = 0
    for batch in batches:
        size = batch.messages + len(batch.claims)
        others = run and (
            (batch.lanes, batch.topic) != (run[-1].lanes, run[-1].topic)
            or run[-1].stops
            or messages + size > most
        )
        if run and (others or batch.drain or run[-1].drain):
            yield run
            run, messages = [], 0
        run.append(batch)
        messages += size
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
