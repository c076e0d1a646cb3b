"""Exactly-once: the batches in which messages go to Kafka, each of them a transaction, and what proves them (R10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from outbox_relay.publisher.core.streams import NO_PRODUCER, Stream, Streams
from outbox_relay.publisher.core.values import Batch, Item, Limits, Proof

AHEAD = 2
"""Batches at a time, and producers: one is sealed, written and produced while the one before it ends."""


class NotProvenError(Exception):
    """Kafka has a batch that is neither the last one that is known nor one that may have been sent."""


class Transactions:
    """The batches of one leadership, numbered without gaps.

    A batch commits its number in Kafka, as an offset, with its messages. So the greatest offset is the number of the
    last committed batch, and the intents in PostgreSQL list what was in it.
    """

    def __init__(
        self,
        last: Proof,
        streams: Streams,
        limits: Limits,
        digest_of: Callable[[Sequence[Item]], str],
        room_of: Callable[[str], int],
    ) -> None:
        """Begin behind a batch that is proven.

        Args:
            last: the batch that Kafka committed last; all of it has publications, and it is the only intent.
            streams: from which messages are taken.
            limits: how many messages a batch has.
            digest_of: computes the digest of the messages of a batch.
            room_of: the bytes of one partition of a topic that a batch may have.
        """
        self.done = last
        """The last batch that Kafka is known to have committed."""
        self.batches: deque[Batch] = deque()
        """Those behind it, in order."""
        self.is_proven = True
        """False: a producer ended. All are replaced, then the offset says which batches Kafka has."""
        self._last = last.number
        self._streams, self._limits = streams, limits
        self._digest_of, self._room_of = digest_of, room_of
        self._accused: list[Item] = []
        self._open: dict[int, set[int]] = {last.number: set()}
        """By number, the rows without a publication of each committed batch whose intent is in the table."""

    # Sealing ------------------------------------------------------------------------------------------------------

    def seal(self, is_moving: Callable[[str], bool], *, is_empty: bool = False) -> None:
        """Choose the next batch, if there is something to send.

        Args:
            is_moving: whether nothing more of a topic is sent until it has moved (R9).
            is_empty: make one without messages, so that Kafka keeps the group: it forgets what commits nothing.
        """
        if not self.is_proven or len(self.batches) >= AHEAD or any(one.is_probe for one in self.batches):
            return
        items, is_probe = self._choose(is_moving)
        if items or (is_empty and not self.batches):
            self._last += 1
            self.batches.append(Batch(Proof(self._last, self._digest_of(items)), tuple(items), is_probe))

    def _choose(self, is_moving: Callable[[str], bool]) -> tuple[list[Item], bool]:
        """Take messages of all partitions in turn, up to a batch (isolation).

        What Kafka refuses takes its transaction with it, and Kafka may not say which topic is at fault. So each topic
        on probation goes by itself in every second one, and each partition has one message in it, which is alone (R8).
        """
        suspects: dict[str, list[Stream]] = {}
        others: list[tuple[Stream, int]] = []
        for (topic, _), stream in self._streams.by_name.items():
            if stream.queued and not is_moving(topic):
                if topic in self._streams.probation:
                    suspects.setdefault(topic, []).append(stream)
                else:
                    others.append((stream, self._room_of(topic)))
        if suspects and (self._last % AHEAD or not others):
            if self.batches:
                return [], False
            streams = [*suspects.values()][self._last // AHEAD % len(suspects)]
            return [_send_next(stream) for stream in streams[: self._limits.batch]], True
        return self._in_turn(others), False

    def _in_turn(self, streams: list[tuple[Stream, int]]) -> list[Item]:
        items: list[Item] = []
        left, size = self._limits.batch, self._limits.page_size
        while streams and left > 0 and size > 0:
            share, more = max(1, left // len(streams)), []
            for stream, room in streams[:left]:
                taken = used = 0
                while stream.queued and taken < share and size > 0:
                    used += stream.queued[0].row.size
                    if used > room and taken:
                        break
                    items.append(_send_next(stream))
                    size -= items[-1].row.size
                    taken += 1
                left -= taken
                if stream.queued and used < room:
                    more.append((stream, room - used))
            streams = more
        return sorted(items, key=lambda item: item.number)

    # Writing ------------------------------------------------------------------------------------------------------

    def intents(self) -> tuple[Batch, ...]:
        """Return the batches whose intents are to be written."""
        return tuple(batch for batch in self.batches if batch.state == "sealed")

    def ended(self, settled: set[int]) -> tuple[int, ...]:
        """Return the batches whose intents are of no more use with a write.

        All of them is recorded, and a later one is committed: the offset is a later one, too.

        Args:
            settled: the ids that the write settles.
        """
        return tuple(
            number for number, rows in self._open.items() if number < self.done.number and rows <= settled
        )

    def written(self, intents: Collection[Batch], ended: Collection[int], settled: set[int]) -> None:
        """Note what a write has recorded. A batch may be sent from now on."""
        for batch in intents:
            batch.state = "intended"
        for number in ended:
            del self._open[number]
        for rows in self._open.values():
            rows.difference_update(settled)

    # Sending ------------------------------------------------------------------------------------------------------

    def begin(self) -> Batch | None:
        """Return the next batch to produce. It is produced while the one before it ends, and not side by side.

        Its messages would stand among those of the one before it, in the same partitions (R2).
        """
        batch = next((one for one in self.batches if one.state in ("sealed", "intended")), None)
        if not self.is_proven or batch is None or batch.state != "intended":
            return None
        if any(one.state == "begun" for one in self.batches):
            return None
        batch.state = "begun"
        return batch

    def produced(self, batch: Batch) -> None:
        """Note that Kafka acknowledged all messages of a batch, and its offset."""
        if batch.state == "begun":
            batch.state = "produced"

    def end(self) -> Batch | None:
        """Return the batch that may be committed: the first one only, so none is committed before another."""
        if self.is_proven and self.batches and self.batches[0].state == "produced":
            self.batches[0].state = "ending"
            return self.batches[0]
        return None

    def committed(self, batch: Batch) -> None:
        """Note that Kafka has committed a batch."""
        if self.is_proven and self.batches and self.batches[0] is batch:
            self._publish_first()

    def _publish_first(self) -> None:
        batch = self.batches.popleft()
        self.done = batch.proof
        self._open[batch.proof.number] = {item.row.id for item in batch.items}
        by_partition: dict[tuple[str, int], list[Item]] = {}
        for item in batch.items:
            by_partition.setdefault((item.row.topic, item.partition), []).append(item)
        for items in by_partition.values():
            self._streams.acknowledged(items, NO_PRODUCER)

    # Doubt --------------------------------------------------------------------------------------------------------

    def failed(
        self,
        refused: Collection[Item] = (),
        *,
        accused: Collection[Item] = (),
        suspects: Collection[str] = (),
    ) -> None:
        """Give up all producers: one failed, timed out, was fenced, or did not answer.

        None of them aborts or is used again. What was sent is not in doubt for long: `proven_at` decides.

        Args:
            refused: what Kafka refused. A message is accused only if it was the only one of its partition (R8).
            accused: messages of which no record can be made.
            suspects: topics of which one is at fault. One batch of each by itself shows which.
        """
        self.is_proven = False
        for topic in suspects:
            self._streams.probation.setdefault(topic, 1)
        self._accused += accused
        for item in refused:
            batch = next((one for one in self.batches if item in one.items), None)
            if batch is None:
                continue
            self._streams.suspect(item.row.topic)
            name = item.row.topic, item.partition
            if sum((one.row.topic, one.partition) == name for one in batch.items) == 1:
                self._accused.append(item)

    def proven_at(self, offset: Proof) -> tuple[list[Item], list[Item]]:
        """Take the group's stable offset, which was read after the former producers were fenced.

        Returns:
            What is certainly not in Kafka, of all partitions in their order, and those that are accused.

        Raises:
            NotProvenError: it is the offset of no batch that is known.
        """
        sent = [one for one in self.batches if one.state in ("begun", "produced", "ending")]
        known = [self.done, *(one.proof for one in sent)]
        if offset not in known:
            raise NotProvenError(f"Kafka has batch {offset}; expected one of {known}")
        while self.done != offset:
            self._publish_first()
        left = [item for batch in self.batches for item in batch.items]
        self.batches.clear()
        self._last, self.is_proven = offset.number, True
        accused, self._accused = self._accused, []
        return left, accused


def batches_of(
    transactions: Transactions | None, settled: set[int]
) -> tuple[tuple[Batch, ...], tuple[int, ...]]:
    """Return whose intents a write has that settles some rows, and whose are of no more use with it (R10)."""
    intents = () if transactions is None else transactions.intents()
    return intents, transactions.ended(settled) if transactions is not None and intents else ()


def _send_next(stream: Stream) -> Item:
    item = stream.queued.popleft()
    stream.sent.append(item)
    return item
