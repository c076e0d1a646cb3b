"""RocketMQ 5.x's simple consumer: the application receives messages, and acknowledges each when it is done.

consumer = (
SimpleConsumerBuilder(dsn)
.set_client_configuration(ClientConfiguration("broker:9092"))
.set_consumer_group("invoices")
.set_subscription_expressions({"orders": FilterExpression("paid")})
.set_consume_from(FIRST)
.set_await_duration(timedelta(seconds=30))
.build()
)
for view in consumer.receive(16, timedelta(seconds=30)):
consumer.ack(view)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, time_ns
from typing import Any, Self, TypeVar

import psycopg

from outbox.codecs.codec import Codec, Codecs, codecs_of
from outbox.drivers.psycopg_sync import run
from outbox.errors import ConfigurationError, InvalidReceiptError
from outbox.inbox import ConsumeFrom, DelaySchedule
from outbox.inbox.core.partitions import EVERY_TOPIC
from outbox.inbox.decoding import Decoding
from outbox.inbox.leases import Intake, ReceivedLease, acknowledge, change_lease, lacks, receive
from outbox.inbox.parked_rows import DueSince
from outbox.inbox.sessions import limit_transactions
from outbox.rocketmq.consumer.builder import ClientConfiguration, FilterExpression
from outbox.rocketmq.consumer.received import MessageExt
from outbox.statements import Plan
from outbox.tracing import Tracing

T = TypeVar("T")
log = logging.getLogger("outbox.inbox")
MOST_MESSAGES = 1000
LONGEST_LEASE = 12 * 3600.0
"""RocketMQ's longest invisible duration."""
LIMIT, INTAKE_LOCK_WAIT = 15.0, 1.0
"""Seconds for a transaction of the connection that all callers share, and for one lock."""
POLL_S = 0.2
FEED_S = 1.0
"""Between two checks whether other members lack what this one has read."""


@dataclass(frozen=True, slots=True)
class ReceivedView(MessageExt):
    """A message that was received, with the receipt of that."""

    lease: ReceivedLease = field(kw_only=True, repr=False)

    @property
    def receipt_handle(self) -> str:
        """RocketMQ's name of what an acknowledgement names; another one each time that it is received."""
        return f"{self.lease.id}/{self.lease.attempt}"


