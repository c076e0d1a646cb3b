"""What was given to Kafka and is not recorded: in flight, or set aside by lane."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from outbox_relay.publisher.batch import Batch, Stop, just_before
from outbox_relay.publisher.doubts import Handed, in_doubt, not_in_kafka
from outbox_relay.publisher.errors import Unpublishable


class OnTheWire:
    """The batches of a producer that are not recorded."""

    def __init__(self) -> None:
        self.in_flight: deque[Batch] = deque()
        self.unacknowledged = 0
        """Messages of the batches in flight; those of lanes set aside are not counted."""
        self.aside: dict[int, deque[Batch]] = {}
        """Lanes that wait for a partition which acknowledges nothing: what is in flight of each, oldest first."""
        self.given_up: set[str] = set()
        """Topics of which no lane waits for messages that may arrive until the producer is closed."""

    def note_acknowledged(self) -> int:
        """Note which batches are acknowledged by now; return how many messages `take_acknowledged` would bring."""
        messages = 0
        for batch in self.in_flight:
            if batch.acknowledged_at is None:
                if not batch.is_acknowledged:
                    break
                batch.acknowledged_at = time.monotonic()
            messages += batch.messages
        return messages

    def take_acknowledged(self) -> list[Batch]:
        """Return the batches that are acknowledged in full, oldest first, up to the first that is not.

        Lanes that were set aside have an order of their own: they hold up no other lane, and none holds up them.
        """
        done = []
        while self.in_flight and self.in_flight[0].is_acknowledged:
            batch = self.in_flight.popleft()
            self.unacknowledged -= batch.messages
            done.append(batch)
        if self.aside:
            for queue in self.aside.values():
                while queue and queue[0].is_acknowledged:
                    done.append(queue.popleft())
            self.aside = {lane: queue for lane, queue in self.aside.items() if queue}
        return done

    def set_aside(self, lanes: Collection[int]) -> None:
        """Let lanes wait by themselves for what is in flight of them, so that the others are recorded meanwhile."""
        kept: deque[Batch] = deque()
        for batch in self.in_flight:
            mine = batch.speaks_for & frozenset(lanes)
            if not mine:
                kept.append(batch)
                continue
            for lane in mine:
                self.aside.setdefault(lane, deque()).append(batch.part(frozenset((lane,))))
            if others := batch.speaks_for - mine:
                kept.append(batch.part(others))
        self.in_flight = kept
        self.unacknowledged = sum(batch.messages for batch in kept)

    def give_up(self, lane: int, reason: Unpublishable) -> tuple[Batch, int, list[Handed]]:
        """Stop a lane that was set aside before the first message that is not acknowledged.

        What it had in flight may still reach Kafka, until this publisher is closed; the lane publishes it again later.

        Returns:
            A batch of what was acknowledged in front of that message, with the stop; the number of messages given
            up; and what Kafka may have of the lane.
        """
        queue = self.aside.pop(lane)
        head = queue[0]
        index = min(index for _, index in head.waiting())
        position = head.positions[index]
        at = just_before(position, head.progress, head.before)
        stop = Stop(lane, at, position, head.message_ids[index], reason, in_flight=True)
        done = head.up_to(lane, stop, index)
        handed = list(in_doubt(queue, self._disturbed_until()))
        self.given_up |= _topics(queue)
        return done, sum(batch.messages for batch in queue) - done.messages, handed

    def let_go(self, lane: int) -> list[Handed]:
        """Forget what a lane that was set aside waits for; return what Kafka may have of it."""
        queue = self.aside.pop(lane)
        self.given_up |= _topics(queue)
        return list(in_doubt(queue, self._disturbed_until()))

    def give_up_drain(self, lane: int) -> tuple[Batch, list[Handed]]:
        """Give up the drain that a lane waits for, and nothing else; return it, and what Kafka may have of it."""
        queue = self.aside[lane]
        batch = queue.popleft()
        if not queue:
            del self.aside[lane]
        self.given_up |= _topics([batch])
        return batch, list(in_doubt([batch], self._disturbed_until()))

    @property
    def unsettled(self) -> int:
        """Messages given to Kafka that are not recorded."""
        return sum(batch.messages for batch in self.unrecorded())

    def unrecorded(self) -> Iterator[Batch]:
        """Return the batches that are not recorded; of one lane, oldest first."""
        return chain(chain.from_iterable(self.aside.values()), self.in_flight)

    def topics_on_the_wire(self) -> set[str]:
        """Return the topics with messages that are not acknowledged."""
        return _topics(self.unrecorded())

    def topics_aside(self) -> set[str]:
        """Return the topics with such messages in lanes that are set aside."""
        return _topics(chain.from_iterable(self.aside.values()))

    def in_doubt(self) -> Iterator[Handed]:
        """Yield what Kafka may have and is not recorded."""
        return in_doubt(self.unrecorded(), self._disturbed_until())

    def refused(self) -> Iterator[Handed]:
        """Yield what a broker refused, and is certainly not in Kafka."""
        return not_in_kafka(self.unrecorded(), self._disturbed_until())

    def _disturbed_until(self) -> float:
        raise NotImplementedError


def _topics(batches: Iterable[Batch]) -> set[str]:
    return {slot.topic for batch in batches for slot, _ in batch.waiting()}
