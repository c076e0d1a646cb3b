"""A member of a consumer group: the public class, which starts and ends the threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, cast

from outbox.codecs.codec import Codec, Codecs
from outbox.errors import ConfigurationError, ConsumerFailedError
from outbox.inbox.ahead_threads import AheadThread
from outbox.inbox.assignments import Assignments, Limits
from outbox.inbox.async_listeners import CANCEL_TIME, awaiting, is_async
from outbox.inbox.batch_threads import BatchThread
from outbox.inbox.batches import Batching, BatchListener, one_by_one
from outbox.inbox.counts import MessageCounts
from outbox.inbox.decoding import Decoding
from outbox.inbox.delays import DelaySchedule
from outbox.inbox.failures import timed_out
from outbox.inbox.handling import Handling, Listener
from outbox.inbox.header_filters import Predicate
from outbox.inbox.keeper import Keeper
from outbox.inbox.listener_loop import ListenerLoop
from outbox.inbox.observing import observe
from outbox.inbox.poller import Poller
from outbox.inbox.repeats import Repeats
from outbox.inbox.retry_threads import RetryThread, SearchRight
from outbox.inbox.server import CurrentServer
from outbox.inbox.sessions import connecting
from outbox.inbox.settings import ConsumerSettings, Subscribed, subscription_of
from outbox.inbox.starts import ConsumeFrom
from outbox.inbox.threads import Connect, DeliveryThread, ListenerThread, Running, Runtime
from outbox.inbox.tracing import traced
from outbox.inbox.vitals import ConsumerVitals
from outbox.tracing import Tracing

log = logging.getLogger("outbox.inbox")
MOST_GIVEN_UP = 5
"""Listeners that never return; with more of them the member ends."""


class PushConsumer:
    """Runs a listener for each message of its topics, and applies the effect of each message once.

        def listener(conn, message):
            conn.execute("UPDATE points SET …")
            return ConsumeResult.SUCCESS

        PushConsumer(
            "points", {"orders": "paid"}, listener, dsn=dsn, kafka={"bootstrap.servers": servers}, consume_from=FIRST
        ).run()

    The listener gets a connection in a transaction that has already recorded the message. It writes, sends by
    `Outbox`, and returns; the consumer commits. It must not commit or roll back itself. Whatever the listener
    does outside of that connection may happen more than once.
    """

    assignments_class: ClassVar[type[Assignments]] = Assignments
    has_retries: ClassVar[bool] = True
    """Whether the member runs its listener for parked messages that are due."""

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str | Subscribed | Predicate],
        listener: Listener | BatchListener | Callable[..., Awaitable[Any]],
        *,
        dsn: str | Connect,
        kafka: Mapping[str, Any],
        consume_from: ConsumeFrom,
        orderly: bool = False,
        batch: int | None = None,
        linger: float = 0.0,
        workers: int = 20,
        retry_workers: int = 4,
        delays: DelaySchedule | None = None,
        timeout: float = 900.0,
        drain: float = 10.0,
        on_gap: Literal["stop", "continue"] = "stop",
        dead_letter_topic: str | None = None,
        limits: Limits | None = None,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Check the settings; nothing is opened yet.

        Args:
            group: the name of the consumer group, in Kafka and in PostgreSQL.
            topics: a tag expression for each topic: `"*"`, or `"paid || sent"`; or a function of the headers that
                returns True or False, or a `HeaderFilter`.
            listener: called with a connection and a message; returns a `ConsumeResult` or a `ReconsumeLater`. An
                `async def` gets a `psycopg.AsyncConnection`.
            dsn: of the database in which the listener writes, or a callable that returns a new `psycopg.Connection`.
            kafka: settings of librdkafka; `bootstrap.servers` at least.
            consume_from: `FIRST`, `LAST` or `ConsumeFrom.timestamp(…)`; used by a group only that is new to a topic.
            orderly: one message of a key at a time, in order; a message that fails holds back the later ones of its
                key, and no others. Otherwise messages are independent.
            batch: how many messages a listener gets at a time, as a list, in one transaction; it returns one result for
                all of them, or a list with one for each. In an orderly group a batch has at most one message of a key.
                Retries are lists of one. None: the listener gets single messages.
            linger: seconds to wait for a batch to be full once there is a message; 0: take what is there.
            workers: how many listeners run at a time. Partitions take turns: a flood of one delays a message of another
                one by as long as the workers need for a message of each partition.
            retry_workers: how many retries run at a time, besides; others wait only while all of these run.
            delays: the pauses before retries, and errors that get none; by default 16 of RocketMQ's levels, from 10 s.
            timeout: seconds after which a listener is given up and its message is parked.
            drain: seconds to wait for running listeners when a partition is given away.
            on_gap: what to do when Kafka has deleted messages that the group has not handled: "stop" reading the
                partition, or "continue" with the oldest one.
            dead_letter_topic: a topic to which a copy of each dead letter of the group is sent through the outbox, in
                the transaction in which it dies; None: nowhere. The member that has started last decides.
            limits: how much may wait in memory for each partition.
            codecs: decode bodies before the listener, by topic; see `outbox.codecs`.
            tracing: runs the listener in a span, below the trace of its message; see `outbox.opentelemetry`.

        Raises:
            ConfigurationError, InvalidSubscriptionError: a setting is not allowed; the text states what is.
        """
        if not callable(listener):
            raise ConfigurationError(
                f"listener: {listener!r}; allowed: a callable of a connection and a message"
            )
        self.settings = ConsumerSettings(
            group,
            subscription_of(topics),
            orderly,
            dict(kafka),
            consume_from,
            workers,
            retry_workers,
            delays or DelaySchedule.levels(),
            timeout,
            drain,
            on_gap,
            limits or Limits(),
            batch,
            linger,
            dead_letter_topic,
        )
        require_connect = getattr(listener, "require_connect", None)
        if require_connect is not None:
            require_connect(dsn)
        self._loop, self._grace = ListenerLoop(), 0.0
        if is_async(listener):
            asynchronous = cast("Callable[..., Awaitable[Any]]", listener)
            listener, self._grace = awaiting(asynchronous, self._loop, timeout), CANCEL_TIME
        self._repeats, self._counts = Repeats(), MessageCounts()
        if codecs is not None:
            decoding = Decoding(Codecs(codecs), list(self.settings.subscription), self._counts)
            is_single = batch is None
            listener = decoding.single(listener) if is_single else decoding.batch(listener)  # type: ignore[arg-type]
        if tracing is not None:
            listener = traced(listener, tracing, group, is_batch=batch is not None)
        self._listener, self._batching = _listening(listener, self.settings)
        self.connect = connecting(dsn, group)
        """Opens a connection to the database."""
        self._assignments = self.assignments_class(orderly=orderly, limits=self.settings.limits)
        self._server = CurrentServer()
        self._keeper = Keeper(self.settings, self.connect, self._assignments, self._server)
        self._keeper.watch, self._keeper.refused = self._watch, self.stop
        self._poller: Poller | None = None
        self._stops = threading.Event()
        self._threads: list[ListenerThread] = []
        self._changing, self._is_ending = threading.Lock(), False
        """The keeper replaces threads; nothing is replaced once the member ends."""
        self._search_right = SearchRight()
        self._lost: list[ListenerThread] = []
        """Threads that were given up and whose listeners have not returned."""
        self._failure: str | None = None
        self._runtime: Runtime | None = None
        self._own: threading.Thread | None = None
        self._begun = threading.Event()
        """Set once the member is registered, or has ended before."""
        self._error: BaseException | None = None

    def run(self) -> None:
        """Consume until `stop` is called from another thread, or from a signal handler; then end cleanly.

        Raises:
            InvalidSubscriptionError: The topics are registered with several types.
            SubscriptionConflictError: Another member of the group runs with another subscription or kind of listener.
            ConsumerFailedError: Kafka refuses the member, too many listeners never returned, the group is bound to a
                role of others, or another server of PostgreSQL took over that knows the group by another number.
        """
        settings = self.settings
        group = self._register()
        how = Handling(
            group,
            self._listener,
            settings.delays,
            settings.subscription,
            self._counts,
            settings.member,
            self._keeper.count_run,
            self._assignments.full_keys,
            self._assignments.pauses,
        )
        self._runtime = Runtime(how, self.connect, settings.timeout + self._grace, self._server)
        self._poller = Poller(settings, self._assignments, self._keeper)
        self._begun.set()
        if self._stops.is_set():
            self._poller.stop()
        for number in range(settings.workers):
            self._start(self._delivery_thread(number))
        for number in range(settings.retry_workers if self.has_retries else 0):
            self._start(self._retry_thread(number))
        self._keeper.start()
        try:
            self._poller.run()
        finally:
            self._end()
        if self._keeper.refusal is not None:
            raise self._keeper.refusal
        if self._failure is not None:
            raise ConsumerFailedError(f"{self._failure}; end the process to stop them")

    def vitals(self) -> ConsumerVitals:
        """Return how this member stands, as it noted it; no server is asked. Any thread may call this."""
        return observe(
            self.settings,
            self._counts,
            self._assignments,
            self._keeper,
            self._poller,
            given_up=sum(thread.is_alive() for thread in self._lost),
            is_ending=self._is_ending,
            error=self._error or self._keeper.refusal,
        )

    def stop(self) -> None:
        """Ask the consumer to end: running listeners are waited for, offsets are stored, the group is left."""
        self._stops.set()
        if self._poller is not None:
            self._poller.stop()

    def start(self) -> Self:
        """Register the member, and consume in threads of its own; `close` ends it.

        Raises:
            InvalidSubscriptionError: The topics are registered with several types.
            SubscriptionConflictError: Another member of the group runs with another subscription or kind of listener.
            psycopg.Error: PostgreSQL is away, or refuses the user.
        """
        if self._own is not None:
            raise ConfigurationError(f"consumer of group {self.settings.group!r}: it was started already")
        self._own = threading.Thread(target=self._run_kept, name="outbox-consumer", daemon=True)
        self._own.start()
        self._begun.wait()
        if self._error is not None:
            raise self._error
        return self

    def close(self) -> None:
        """Stop what `start` started, wait for its end, and raise what ended it."""
        self.stop()
        if self._own is not None:
            self._own.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self.start() if self._own is None else self  # what a builder returns was started

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_kept(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            if self._begun.is_set():
                log.exception("the consumer of group %s ended", self.settings.group)
        finally:
            self._begun.set()

    def _register(self) -> int:
        try:
            return self._keeper.register()
        except BaseException:
            self._keeper.close()
            raise

    def _start(self, thread: ListenerThread) -> None:
        self._threads.append(thread)
        thread.start()

    def _delivery_thread(self, number: int) -> DeliveryThread:
        name, runtime = f"outbox-listener-{number}", self._running()
        if self._batching is not None:
            return BatchThread(name, runtime, self._assignments, self._batching)
        return AheadThread(name, runtime, self._assignments)

    def _retry_thread(self, number: int) -> RetryThread:
        return RetryThread(f"outbox-retry-{number}", self._running(), self._search_right)

    def _running(self) -> Runtime:
        assert self._runtime is not None  # noqa: S101  (set before any thread is made)
        return self._runtime

    def _watch(self) -> list[int]:
        """Replace threads that ended, and those whose listeners run past their time-out; return the latters' sessions.

        A thread that is given up stays in its place until another one has started, which inherits its work: the system
        may refuse to start one for now. It is tried again at the next call.

        At the end of the member nothing is replaced: what still runs comes again after the next assignment.
        """
        sessions = []
        with self._changing:
            for place, thread in enumerate(self._threads):
                running = thread.give_up()
                if running is not None:
                    if running.server == self._server.accepted:  # else the number is of another session there
                        sessions.append(running.backend)
                    self._note_lost(thread, running)
                elif thread.is_alive() and not thread.given_up:
                    continue
                if not self._is_ending and self._failure is None:
                    self._replace(place, thread)
        return sessions

    def _replace(self, place: int, lost: ListenerThread) -> None:
        replacement = self._replacement(place, lost)
        try:
            replacement.start()
        except RuntimeError as error:
            level = self._repeats.level("start")
            log.log(level, "a thread of the consumer is not replaced yet: %s; trying again", error)
        else:
            self._threads[place] = replacement

    def _note_lost(self, thread: ListenerThread, running: Running) -> None:
        # Those whose session ended have returned, and hold nothing any more.
        self._lost = [*(lost for lost in self._lost if lost.is_alive()), thread]
        log.error(
            "the listener of %s has run for more than %g s and is given up",
            running.delivery.message.message_id,
            self.settings.timeout,
        )
        if len(self._lost) > MOST_GIVEN_UP:
            self._failure = f"group {self.settings.group!r}: {len(self._lost)} listeners never returned"
            self.stop()

    def _replacement(self, number: int, lost: ListenerThread) -> ListenerThread:
        if isinstance(lost, DeliveryThread):
            delivery = self._delivery_thread(number)
            delivery.take_over(lost, timed_out(self.settings.timeout) if lost.given_up else None)
            return delivery
        retry = self._retry_thread(number)
        if isinstance(lost, RetryThread):
            retry.left = lost.current if lost.given_up else lost.left
        return retry

    def _end(self) -> None:
        with self._changing:
            self._is_ending = True
            self._assignments.end()
            for thread in self._threads:
                thread.end()
        # For all of them together: their messages may be another member's by now.
        until = monotonic() + self.settings.drain
        for thread in self._threads:
            if not thread.given_up:
                thread.join(max(0.0, until - monotonic()))
        self._loop.close(self.settings.drain)
        self._keeper.end()
        self._keeper.join(self.settings.drain)


def _listening(listener: Callable[..., Any], settings: ConsumerSettings) -> tuple[Listener, Batching | None]:
    """Return what gets single messages, such as retries, and what gets batches."""
    if settings.batch is None:
        return cast("Listener", listener), None
    batches = cast("BatchListener", listener)
    return one_by_one(batches), Batching(batches, settings.batch, settings.linger)
