"""What a publisher does with messages that it does not give to Kafka: they are held.

What becomes of it is written with the batch; see parked.py.
"""

from __future__ import annotations

from outbox_relay.publisher import parked
from outbox_relay.publisher.batch import Batch, Stop, just_before
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.finder import ID, LANE, MESSAGE_ID, POSITION, TOPIC, RawRow
from outbox_relay.publisher.on_the_wire import OnTheWire
from outbox_relay.publisher.parked import Claim, Held
from outbox_relay.publisher.records import claim_of, claim_of_closed
from outbox_relay.publisher.topics import TopicBook


class HoldingKeys(OnTheWire):
    """The part of a publisher that holds messages back."""

    held: Held
    topics: TopicBook

    def _hold(self, batch: Batch, row: RawRow, number: int) -> None:
        """Hold a message behind the one that parked its key, or its topic.

        What the drain of a topic moves to a key has its row in the database already, and counts only for newer ones. It
        parks its topic if that cannot be published to, or if its key holds too many: topics know no limit.
        """
        topic = row[TOPIC]
        if number > 0 and batch.drain is None:
            closed = self.topics.closed(topic)
            if self.held.messages_of[row[LANE], topic] >= parked.MOST_HELD:
                closed = self.held.full(row[LANE], topic)
                self.held.limited.add((row[LANE], topic))
            of_topic = claim_of_closed(row, closed)
            if of_topic is not None:
                self._claim(batch, of_topic, topic)
                return
        self._claim(batch, Claim(row[LANE], row[POSITION], row[ID], row[MESSAGE_ID], number, None), topic)

    def _claim(self, batch: Batch, claim: Claim, topic: str) -> None:
        batch.claims.append(claim)
        self.held.join(claim)
        if not claim.is_of_topic:
            self.held.messages_of[claim.lane, topic] += 1
        if claim.head is not None and claim.number is not None:
            self.held.park(claim.head.key, claim.number, claim.position)

    def _put_off_drain(self, batch: Batch, running: set[int], claim: Claim) -> None:
        """Put a key's drain off until its topic can be published to; the message is sound, and stays with its key.

        The topic is parked, if it is not yet: with no message of its own its drain is one empty page.
        """
        assert batch.drain is not None  # noqa: S101  (the caller has asked)
        running.discard(claim.lane)
        batch.drain.is_put_off = True
        self.held.limited.discard((claim.lane, batch.drain.key[1]))
        if (claim.lane, batch.drain.key[1]) not in self.held.topics:
            self._claim(batch, claim, batch.drain.key[1])

    @staticmethod
    def _end_drain(batch: Batch, running: set[int], row: RawRow, reason: Unpublishable) -> None:
        """End a drain in front of a message that fails."""
        assert batch.drain is not None  # noqa: S101  (the callers have asked)
        running.discard(row[LANE])
        batch.drain.failed = claim_of(row, batch.drain.number, reason)

    def _stop_lane(self, batch: Batch, running: set[int], row: RawRow, reason: Unpublishable) -> None:
        lane = row[LANE]
        running.discard(lane)
        at = just_before(row[POSITION], batch.progress, batch.before)
        batch.stops.append(Stop(lane, at, row[POSITION], row[MESSAGE_ID], reason))
