"""Exactly-once delivery in the loop: batches go out, come back, and are proven after any doubt (R10).

Schedules. The relay dies before the intent is written: nothing was sent. Behind it, or with the transaction open: its
successor fences it, and the offset is that of the batch before. While Kafka ends the transaction: the successor waits
for that, and the offset decides. Behind that, before the publications are written: the offset is the batch's, and its
intent lists what to record. It pauses, and wakes up fenced: it asks PostgreSQL first, and is not the leader any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter

from confluent_kafka import KafkaException

from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.streams import NO_PRODUCER
from outbox_relay.publisher.core.transactions import NotProvenError, Transactions
from outbox_relay.publisher.core.values import Batch, Item, Row, Scope
from outbox_relay.publisher.errors import PAUSE_LAST_S, TOPICS_FAULT, PauseAfterFailure, Unpublishable
from outbox_relay.publisher.finder import MESSAGE_ID, born
from outbox_relay.publisher.hands.gates import Gates
from outbox_relay.publisher.hands.proving import ABSENT, not_proven, refusal
from outbox_relay.publisher.hands.rows import Rows
from outbox_relay.publisher.hands.senders import OFFSETS_TOPIC
from outbox_relay.publisher.hands.silence import Silence
from outbox_relay.publisher.hands.spans import Spans
from outbox_relay.publisher.hands.transactional import Failed, TransactionalWires
from outbox_relay.publisher.hands.writes import Writes
from outbox_relay.publisher.kafka import readable
from outbox_relay.publisher.vitals import Counts
from outbox_relay.text.logs import Log

KEEP_EVERY_S = 3600.0
"""How often a batch goes out at least, with nothing in it: Kafka forgets what a group without members last committed
too long ago (`offsets.retention.minutes`, a week)."""
STUCK = "Kafka ends what was open when each of its partitions has enough in-sync replicas, and nothing is sent before"

log = Log("relay")


def digest_of(items: Sequence[Item]) -> str:
    """Return a hash of the ids of messages."""
    ids = ",".join(str(item.row.content[0][MESSAGE_ID]) for item in items)  # type: ignore[index]
    return blake2b(ids.encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class ExactlyOnce:
    """What the loop does with Kafka where messages are delivered exactly once."""

    core: Core
    batches: Transactions
    wires: TransactionalWires
    writes: Writes
    gates: Gates
    silence: Silence
    rows: Rows
    counts: Counts
    spans: Spans
    _keep_at: float = 0.0
    _pause: PauseAfterFailure = field(default_factory=lambda: PauseAfterFailure(PAUSE_LAST_S))

    def hear(self, now: float) -> None:
        """Take what Kafka acknowledged, committed, refused, or does not answer.

        Raises:
            LeaseLostError: another relay leads.
            DeliveryError: Kafka has a batch that this relay does not know, or refuses transactions.
        """
        if self.wires.is_replacing:
            self._prove(now)
            return
        for event in self.wires.events():
            if isinstance(event, Failed):
                self._fail(event, now)
            elif event.state == "begun":
                self.batches.produced(event)
            else:
                self._committed(event, now)
        if self.silence.is_due(now):
            self._hear_silence(now)
        if self.wires.is_tainted:
            self.batches.failed()
        if not self.batches.is_proven:
            self.wires.discard()
            if now >= self._pause.over_at:
                self.writes.barrier()  # who does not lead any more must not fence who does
                self.wires.replace()

    def _committed(self, batch: Batch, now: float) -> None:
        self.batches.committed(batch)
        self._keep_at = now + KEEP_EVERY_S
        if batch.items:
            first = min(batch.items, key=attrgetter("sent_at"))
            self.counts.acknowledged(first.sent_at, now, born(first.row.content[0]))  # type: ignore[index]

    def _hear_silence(self, now: float) -> None:
        for (topic, partition), reason in self.silence.silent(self.wires.waiting(), now).items():
            if topic == OFFSETS_TOPIC:
                log.error("delivery failed", text=reason)
                self.batches.failed()
            else:
                self.gates.explain(Scope("partition", topic, partition), reason)
                self.core.silent(topic, partition, now)

    def _fail(self, failed: Failed, now: float) -> None:
        log.error("delivery failed", text=f"{failed.code}: {failed.text}", messages=len(failed.refused))
        text = f"{failed.code}: {failed.text}"
        is_of_topics = failed.code in TOPICS_FAULT and OFFSETS_TOPIC not in failed.text
        refused = None if is_of_topics else refusal(failed.code, failed.text, self.wires.name)
        if refused is not None:
            raise refused
        if failed.unfit is not None:
            item, error = failed.unfit
            self.rows.errors[item.row.id] = error
            self._accuse(item, error.code, str(error), now)
        elif failed.refused and failed.code in TOPICS_FAULT:
            self._accuse(failed.refused[0], failed.code, text, now)
        elif failed.refused:
            error = Unpublishable(failed.code, failed.text)
            self.rows.errors.update((item.row.id, error) for item in failed.refused)
            self.batches.failed(failed.refused)
        elif is_of_topics and failed.topic is None and failed.topics:
            if len(failed.topics) == 1:
                self.gates.hold_topic(next(iter(failed.topics)), text, now)
            self.batches.failed(suspects=failed.topics)  # Kafka does not say which one it is
        else:
            self._pause.begin(now)
            if failed.topic is not None and any(batch.is_probe for batch in self.batches.batches):
                self.gates.hold_topic(failed.topic, text, now)  # it fails by itself: others go on
            elif failed.topic is not None:
                self.core.streams.suspect(failed.topic)
            self.batches.failed()

    def _accuse(self, item: Item, code: str, text: str, now: float) -> None:
        """Hold what a failure is of: one message, or all of its topic."""
        if code in TOPICS_FAULT:
            self.gates.hold_topic(item.row.topic, text, now)
            self.batches.failed()
        else:
            self.batches.failed(accused=[item])

    def _prove(self, now: float) -> None:
        """Go on behind the offset, once there are new producers."""
        try:
            is_done, offset = self.wires.take_proof()
        except (KafkaException, TimeoutError) as error:
            self._explain(error, now)
            return
        if not is_done:
            return
        try:
            self.core.proven_at(offset or ABSENT)
        except NotProvenError as error:
            self.writes.barrier()  # another leader may have sent it
            raise not_proven(str(error), self.wires.name) from error
        log.info("transactions proven", batch=self.batches.done.number)

    def _explain(self, error: Exception, now: float) -> None:
        code = error.args[0].name() if isinstance(error, KafkaException) else "_TIMED_OUT"
        text = readable(error)
        if (refused := refusal(code, text, self.wires.name)) is not None:
            raise refused
        if code == "CONCURRENT_TRANSACTIONS":
            text += f"; {STUCK}"
        log.warning("delivery failed", text=f"{code}: {text}", next_try_in_s=self._pause.begin(now))

    def is_idle(self, now: float) -> bool:
        """Return whether nothing is under way, and nothing has to go out to keep the group."""
        is_calm = self.batches.is_proven and not self.batches.batches and not self.wires.is_replacing
        return is_calm and now < self._keep_at

    # Sending ------------------------------------------------------------------------------------------------------

    def seal(self, now: float) -> bool:
        """Choose the next batch, and end the one before it. Return whether an intent is to be written."""
        if self.wires.is_replacing or not self.batches.is_proven:
            return False
        if (batch := self.batches.end()) is not None:
            self.wires.commit(batch)
        self.batches.seal(self.core.is_moving, is_empty=now >= self._keep_at and not self.core.is_stopping)
        return bool(self.batches.intents())

    def in_doubt(self) -> Iterable[Row]:
        """Return nothing: the next leader proves batches before anything else is sent."""
        return ()

    def send(self, now: float) -> None:
        """Send the next batch, if its intent is written."""
        if self.wires.is_replacing or (batch := self.batches.begin()) is None:
            return
        self.spans.sent([(item, NO_PRODUCER) for item in batch.items])
        handed = self.wires.handed
        failed = self.wires.begin(batch)
        self.counts.published += self.wires.handed - handed
        if failed is not None:
            self._fail(failed, now)
