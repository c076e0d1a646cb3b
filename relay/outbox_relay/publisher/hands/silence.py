"""Partitions that acknowledge nothing, and what Kafka lists of them.

librdkafka never gives a message up (`message.timeout.ms = 0`), so what a partition does not acknowledge is held after
`patience` seconds in which the cluster answered and the partition did not. While no broker replies, everything is away,
not a partition: the clocks of all begin again at each question that fails, and at the first that is answered. So does
the clock of one that has again what it lacked: its silence until then is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from outbox.backoff import Backoff
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.hands.wires import Wire
from outbox_relay.publisher.topics import PartitionState
from outbox_relay.text.logs import Log, inherit

CHECK_EVERY_S = 0.1
PROBE_EVERY_S = 1.0
PATIENCE_S = 10.0
LEAST_PATIENCE_S = 3.0
"""More than a question to Kafka takes when no broker replies, so that one was answered before a partition is held."""
REPORT_FIRST_S, REPORT_LAST_S = 1.0, 60.0
LATE_AGAIN_S = 2.0
"""So long after the last partition was late, what Kafka listed of it is of no use."""
UNANSWERED_S = 0.5
"""After so long without an acknowledgement Kafka is asked about a partition."""

log = Log("relay")

TopicPartition = tuple[str, int]
ANY_PARTITION: TopicPartition = ("__consumer_offsets", 0)
"""What a relay that stands by asks about: whether there is an answer counts, not what it is."""
Probe = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, PartitionState]]
"""Describes what Kafka knows of partitions; raises KafkaUnavailableError when no broker replies."""


class Silence:
    """Watches the wires; it asks Kafka on a thread of its own and never waits."""

    def __init__(self, open_probe: Callable[[], Probe], *, patience: float = PATIENCE_S) -> None:
        """Begin to watch.

        Args:
            open_probe: makes what asks Kafka, when there is something to ask: it has a client with threads.
            patience: in seconds.
        """
        self._open_probe = open_probe
        self.patience = self._usual = patience
        self._asker: tuple[ThreadPoolExecutor, Probe] | None = None
        self._look_at = self._ask_at = self._report_at = self._late_at = 0.0
        self._asked: Future[Mapping[TopicPartition, PartitionState]] | None = None
        self._known: Mapping[TopicPartition, PartitionState] = {}
        self._reports = Backoff(REPORT_FIRST_S, REPORT_LAST_S)
        self.away_since: float | None = None
        """Since when no broker replies, while something waits for one; None: one did."""

    def hurry(self) -> None:
        """Hold partitions as soon as Kafka has shown that only they are in trouble: the loop is to end."""
        self.patience = min(self.patience, LEAST_PATIENCE_S)

    def calm(self) -> None:
        """Have the usual patience again."""
        self.patience = self._usual

    def close(self) -> None:
        """Let go of thread and client until the next question; one under way ends by itself."""
        asker, self._asker, self._asked = self._asker, None, None
        if asker is not None:
            asker[0].shutdown(wait=False, cancel_futures=True)

    def stand_by(self, now: float, *, is_leader_away: bool) -> bool:
        """Return whether Kafka is away from this relay, which stands by, as it is from the leader.

        It asks only while the leader lacks Kafka, and takes Kafka for away until a broker has replied.
        """
        if not is_leader_away:
            self.close()
            self._known, self.away_since = {}, None
            return False
        self._ask((), now)
        return not self._known

    def silent(self, wires: Collection[Wire], now: float) -> dict[TopicPartition, str]:
        """Return the partitions whose time is up, with the reason."""
        self._look_at = now + CHECK_EVERY_S
        late = [wire for wire in wires if now - wire.since >= UNANSWERED_S]
        if not late:
            # Its clock may just have begun again: what is known stays for as long as it takes to be late once more.
            if now - self._late_at > LATE_AGAIN_S:
                self._known, self.away_since = {}, None
            return {}
        self._late_at = now
        self._ask(late, now)
        return {
            (wire.topic, wire.partition): self._reason(wire)
            for wire in late
            if now - wire.since >= self.patience and (wire.topic, wire.partition) in self._known
        }

    def is_due(self, now: float) -> bool:
        """Return whether it is time to check the wires again."""
        return now >= self._look_at

    def _reason(self, wire: Wire) -> str:
        text, code = self._known[wire.topic, wire.partition]
        return (
            f"{code}: topic {wire.topic!r}, partition {wire.partition}: no acknowledgement for "
            f"{self.patience:g} s: {text}"
        )

    def _ask(self, late: Collection[Wire], now: float) -> None:
        if self._asked is not None:
            if not self._asked.done():
                return
            self._take_answer(self._asked, late, now)
            self._asked, self._ask_at = None, now + PROBE_EVERY_S
        if now >= self._ask_at:
            if self._asker is None:
                probe = self._open_probe()
                pool = ThreadPoolExecutor(1, thread_name_prefix="partitions", initializer=inherit())
                self._asker = pool, probe
            pool, probe = self._asker
            self._asked = pool.submit(
                probe, {(wire.topic, wire.partition) for wire in late} or {ANY_PARTITION}
            )

    def _take_answer(
        self, asked: Future[Mapping[TopicPartition, PartitionState]], late: Collection[Wire], now: float
    ) -> None:
        before = self._known
        try:
            self._known, self.away_since = asked.result(), None
            self._report_at = 0.0
            self._reports.reset()
        except KafkaUnavailableError as error:
            self._known = {}
            self.away_since = now if self.away_since is None else self.away_since
            if now >= self._report_at:
                pause = self._reports.next()
                log.warning("Kafka is away", error=str(error), next_report_in_s=pause)
                self._report_at = now + pause
        for wire in late:
            name = wire.topic, wire.partition
            lacked, has = before.get(name), self._known.get(name)
            is_healed = lacked is not None and has is not None and has.is_silent and not lacked.is_silent
            # Also at the first answer: until then the cluster was away, and what it says of partitions is too soon.
            if not before or not self._known or is_healed:
                wire.since = now
