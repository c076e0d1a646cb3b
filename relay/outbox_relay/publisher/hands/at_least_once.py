"""At-least-once delivery in the loop: messages go out as soon as they may, and come back acknowledged or refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Row, Scope
from outbox_relay.publisher.errors import PAUSE_LAST_S, TOPICS_FAULT, PauseAfterFailure, Unpublishable
from outbox_relay.publisher.finder import born
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.published import check_offsets
from outbox_relay.publisher.hands.rows import Rows
from outbox_relay.publisher.hands.silence import Silence
from outbox_relay.publisher.hands.spans import Spans
from outbox_relay.publisher.hands.wires import ProducerEnd, Wires
from outbox_relay.publisher.vitals import Counts
from outbox_relay.text.logs import Log

log = Log("relay")


@dataclass(slots=True)
class AtLeastOnce:
    """What the loop does with Kafka where messages are delivered at least once."""

    core: Core
    wires: Wires
    gates: Gates
    silence: Silence
    rows: Rows
    counts: Counts
    spans: Spans
    _pause: PauseAfterFailure = field(default_factory=lambda: PauseAfterFailure(PAUSE_LAST_S))
    """A producer failed: nothing is sent before its pause is over."""

    def hear(self, now: float) -> None:
        """Take what Kafka acknowledged, refused, or does not answer."""
        self.wires.serve(0)
        ends = self.wires.take_ended()  # first, because it waits for what else has happened
        acknowledged = self.wires.take_acknowledged()
        if acknowledged:  # counted once: what is acknowledged together was sent together as a rule
            first = min((items[0] for items, _ in acknowledged), key=attrgetter("sent_at"))
            self.counts.acknowledged(first.sent_at, now, born(first.row.content[0]))  # type: ignore[index]
        for items, producer in acknowledged:
            check_offsets(items)
            self.core.acknowledged(items, producer)
        for ended in ends:
            self._end(ended, now)
            self.wires.close_unused(self.core.streams.producers())
        if self.silence.is_due(now):
            for (topic, partition), reason in self.silence.silent(self.wires.waiting(), now).items():
                scope = Scope("partition", topic, partition)
                self.gates.explain(scope, reason)
                self.core.silent(topic, partition, now)
                self.wires.forget(topic, partition)
                current = {self.core.streams.main, self.core.streams.single}
                for items in self.wires.take_back(current):
                    self.core.not_taken(items, is_accused=False)
            self.wires.close_unused(self.core.streams.producers())

    def _end(self, ended: ProducerEnd, now: float) -> None:
        """Take the end of a producer, or the refusal of one message."""
        code, text = ended.code, ended.text
        if not ended.refused:
            if ended.topic is not None and ended.producer.is_single:
                self.gates.hold_topic(ended.topic, f"{code}: {text}", now)  # it fails by itself: others go on
            else:
                pause = self._pause.begin(now)
                log.error("delivery failed", text=f"{code}: {text}", next_try_in_s=pause)
                if ended.topic is not None:
                    self.core.streams.suspect(ended.topic)  # the next time it fails by itself
            self.core.lost(ended.producer)
        else:
            first = ended.refused[0]
            text = f"topic {first.row.topic!r}, partition {first.partition}: {text}"
            if code == "INVALID_TIMESTAMP":
                text += "; records have the time of this relay's host: compare its clock with the broker's"
            log.error("delivery failed", text=f"{code}: {text}", messages=len(ended.refused))
            if ended.is_of_topic:
                self.gates.hold_topic(first.row.topic, f"{code}: {text}", now)
                self.core.lost(ended.producer, ended.refused)
            else:
                self.rows.errors.update((item.row.id, Unpublishable(code, text)) for item in ended.refused)
                self.core.refused(ended.refused, ended.producer)

    def seal(self, now: float) -> bool:
        """Return whether something is to be written before more is sent: it never is."""
        return False

    def send(self, now: float) -> None:
        """Send what may be sent."""
        if now < self._pause.over_at:
            return
        messages = [] if self.wires.is_full else self.core.to_send()
        self.spans.sent(messages)
        handed = self.wires.handed
        refused = self.wires.send(messages)
        self.counts.published += self.wires.handed - handed
        for items, error in refused:
            first = items[0].row
            if error.code in TOPICS_FAULT:
                self.core.not_taken(items, is_accused=False)
                self.gates.hold_topic(first.topic, str(error), now)
            else:
                self.rows.errors[first.id] = error
                self.core.not_taken(items, is_accused=True)

    def in_doubt(self) -> Iterable[Row]:
        """Return the rows of messages that Kafka may have, and that are not recorded."""
        streams = self.core.streams
        items = [*streams.published, *(item for one in streams.by_name.values() for item in one.sent)]
        items += [item for one in streams.by_name.values() for item in one.queued if item.in_doubt]
        claims = self.core.holds.claims.values()
        return [item.row for item in items] + [claim.row for claim in claims if claim.in_doubt]

    def is_idle(self, now: float) -> bool:
        """Return whether nothing has to go out though no message waits: nothing ever has."""
        return True