class SimpleConsumer:
    """Receives messages and acknowledges them, in any thread; made by `SimpleConsumerBuilder`."""

    def __init__(
        self,
        intake: Intake,
        connect: Callable[[], Any],
        parked: threading.Event,
        await_s: float,
        attempts: int,
        *,
        decoding: Decoding | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._intake, self._connect, self._parked = intake, connect, parked
        self._await_s, self._attempts, self._due = await_s, attempts, DueSince(0)
        self._decoding, self._tracing = decoding, tracing
        self._conn: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._feeding = threading.Thread(target=self._feed, name="outbox-simple-consumer", daemon=True)

    def start(self) -> Self:
        """Let other members receive what is read here and no caller asks for; `close` ends it."""
        self._feeding.start()
        return self

    def _feed(self) -> None:
        """Park messages of this member's partitions while none of them can be received, though no caller is here.

        It may stop between any two lines: the messages stay in Kafka until a caller asks, as if it had not checked. Of
        two members that check at the same time each parks a batch, of its own partitions.
        """
        while not self._ends.wait(FEED_S):
            try:
                if places := self._intake.unasked():
                    lacking = self._run(lacks(self._intake.group_id, places))
                    if lacking:
                        self._intake.ask()
            except Exception as error:  # noqa: BLE001  (the next receive meets it too, and raises it)
                log.debug("nothing is parked for other members: %s", error)

    def receive(self, max_message_num: int, invisible_duration: timedelta | float) -> list[ReceivedView]:
        """Receive messages; none after the await duration, and none of what is paused.

        A message whose body was erased is acknowledged instead. One whose body cannot be decoded now is not returned:
        it is received again after `invisible_duration`, as one that was not acknowledged in time.

        Args:
            max_message_num: how many, up to 1,000.
            invisible_duration: how long no other caller receives them; then they are received again.

        Raises:
            ConfigurationError: A number is out of range.
            psycopg.Error: PostgreSQL is away. Messages may be leased; they are received again after their time.
        """
        if not 1 <= max_message_num <= MOST_MESSAGES:
            raise ConfigurationError(f"max_message_num: {max_message_num!r}; allowed: 1 to {MOST_MESSAGES}")
        seconds, until = _seconds("invisible_duration", invisible_duration), monotonic() + self._await_s
        began_ns = time_ns()
        while True:
            self._parked.clear()
            paused, topics = self._intake.paused, self._intake.member.subscription
            limits = max_message_num, seconds, self._attempts, self._due
            asked = receive(self._intake.group_id, *limits, now=monotonic(), paused=paused, topics=topics)
            leased, dead = ([], []) if EVERY_TOPIC in paused else self._run(asked)
            for message in dead:
                log.error(
                    "%s is dead: received %d times; next: outbox dlq ls", message.message_id, self._attempts
                )
            if self._decoding is not None:
                leased = [readable for lease in leased if (readable := self._decoded(lease)) is not None]
            left = until - monotonic()
            if leased or left <= 0:
                if leased and self._tracing is not None:
                    messages = [lease.message for lease in leased]
                    self._tracing.received(self._intake.member.group, messages, began_ns)
                return [ReceivedView(lease.message, None, lease=lease) for lease in leased]
            self._intake.ask()
            self._parked.wait(min(left, POLL_S))

    def _decoded(self, lease: ReceivedLease) -> ReceivedLease | None:
        """Return a message with the body that was sent; None: it is acknowledged, or left to the end of its lease.

        If the process dies between any two lines, the lease ends, and the message is received again.
        """
        assert self._decoding is not None  # noqa: S101  (the caller has checked it)
        decoded = self._decoding.decoded
        try:
            message = self._run_on(lambda conn: decoded(conn, lease.message))
        except psycopg.Error:
            raise
        except Exception:
            log.warning("%s cannot be decoded; it is received again", lease.message.message_id, exc_info=True)
            return None
        if message is None:
            self._run(acknowledge(lease))  # False: its lease has ended, and whoever has it now finds the same
            return None
        return lease._replace(message=message)

    @contextmanager
    def processing(self, view: ReceivedView) -> Iterator[None]:
        """Run a block in a span `process TOPIC`, below the trace of its message; without tracing, run it.

        An exception marks the span as failed, and passes.
        """
        if self._tracing is None:
            yield
            return
        with self._tracing.processing(self._intake.member.group, [view.message], is_batch=False):
            yield

    def ack(self, view: ReceivedView, connection: psycopg.Connection[Any] | None = None) -> None:
        """Acknowledge a message: it is done.

        Args:
            view: as it was received.
            connection: in the transaction of its effect, at READ COMMITTED: both are committed, or neither. None: at
                once, and an effect elsewhere may happen again if the process dies before this.

        Raises:
            IsolationLevelError: The transaction is REPEATABLE READ or SERIALIZABLE. Nothing was written; roll back.
            InvalidReceiptError: It was acknowledged, or received again meanwhile; roll its effect back.
            psycopg.errors.LockNotAvailable: Another session has it locked, and no connection was given.
        """
        plan = acknowledge(view.lease)
        self._require(view, self._run(plan) if connection is None else run(connection, plan))

    def change_invisible_duration(self, view: ReceivedView, invisible_duration: timedelta | float) -> None:
        """Let a message be received again after this time from now; 0: at once.

        Raises:
            InvalidReceiptError: It was acknowledged, or received again meanwhile.
        """
        seconds = _seconds("invisible_duration", invisible_duration)
        self._require(view, self._run(change_lease(view.lease, seconds)))

    def close(self) -> None:
        """End; what was received and not acknowledged is received again after its time."""
        self._ends.set()
        if self._feeding.ident is not None:
            self._feeding.join(LIMIT)
        self._intake.consumer.close()
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _require(view: ReceivedView, is_held: bool) -> None:
        if not is_held:
            raise InvalidReceiptError(
                f"message {view.message_id} was acknowledged, received again or became a dead letter since it was "
                f"received for attempt {view.delivery_attempt}; roll back its effect, and do not acknowledge it"
            )

    def _run(self, plan: Plan[T]) -> T:
        return self._run_on(lambda conn: run(conn, plan))

    def _run_on(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do work in a transaction of the consumer's connection, which one thread uses at a time."""
        with self._lock:
            try:
                if self._conn is None:
                    self._conn = self._connect()
                    limit_transactions(self._conn, LIMIT, lock_wait=INTAKE_LOCK_WAIT)
                with self._conn.transaction():
                    return work(self._conn)
            except psycopg.Error:
                self._drop()
                raise

    def _drop(self) -> None:
        if self._conn is not None:
            with suppress(psycopg.Error):
                self._conn.close()
        self._conn = None


class SimpleConsumerBuilder:
    """RocketMQ 5.x's builder of a simple consumer; `build` starts it."""

    def __init__(self, connect: str | Callable[[], Any]) -> None:
        """Begin with the database in which the group has its inbox.

        Args:
            connect: a DSN, or a callable that returns a `psycopg.Connection`.
        """
        self._dsn = connect
        self._settings: dict[str, Any] = {"orderly": False}
        self._await_s, self._attempts = 30.0, 1 + len(DelaySchedule.levels().pauses)
        self._codecs: Codecs | None = None
        self._tracing: Tracing | None = None

    def set_client_configuration(self, configuration: ClientConfiguration) -> Self:
        """State how Kafka is reached."""
        self._settings["kafka"] = configuration.librdkafka
        return self

    def set_consumer_group(self, group: str) -> Self:
        """State the name of the group. Its members are all simple consumers."""
        self._settings["group"] = group
        return self

    def set_subscription_expressions(self, expressions: Mapping[str, FilterExpression]) -> Self:
        """State a filter expression for each topic."""
        self._settings["topics"] = {topic: each.expression for topic, each in expressions.items()}
        return self

    def set_await_duration(self, duration: timedelta | float) -> Self:
        """State how long `receive` waits for a message; 30 s by default."""
        self._await_s = _seconds("await_duration", duration)
        return self

    def set_consume_from(self, begins: ConsumeFrom) -> Self:
        """State where the group begins in a topic that is new to it: FIRST, LAST or `ConsumeFrom.timestamp(…)`."""
        self._settings["consume_from"] = begins
        return self

    def set_fifo(self, fifo: bool) -> Self:
        """State whether messages of one key are received one after the other; RocketMQ reads this from the group."""
        self._settings["orderly"] = fifo
        return self

    def set_max_attempts(self, attempts: int) -> Self:
        """State how often a message is received; then it is dead. 17 by default."""
        if not 1 <= attempts <= 1000:
            raise ConfigurationError(f"max_attempts: {attempts!r}; allowed: 1 to 1000")
        self._attempts = attempts
        return self

    def set_codecs(self, codecs: Mapping[str, Codec] | None) -> Self:
        """State what decodes bodies before they are received, by topic; see `outbox.codecs`.

        Raises:
            ConfigurationError: a topic has no legal name, or something is not a codec.
        """
        self._codecs = codecs_of(codecs)
        return self

    def set_tracing(self, tracing: Tracing | None) -> Self:
        """State what makes a span for each `receive`, and for `processing`; see `outbox.opentelemetry`."""
        self._tracing = tracing
        return self

    def build(self) -> SimpleConsumer:
        """Start the consumer; `close` ends it.

        Raises:
            ConfigurationError: a setting is missing or not allowed.
            SubscriptionConflictError: another member of the group runs with another subscription or kind of order.
            psycopg.Error: the database is away.
        """
        for name, setter in _NEEDED.items():
            if name not in self._settings:
                raise ConfigurationError(f"{name}: is missing; call {setter} before build")
        parked = threading.Event()
        intake = Intake(**self._settings, dsn=self._dsn, parked=parked, batch=MOST_TAKEN, workers=1)
        decoding = None if self._codecs is None else intake.decoding(self._codecs)
        intake.consumer.start()
        return SimpleConsumer(
            intake,
            intake.consumer.connect,
            parked,
            self._await_s,
            self._attempts,
            decoding=decoding,
            tracing=self._tracing,
        ).start()


MOST_TAKEN = 200
"""Messages that are read ahead of who receives them, in one transaction."""
_NEEDED = {
    "kafka": "set_client_configuration",
    "group": "set_consumer_group",
    "topics": "set_subscription_expressions",
    "consume_from": "set_consume_from",
}


def _seconds(name: str, duration: timedelta | float) -> float:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds <= LONGEST_LEASE:
        raise ConfigurationError(f"{name}: {duration!r}; allowed: 0 seconds to 12 hours")
    return float(seconds)
