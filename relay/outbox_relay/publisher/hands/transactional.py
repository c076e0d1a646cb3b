"""Kafka's side of exactly-once delivery: two producers with transactional ids, and the offset that proves a batch.

This is all that knows of Kafka's transactions. A commit in two phases (KIP-939), once brokers and librdkafka have it,
takes the place of `begin`, `commit`, `replace` and `take_proof`.

Batches alternate between the two producers: the next one is produced while Kafka ends the one before it, and no
producer waits for CONCURRENT_TRANSACTIONS of its own. Each has a partition of the group for its offsets, because two
coordinators may show theirs in either order; the greatest one counts. Whatever waits for Kafka does so on a thread.

Nothing is aborted and no producer is used again after any doubt: an error, a call that took too long, a connection
that was lost while a transaction was open (librdkafka may then have asked twice to end it, and a late copy would end
the next one). `replace` makes new producers of the same ids: Kafka fences the former ones and ends what they had open.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer

from outbox_relay.publisher.core.streams import Producer
from outbox_relay.publisher.core.values import Batch, Item, Proof
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.hands.published import check_offsets
from outbox_relay.publisher.hands.senders import CALL_S, FENCE_S, OFFSETS_TOPIC, PRODUCERS, Sender, fence
from outbox_relay.publisher.hands.wires import SERVE_EVERY, Wire, fault_of
from outbox_relay.publisher.kafka import lists, new_log_reader, readable
from outbox_relay.publisher.records import Topic
from outbox_relay.text.logs import Log, inherit

GIVE_UP_S = 2 * CALL_S
"""For so long a call is waited for. librdkafka may keep it for longer than it was asked to: a minute, of a broker that
stands still."""
THREADS = 8
"""For calls that wait, also those that are given up."""

log = Log("relay")


class Failed(NamedTuple):
    """Why no producer is used any more.

    `refused`: what Kafka refused. `unfit`: a message of which no record can be made. `topic`: of the message that
    failed first; none where the producer itself is at fault, or one of `topics`: those of the batch.
    """

    code: str
    text: str
    refused: tuple[Item, ...] = ()
    unfit: tuple[Item, Unpublishable] | None = None
    topic: str | None = None
    topics: frozenset[str] = frozenset()


class TransactionalWires:
    """The two producers of a shard; what the loop asks of `Wires`, it can ask of this one, too."""

    def __init__(self, settings: Mapping[str, Any], name: str) -> None:
        """Begin without a producer.

        Args:
            settings: of the relay's producers.
            name: of the group; with -0 and -1, of the transactional ids.
        """
        self._settings, self.name = settings, name
        self._senders: list[Sender] = []
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="transactions", initializer=inherit())
        self._proof: Future[tuple[list[Sender], Proof | None]] | None = None
        self._group: Any = None
        self.is_tainted = False
        """Whether a late copy of a request may end the next transaction of a producer: replace both."""
        self.handed = 0
        """Messages that were handed over so far."""
        self.unacknowledged = 0
        """Messages that are not acknowledged, as of the last check; other threads read it."""

    # Proof --------------------------------------------------------------------------------------------------------

    def offset(self, *, stable: bool = True) -> Proof | None:
        """Return the group's greatest offset; None if Kafka has none.

        Args:
            stable: wait until no transaction that is open has one. Otherwise the last ones that were committed.

        Raises:
            KafkaException: Kafka does not reply, or refuses.
        """
        reader = new_log_reader(self._settings, committed=stable, group=self.name)
        try:
            self._group = reader.consumer_group_metadata()
            partitions = [TopicPartition(OFFSETS_TOPIC, number) for number in range(PRODUCERS)]
            found = reader.committed(partitions, timeout=CALL_S)
        finally:
            reader.close()
        for one in found:
            if one.error is not None:
                raise KafkaException(one.error)
        return max((Proof(one.offset, one.metadata or "") for one in found if one.offset >= 0), default=None)

    def replace(self) -> None:
        """Begin to make new producers, which fence the former ones, and to read the offset then."""
        self.discard()
        self.is_tainted = False
        self._proof = self._pool.submit(self._replace)

    def discard(self) -> None:
        """Use the producers no more."""
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.close()

    def _replace(self) -> tuple[list[Sender], Proof | None]:
        made = [Sender(self._settings, f"{self.name}-{number}") for number in range(PRODUCERS)]
        deadline = time.monotonic() + FENCE_S
        with ThreadPoolExecutor(PRODUCERS, initializer=inherit()) as pool:
            list(pool.map(lambda one: fence(one.kafka, deadline), made))
        return made, self.offset()

    @property
    def is_replacing(self) -> bool:
        """Whether new producers are being made."""
        return self._proof is not None

    def take_proof(self, wait: float | None = 0) -> tuple[bool, Proof | None]:
        """Return whether there are new producers, and the offset that was read behind their fence.

        Args:
            wait: seconds; None: until they are there.

        Raises:
            KafkaException: Kafka does not reply, or refuses; begin again.
        """
        made = self._proof
        if made is None or (wait == 0 and not made.done()):
            return False, None
        self._proof = None
        self._senders, offset = made.result(wait)
        return True, offset

    # Batches ------------------------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> Failed | None:
        """Begin a transaction, and hand the batch's messages over."""
        sender = self._senders[batch.proof.number % PRODUCERS]
        sender.clear()
        sender.batch, sender.backlog, sender.since = batch, deque(batch.items), time.monotonic()
        try:
            sender.kafka.begin_transaction()
        except KafkaException as error:
            return _failed(error)
        sender.call = self._pool.submit(self._send_offset, sender.kafka, batch.proof)
        return self._hand_over(sender)

    def _send_offset(self, kafka: KafkaProducer, proof: Proof) -> None:
        place = TopicPartition(OFFSETS_TOPIC, proof.number % PRODUCERS, proof.number, metadata=proof.digest)
        kafka.send_offsets_to_transaction([place], self._group, CALL_S)

    def commit_nothing(self, proof: Proof) -> None:
        """Commit a batch without messages, and wait for that.

        Raises:
            KafkaException: Kafka does not reply, or refuses.
        """
        kafka = self._senders[proof.number % PRODUCERS].kafka
        kafka.begin_transaction()
        self._send_offset(kafka, proof)
        self._end_transaction(kafka)

    def _hand_over(self, sender: Sender) -> Failed | None:
        """Give librdkafka what it takes of a batch; the rest waits for room."""
        now = time.monotonic()
        while sender.backlog:
            item = sender.backlog[0]
            name = item.row.topic, item.partition
            wire = sender.wires.get(name)
            if wire is None:
                wire = sender.wires[name] = Wire(*name, sender.kafka.produce, sender.reports)
            try:
                wire.hand_over(item, now)
            except MemoryError:
                raise
            except Exception as raised:  # noqa: BLE001  (whatever it is, it concerns this message)
                if isinstance(raised, BufferError) and len(sender.kafka):
                    return None
                error = fault_of(raised)
                if error is None:
                    return _failed(raised)
                return Failed(error.code, error.text, unfit=(item, error))
            sender.backlog.popleft()
            self.handed += 1
            if not self.handed % SERVE_EVERY:
                sender.kafka.poll(0)
        return None

    def commit(self, batch: Batch) -> None:
        """Begin to end the transaction of a batch."""
        sender = self._senders[batch.proof.number % PRODUCERS]
        sender.since = time.monotonic()
        sender.call = self._pool.submit(self._end_transaction, sender.kafka)

    def _end_transaction(self, kafka: KafkaProducer) -> None:
        kafka.commit_transaction(CALL_S)

    def events(self) -> list[Batch | Failed]:
        """Return the batches that are produced or committed since the last call, in order, or why all ended.

        Raises:
            BrokenError: offsets of a partition do not ascend.
        """
        found: list[Batch | Failed] = []
        for sender in sorted(self._senders, key=_number_of):
            batch = sender.batch
            error: KafkaError | None = None
            is_committed = self._is_committed(
                sender
            )  # asked first: then `poll` has noted all that was before it
            try:
                sender.kafka.poll(0)
            except KafkaException as raised:
                error = raised.args[0]
            if batch is None and error is None:
                continue
            failed = self._failure_of(sender, error, is_committed=is_committed)
            if failed is not None:
                return [*found, failed]
            if batch is not None and batch.state == "begun" and sender.is_delivered:
                for wire in sender.wires.values():
                    check_offsets(wire.acknowledged)
                found.append(batch)
            elif batch is not None and is_committed:
                self.is_tainted |= sender.may_be_disturbed
                sender.batch = None
                found.append(batch)
        return found

    def _failure_of(self, sender: Sender, error: KafkaError | None, *, is_committed: bool) -> Failed | None:
        if error is None and (failed := self._hand_over(sender)) is not None:
            return failed
        raised = sender.call.exception() if sender.call is not None and sender.call.done() else None
        if raised is not None and not isinstance(raised, KafkaException):
            raise raised
        if error is None and raised is not None:
            error = raised.args[0]
        if error is None and sender.reports.failures:
            error = sender.reports.failures[0].error
        if error is not None:
            return self._end_of(sender, error)
        if sender.call is not None and not sender.call.done() and time.monotonic() - sender.since > GIVE_UP_S:
            return Failed("_TIMED_OUT", f"Kafka did not reply to a call for {GIVE_UP_S:g} s")
        if sender.is_disturbed and not is_committed:
            return Failed("_TRANSPORT", "a connection was lost while a transaction was open")
        return None

    @staticmethod
    def _is_committed(sender: Sender) -> bool:
        """Return whether Kafka has confirmed the end: what was sent is known."""
        batch = sender.batch
        return batch is not None and batch.state == "ending" and sender.is_confirmed

    @staticmethod
    def _end_of(sender: Sender, error: KafkaError) -> Failed:
        """Return why a producer ended, and what Kafka refused."""
        sender.reports.complete(sender.poll)
        refused, first = sender.reports.refused, sender.reports.first
        cause = error if first is None else first.error
        topic = None if first is None else first.item.row.topic
        items = () if sender.batch is None else sender.batch.items
        return Failed(
            cause.name(),
            readable(cause),
            tuple(one.item for one in refused),
            topic=topic,
            topics=frozenset(item.row.topic for item in items),
        )

    # What the loop asks of all wires ------------------------------------------------------------------------------

    def serve(self, seconds: float) -> None:
        """Collect deliveries, waiting up to `seconds` for the first."""
        busy = [sender for sender in self._senders if sender.batch is not None]
        for number, sender in enumerate(busy):
            sender.poll(seconds if number == len(busy) - 1 else 0)
        if not busy:
            time.sleep(seconds)

    def waiting(self) -> list[Wire]:
        """Return the wires with messages that are not acknowledged; for a call that waits, one of the group."""
        found = [wire for sender in self._senders for wire in sender.wires.values() if wire.waiting]
        self.unacknowledged = sum(wire.waiting for wire in found)
        for sender in self._senders:
            if sender.call is not None and not sender.call.done():
                wire = Wire(OFFSETS_TOPIC, 0, _nothing, sender.reports)
                wire.since = sender.since
                found.append(wire)
        return found

    def may_deliver(self, topic: str) -> bool:
        """Return whether a batch that is under way has messages of a topic."""
        batches = [sender.batch for sender in self._senders if sender.batch is not None]
        return any(item.row.topic == topic for batch in batches for item in batch.items)

    def open(self, producer: Producer) -> TransactionalWires:
        """Return the producers of all topics."""
        return self

    def lists(self, topic: Topic) -> bool:
        """Return whether both producers know all partitions of a topic, after reading them from a broker."""
        return bool(self._senders) and all(lists(sender.kafka, topic) for sender in self._senders)

    def rest(self) -> bool:
        """Return whether nothing is under way. The producers stay: new ones would have to fence them."""
        return self._proof is None and all(sender.batch is None for sender in self._senders)

    def close(self) -> None:
        """Close the producers. What they had open is ended by the next ones of their ids."""
        self.discard()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _failed(error: Exception) -> Failed:
    cause: KafkaError = error.args[0]
    return Failed(cause.name(), readable(cause))


def _number_of(sender: Sender) -> int:
    return -1 if sender.batch is None else sender.batch.proof.number


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what produces."""
