"""Partitions that acknowledge nothing: which lanes wait for them, for how long, and why.

librdkafka never gives a message up (`message.timeout.ms = 0`), so a partition without a leader, or with too few in-sync
replicas, would hold up everything behind it. Two steps keep it from that:

1. After half a second to a second without an acknowledgement from a partition, the lanes that wait for it are
   set aside: nothing more is read for them, and the other lanes are recorded and go on. Nothing is produced
   again for it; when the acknowledgements come, the lanes join the others.
2. After `patience` seconds, if the partition has no leader or too few in-sync replicas, its topic is parked in these
   lanes until it has them (see leaderless.py). Else the lanes stop with the partition named in outbox.lane, and are
   tried again later, one message at first: a leader that is there and silent shows only by such a try that it is back.

Step 2 needs a broker that replies. When none does, everything is away, not a partition: the clocks of all lanes
begin again at every question that fails, and at the first one that is answered, so a lane stops only after `patience`
seconds in which the cluster answered and the partition did not. So does the clock of a lane whose partition has again
what it lacked at the question before: its silence until then is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from outbox.backoff import Backoff
from outbox_relay.publisher.batch import Batch, Slot
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.probe import PartitionState
from outbox_relay.publisher.producing import Publisher
from outbox_relay.text.logs import Log, inherit

LATE_S = 0.5
CHECK_EVERY_S = 0.1
PROBE_EVERY_S = 1.0
PATIENCE_S = 10.0
LEAST_PATIENCE_S = 3.0
"""More than a question to Kafka takes when no broker replies, so that one has been answered before a lane stops."""
REPORT_FIRST_S = 1.0
REPORT_LAST_S = 60.0

log = Log("relay")

TopicPartition = tuple[str, int]
Probe = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, PartitionState]]
"""Describes what Kafka knows of partitions; raises KafkaUnavailableError when no broker replies."""


@dataclass(slots=True)
class _Wait:
    """One lane that is set aside: its first batch, what of it was acknowledged, and since when nothing more was."""

    head: Batch
    acknowledged: int
    since: float
    partition: TopicPartition


class Overdue:
    """Watches what is in flight; it asks Kafka on a thread of its own and never waits."""

    def __init__(self, probe: Probe, *, patience: float = PATIENCE_S) -> None:
        self._probe = probe
        self._patience = patience
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="partitions", initializer=inherit())
        self._look_at = 0.0
        self._stalled: dict[TopicPartition, tuple[Slot, int, float]] = {}
        self._waits: dict[int, _Wait] = {}
        self._asked: Future[Mapping[TopicPartition, PartitionState]] | None = None
        self._ask_at = 0.0
        self._known: Mapping[TopicPartition, PartitionState] = {}
        self.away_since: float | None = None
        """Since when no broker replies, while something waits for one; None: one did."""
        self._report_at = 0.0
        self._reports = Backoff(REPORT_FIRST_S, REPORT_LAST_S)

    def hurry(self) -> None:
        """Stop lanes as soon as Kafka has shown that only their partitions are in trouble: the relay is to end."""
        self._patience = min(self._patience, LEAST_PATIENCE_S)

    def close(self) -> None:
        """Let go of the thread; a question under way ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def is_due(self, now: float) -> bool:
        """Whether it is time to check again."""
        if now < self._look_at:
            return False
        self._look_at = now + CHECK_EVERY_S
        return True

    def late(self, publisher: Publisher, now: float) -> set[int]:
        """Return the lanes that wait for a partition that has acknowledged nothing for a while."""
        waiting: dict[TopicPartition, Slot] = {}
        for batch in publisher.in_flight:
            if now - batch.since < LATE_S:
                break
            for slot, _ in batch.waiting():
                waiting.setdefault((slot.topic, slot.partition), slot)
        stalled = {}
        for partition, slot in waiting.items():
            known = self._stalled.get(partition)
            same = known is not None and known[0] is slot and known[1] == len(slot.offsets)
            since = known[2] if known is not None and same else now
            stalled[partition] = (slot, len(slot.offsets), since)
        self._stalled = stalled
        late = {partition for partition, (_, _, since) in stalled.items() if now - since >= LATE_S}
        if not late:
            return set()
        return set().union(*(batch.waiting_lanes(late) for batch in publisher.in_flight))

    def hopeless(self, publisher: Publisher, now: float) -> dict[int, Unpublishable]:
        """Return the lanes set aside whose time is up, with the reason."""
        self._waits = {lane: wait for lane, wait in self._waits.items() if lane in publisher.aside}
        for lane, queue in publisher.aside.items():
            head = queue[0]
            acknowledged = sum(len(slot.offsets) for slot, _ in head.needs)
            first = min(head.waiting(), key=lambda found: found[1], default=None)
            if first is None:
                self._waits.pop(lane, None)  # acknowledged, and recorded next
                continue
            wait = self._waits.get(lane)
            if wait is None or wait.head is not head or wait.acknowledged != acknowledged:
                self._waits[lane] = _Wait(head, acknowledged, now, (first[0].topic, first[0].partition))
        if not self._waits:
            self._known, self.away_since = {}, None  # of no use for the next time
            return {}
        self._ask(now)
        return {
            lane: self._reason(wait)
            for lane, wait in self._waits.items()
            if now - wait.since >= self._patience and wait.partition in self._known
        }

    def _reason(self, wait: _Wait) -> Unpublishable:
        topic, number = wait.partition
        text, code = self._known[wait.partition]
        return Unpublishable(
            code,
            f"topic {topic!r}, partition {number}: no acknowledgement for {self._patience:g} s: {text}",
        )

    def _ask(self, now: float) -> None:
        if self._asked is not None:
            if not self._asked.done():
                return
            asked, self._asked = self._asked, None
            before = self._known
            try:
                self._known, self.away_since = asked.result(), None
                self._report_at = 0.0
                self._reports.reset()
            except KafkaUnavailableError as error:
                self._known = {}
                self.away_since = now if self.away_since is None else self.away_since
                self._report(error, now)
            for wait in self._waits.values():
                lacked, has = before.get(wait.partition), self._known.get(wait.partition)
                is_healed = lacked is not None and has is not None and has.is_silent and not lacked.is_silent
                # Also at the first answer: until then the cluster was away, and what it says of partitions is too soon.
                if not before or not self._known or is_healed:
                    wait.since = now
            self._ask_at = now + PROBE_EVERY_S
        if now >= self._ask_at:
            partitions = {wait.partition for wait in self._waits.values()}
            self._asked = self._pool.submit(self._probe, partitions)

    def _report(self, error: KafkaUnavailableError, now: float) -> None:
        if now < self._report_at:
            return
        pause = self._reports.next()
        log.warning(
            "Kafka is away",
            error=str(error),
            lanes_waiting=sorted(self._waits),
            next_report_in_s=pause,
        )
        self._report_at = now + pause
