"""A member of a consumer group: the public class, which starts and ends the threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Self, cast

from outbox.codecs.codec import Codec, Codecs
from outbox.errors import ConfigurationError, ConsumerFailedError
from outbox.inbox.assignments import Assignments
from outbox.inbox.async_listeners import CANCEL_TIME, awaiting, is_async
from outbox.inbox.batches import Batching, BatchListener, one_by_one
from outbox.inbox.decoding import Decoding
from outbox.inbox.handling import Handling, Listener
from outbox.inbox.header_filters import Predicate
from outbox.inbox.keeper import Keeper
from outbox.inbox.listener_loop import ListenerLoop
from outbox.inbox.observing import observe
from outbox.inbox.poller import Poller
from outbox.inbox.seats import Seats
from outbox.inbox.server import CurrentServer
from outbox.inbox.sessions import connecting
from outbox.inbox.settings import ConsumerSettings, Member, Subscribed, subscription_of
from outbox.inbox.threads import Runtime
from outbox.inbox.tracing import traced
from outbox.inbox.vitals import ConsumerVitals
from outbox.tracing import Tracing

log = logging.getLogger("outbox.inbox")


class PushConsumer:
    """Runs a listener for each message of its topics, and applies the effect of each message once.

        def listener(conn, message):
            conn.execute("UPDATE points SET …")
            return ConsumeResult.SUCCESS

        settings = ConsumerSettings(dsn=dsn, kafka={"bootstrap.servers": servers}, consume_from=FIRST)
        PushConsumer("points", {"orders": "paid"}, listener, settings).run()

    The listener gets a connection in a transaction that has already recorded the message. It writes, sends by
    `Outbox`, and returns; the consumer commits. It must not commit or roll back itself. Whatever the listener
    does outside of that connection may happen more than once.
    """

    has_retries: ClassVar[bool] = True
    """Whether the member runs its listener for parked messages that are due."""
    is_on_demand: ClassVar[bool] = False
    """Whether messages are taken only when they are asked for."""

    def __init__(
        self,
        group: str,
        topics: Mapping[str, str | Subscribed | Predicate],
        listener: Listener | BatchListener | Callable[..., Awaitable[Any]],
        settings: ConsumerSettings | None = None,
        *,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
        **options: Any,
    ) -> None:
        """Check the settings; nothing is opened yet.

        Args:
            group: the name of the consumer group, in Kafka and in PostgreSQL.
            topics: a tag expression for each topic: `"*"`, or `"paid || sent"`; or a function of the headers that
                returns True or False, or a `HeaderFilter`.
            listener: called with a connection and a message; returns a `ConsumeResult` or a `ReconsumeLater`. An
                `async def` gets a `psycopg.AsyncConnection`.
            settings: how to consume; None: `options` state it.
            codecs: decode bodies before the listener, by topic; see `outbox.codecs`.
            tracing: runs the listener in a span, below the trace of its message; see `outbox.opentelemetry`.
            options: the fields of `ConsumerSettings` as keywords: those that differ from `settings`, or all.

        Raises:
            ConfigurationError, InvalidSubscriptionError: a setting is not allowed; the text states what is.
        """
        if not callable(listener):
            raise ConfigurationError(
                f"listener: {listener!r}; allowed: a callable of a connection and a message"
            )
        settings = ConsumerSettings.of(**options) if settings is None else replace(settings, **options)
        self.member = Member(group, subscription_of(topics), settings)
        require_connect = getattr(listener, "require_connect", None)
        if require_connect is not None:
            require_connect(settings.dsn)
        self._loop, self._timeout = ListenerLoop(), settings.timeout
        if is_async(listener):
            asynchronous = cast("Callable[..., Awaitable[Any]]", listener)
            listener = awaiting(asynchronous, self._loop, settings.timeout)
            self._timeout += CANCEL_TIME
        self.connect = connecting(settings.dsn, group)
        """Opens a connection to the database."""
        self._assignments = Assignments(
            orderly=settings.orderly, limits=settings.limits, is_on_demand=self.is_on_demand
        )
        self._keeper = Keeper(self.member, self.connect, self._assignments, CurrentServer())
        with self._assignments as partitions:
            self._how = Handling(
                0,
                cast("Listener", listener),
                settings.delays,
                self.member.subscription,
                member=self.member.name,
                count_run=self._keeper.count_run,
                require_room=self._assignments.require_room,
                pauses=partitions.pauses,
            )
        is_batch = settings.batch is not None
        if codecs is not None:
            decoding = Decoding(Codecs(codecs), list(self.member.subscription), self._how.counts)
            listener = decoding.batch(listener) if is_batch else decoding.single(listener)  # type: ignore[arg-type]
        if tracing is not None:
            listener = traced(listener, tracing, group, is_batch=is_batch)
        batching = None
        if settings.batch is not None:
            batches = cast("BatchListener", listener)
            listener, batching = one_by_one(batches), Batching(batches, settings.batch, settings.linger)
        self._how = replace(self._how, listener=cast("Listener", listener))
        self._seats = Seats(group, batching, self.stop)
        self._keeper.watch, self._keeper.refused = self._seats.watch, self.stop
        self._poller: Poller | None = None
        self._stops = threading.Event()
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
        settings, keeper = self.member.settings, self._keeper
        try:
            how = replace(self._how, group=keeper.register())
        except BaseException:
            keeper.session.drop()
            raise
        self._poller = Poller(self.member, self._assignments, keeper)
        self._begun.set()
        if self._stops.is_set():
            self._poller.stop()
        runtime = Runtime(how, self.connect, self._timeout, keeper.session.server, self._assignments)
        self._seats.start(runtime, settings.workers, settings.retry_workers if self.has_retries else 0)
        keeper.start()
        try:
            self._poller.run()
        finally:
            self._assignments.end()
            self._seats.end(settings.drain)
            self._loop.close(settings.drain)
            keeper.end()
            keeper.join(settings.drain)
        if keeper.refusal is not None:
            raise keeper.refusal
        if self._seats.failure is not None:
            raise ConsumerFailedError(f"{self._seats.failure}; end the process to stop them")

    def vitals(self) -> ConsumerVitals:
        """Return how this member stands, as it noted it; no server is asked. Any thread may call this."""
        return observe(
            self.member,
            self._how.counts,
            self._assignments,
            self._keeper,
            self._poller,
            given_up=self._seats.given_up,
            is_ending=self._seats.is_ending,
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
            raise ConfigurationError(f"consumer of group {self.member.group!r}: it was started already")
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
                log.exception("the consumer of group %s ended", self.member.group)
        finally:
            self._begun.set()
