"""Messages in doubt: Kafka may have them, and no publication records it.

A message is in doubt once it was given to a producer whose answer was not learned: the producer was discarded after a
failure, its partition acknowledged nothing, or the relay died. It is published again at the next try. If it is refused
then, its lane stops at it, and whether it may become DEAD depends on this record.

Per lane it is one position and one message: everything up to the position is in doubt, except the message that was
refused at every try. A message below the position that was never handed over is in doubt without need; none is missing.
So nothing is written or kept per message or per batch. Schedules:

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

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.errors import Refused


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
        slots = batch.slots.values() if batch.since > disturbed_until else ()
        refused = {slot.indexes[place] for slot in slots for place in slot.refused}
        for index, lane in enumerate(batch.row_lanes):
            if index not in refused and (batch.chosen is None or lane in batch.chosen):
                yield Handed(lane, batch.positions[index], batch.message_ids[index])


class Doubts:
    """Which messages of a session's lanes are in doubt."""

    def __init__(self) -> None:
        self.until: dict[int, int] = {}
        """Per lane the highest position in doubt."""
        self._refused: dict[int, str] = {}
        """Per lane the message that was refused at every try."""

    def begin(self, until: Mapping[int, int], refused: Mapping[int, str]) -> None:
        """Note what earlier owners of lanes left in doubt."""
        self.until |= until
        self._refused |= refused

    def end(self, lane: int) -> None:
        """Forget a lane that was given back."""
        self.until.pop(lane, None)
        self._refused.pop(lane, None)

    def covers(self, lane: int, position: int, message_id: str) -> bool:
        """Return whether a message may be in Kafka already."""
        return position <= self.until.get(lane, 0) and self._refused.get(lane) != message_id

    def add(self, handed: Iterable[Handed], refused: Mapping[int, Refused]) -> None:
        """Note what a discarded producer leaves in doubt.

        Args:
            handed: the messages that Kafka may have.
            refused: per lane the message that Kafka refused; it is certain only if it is not among `handed`, and was
                not in doubt before.
        """
        handed = list(handed)
        doubtful = {one.message_id for one in handed}
        for lane, (position, message_id, *_) in refused.items():
            if message_id not in doubtful and not self.covers(lane, position, message_id):
                self._refused[lane] = message_id
        for one in handed:
            self.until[one.lane] = max(one.position, self.until.get(one.lane, 0))
            if self._refused.get(one.lane) == one.message_id:
                del self._refused[one.lane]

    def add_everything(self, lanes: Iterable[int], newest: int) -> None:
        """Note that all messages up to the newest position may be in Kafka."""
        self._refused.clear()
        self.until = {lane: max(newest, self.until.get(lane, 0)) for lane in lanes}
