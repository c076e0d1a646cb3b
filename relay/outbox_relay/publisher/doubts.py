"""Messages in doubt: Kafka may have them, and no publication records it.

A message is in doubt once it was given to a producer whose answer was not learned: the producer was discarded after a
failure, its partition acknowledged nothing, or the relay died. It is published again at the next try. If it is refused
then, its lane stops at it, and whether it may become DEAD depends on this record.

Per lane it is one position, and the messages that Kafka refused the last time and that were not in doubt before:
everything up to the position is in doubt, except these. A message below the position that was never handed over is in
doubt without need; none is missing. Kept is at most what one producer had in flight; written is one message per
lane at most. Schedules:

- The relay discards a producer: the positions that it held are noted here, before anything is read again.
- It dies, before or after that: it has not given its lanes back, so its successor takes everything up to the newest
  position for doubtful. Except in a lane whose row is stopped and not being tried again: whatever was
  noted of it before was written with that stop, and nothing of it was handed over since, because a retry is announced
  first.
- It is paused, and goes on after another took the lanes: all that it can still give to Kafka was read before the last
  barrier, or by a poll that found the lanes its own, so before the take was committed. Its successor asks for the
  newest position after that commit, and takes everything up to it for doubtful.
- It stops cleanly: what is noted is written in the statement that gives the lanes back. If it dies before that
  statement, or another session holds the row of a lane of which more is noted than written, the lease stays (as one
  that has ended), and so the lanes are not given back.
- It stops cleanly while a lane is being tried again whose message is in doubt: the announcement stays.

A refusal counts as proof that Kafka does not have the message when a broker gave it, and no connection was lost since
the message was handed over: librdkafka sends again by itself after a lost connection, and the refusal may be of the
second request only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from outbox_relay.publisher.batch import Batch


class Handed(NamedTuple):
    """A message that was given to a producer."""

    lane: int
    position: int
    message_id: str


def in_doubt(batches: Iterable[Batch], disturbed_until: float) -> Iterator[Handed]:
    """Yield the messages of unrecorded batches that may be in Kafka, acknowledged or not.

    Args:
        batches: those of a producer that is discarded.
        disturbed_until: until when it may have lost a connection (monotonic seconds); see `Producers`.
    """
    for batch in batches:
        refused = set(_refused(batch, disturbed_until))
        for index, lane in enumerate(batch.row_lanes):
            if index not in refused and (batch.chosen is None or lane in batch.chosen):
                yield Handed(lane, batch.positions[index], batch.message_ids[index])


def not_in_kafka(batches: Iterable[Batch], disturbed_until: float) -> Iterator[Handed]:
    """Yield the messages of unrecorded batches that a broker refused, and that no other request carried."""
    for batch in batches:
        for index in _refused(batch, disturbed_until):
            yield Handed(batch.row_lanes[index], batch.positions[index], batch.message_ids[index])


def _refused(batch: Batch, disturbed_until: float) -> Iterator[int]:
    if batch.since > disturbed_until:
        for slot in batch.slots.values():
            for place in slot.refused:
                yield slot.indexes[place]


class Doubts:
    """Which messages of a session's lanes are in doubt."""

    def __init__(self) -> None:
        self.until: dict[int, int] = {}
        """Per lane the highest position in doubt."""
        self._refused: dict[int, Set[str]] = {}
        """Per lane the messages that Kafka refused at every try, the last time included."""

    def begin(self, until: Mapping[int, int], refused: Mapping[int, str]) -> None:
        """Note what earlier owners of lanes left in doubt."""
        self.until |= until
        self._refused |= {lane: {message_id} for lane, message_id in refused.items()}

    def end(self, lane: int) -> None:
        """Forget a lane that was given back."""
        self.until.pop(lane, None)
        self._refused.pop(lane, None)

    def covers(self, lane: int, position: int, message_id: str) -> bool:
        """Return whether a message may be in Kafka already."""
        return position <= self.until.get(lane, 0) and message_id not in self._refused.get(lane, ())

    def add(self, handed: Iterable[Handed], refused: Iterable[Handed] = ()) -> None:
        """Note what a discarded producer leaves in doubt.

        Args:
            handed: the messages that Kafka may have.
            refused: those of the same producer that Kafka refused.
        """
        certain: dict[int, set[str]] = {}
        for one in refused:
            if not self.covers(*one):
                certain.setdefault(one.lane, set()).add(one.message_id)
        # A lane of which nothing was refused now keeps what it knew.
        self._refused |= certain
        for one in handed:
            self.until[one.lane] = max(one.position, self.until.get(one.lane, 0))
            if one.message_id in self._refused.get(one.lane, ()):
                self._refused[one.lane] = self._refused[one.lane] - {one.message_id}

    def add_everything(self, lanes: Iterable[int], newest: int) -> None:
        """Note that all messages up to the newest position may be in Kafka."""
        self._refused.clear()
        self.until = {lane: max(newest, self.until.get(lane, 0)) for lane in lanes}
