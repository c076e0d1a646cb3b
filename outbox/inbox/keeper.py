"""The thread that keeps a member's books at PostgreSQL: positions, membership, partitions of the inbox.

The thread that polls Kafka never waits for PostgreSQL: it asks this one, and is handed the results. Offsets go
to PostgreSQL first, and then to Kafka, so Kafka's are never ahead of the database.

If the process dies between both, Kafka's offset is behind: messages come again, and the inbox refuses them. If
it dies before both, the same, with more of them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import psycopg

from outbox.errors import ConsumerFailedError, OutboxError, SubscriptionConflictError
from outbox.inbox import membership
from outbox.inbox.assignments import Assignments
from outbox.inbox.core.openings import Opened, Opening, Question, Restarted, Standing, Unanswered
from outbox.inbox.core.partitions import Pauses, StoredOffset
from outbox.inbox.failures import LockedError
from outbox.inbox.keeper_session import KeeperSession, ServerChangedError
from outbox.inbox.messages import Delivery
from outbox.inbox.pauses import read_pauses
from outbox.inbox.server import CurrentServer
from outbox.inbox.settings import Connect, Member
from outbox.inbox.threads import LAST_PAUSE
from outbox.statements import Plan

T = TypeVar("T")
log = logging.getLogger("outbox.inbox")
TICK = 1.0
RENEWAL = 10.0
UPKEEP = 3600.0
COUNT_TIME = 5.0
"""Seconds that a run waits until it is counted."""


class Keeper(threading.Thread):
    """Keeps the books of one member, on one connection."""

    def __init__(
        self, member: Member, connect: Connect, assignments: Assignments, server: CurrentServer
    ) -> None:
        """Prepare the thread.

        Args:
            member: of a group.
            connect: opens a connection.
            assignments: whose offsets are stored.
            server: that the member works with.
        """
        super().__init__(name="outbox-consumer-keeper", daemon=True)
        self._member, self._assignments = member, assignments
        self.session = KeeperSession(member, connect, assignments, server)
        self.watch: Callable[[], Sequence[int]] = list
        """Called every second; returns the sessions of listeners that were given up."""
        self.refused: Callable[[], None] = self.end
        """Called when the member may not go on; see `refusal`."""
        self._requests: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue()
        self._to_end: list[int] = []
        self._ends = threading.Event()
        self._ticked, self._renewed, self._kept = 0.0, 0.0, -UPKEEP
        self.results: queue.SimpleQueue[
            Opened | Unanswered | Restarted | Standing | Pauses | list[StoredOffset]
        ] = queue.SimpleQueue()
        """For the thread that polls: what came of questions, and offsets that may be committed to Kafka now."""
        self.refusal: OutboxError | None = None
        """Why the member may not go on."""
        self.kept_at = monotonic()
        self.trouble: str | None = None
        """When the books were kept, and what keeps them from it: the name of an error of PostgreSQL."""

    def register(self) -> int:
        """Register the member, before the thread is started; return the number of its group.

        Raises:
            InvalidSubscriptionError: The topics are registered with several types.
            SubscriptionConflictError: A member that runs differs.
            ConfigurationError: No copy could be sent to the dead letter topic.
            ConsumerFailedError: The group is bound to a role that the user is not a member of.
        """
        session, topic = self.session, self._member.settings.dead_letter_topic
        session.begin()
        session.run(membership.require_one_type(self._member.group, list(self._member.subscription)))
        if topic is not None:
            session.run(membership.require_copies(topic))
        session.group = session.run(session.registration())
        session.run(membership.copy_to(session.group, topic))
        self._read_group()
        self._renewed = monotonic()
        return session.group

    def _read_group(self) -> None:
        """Read what the member needs to know of its group: what is paused, and how much waits behind held keys."""
        found = self.session.run(read_pauses(self.session.group))
        with self._assignments as partitions:
            keys, pauses = partitions.full_keys, partitions.pauses
            is_new = found != pauses.topics
            pauses.topics = found
            keys.begin_count()
        if is_new:
            log.warning(
                "group %s: paused by topic, '' is all: %s", self._member.group, found or "none any more"
            )
            self.results.put(pauses)
        count = self.session.run(membership.count_behind(self.session.group, keys.per_key, keys.per_group))
        with self._assignments:
            keys.counted(count)

    def ask(self, opening: Opening) -> None:
        """Ask where PostgreSQL lets partitions begin; what comes of that is put into `results`."""
        self._request(lambda: self._open(opening))

    def _request(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._requests.put((future, call))
        return future

    def flush(self, offsets: Sequence[StoredOffset], seconds: float) -> bool:
        """Store offsets now; return whether they are stored. It gives up after this time."""
        if not offsets:
            return True
        if self.refusal is not None:
            return False
        with suppress(Exception):  # the thread reports it
            return self._request(lambda: self._flush(offsets)).result(seconds)
        return False

    def count_run(self, delivery: Delivery, is_retry: bool) -> int:
        """Count durably that a message, or a retry, is run; return in how many processes its run has begun.

        Raises:
            LockedError: It was not counted within a few seconds.
        """

        def count() -> int:
            plan = membership.count_run(self.session.group, delivery, self._member.name, is_retry=is_retry)
            return self.session.run(plan)

        try:
            return self._request(count).result(COUNT_TIME)
        except Exception as error:
            raise LockedError("its run cannot be counted now") from error

    def end(self) -> None:
        """Ask the thread to end."""
        self._ends.set()
        self._requests.put(None)

    def run(self) -> None:
        """Keep the books until the end is asked for, however long PostgreSQL is away."""
        while not self._ends.is_set():
            try:
                self.run_once()
                self.session.succeeded()
                self.kept_at, self.trouble = monotonic(), None
            except ServerChangedError:
                self._renewed, self._kept = 0.0, -UPKEEP
                self._to_end.clear()  # sessions of the other server
                self.results.put(Restarted())
            except (SubscriptionConflictError, ConsumerFailedError) as error:
                self._refuse(error)
            except psycopg.Error as error:
                self.trouble = type(error).__name__
                self._ends.wait(self.session.pause(error))
            except Exception:
                log.exception("the books of the consumer")
                self.session.drop()
                self._ends.wait(LAST_PAUSE)
        self._leave()

    def run_once(self) -> None:
        """Wait for a request or the next second, and do what is due."""
        with suppress(queue.Empty):
            self._answer(self._requests.get(timeout=max(0.0, self._ticked + TICK - monotonic())))
        if self.session.server.doubted.is_set():
            self.session.drop()
            self.session.open()
            self.session.server.doubted.clear()
        if monotonic() - self._ticked >= TICK:
            self._ticked = monotonic()
            self._tick()

    def _answer(self, request: tuple[Future[Any], Callable[[], Any]] | None) -> None:
        if request is None:
            return
        future, call = request
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            raise
        future.set_result(result)

    def _flush(self, offsets: Sequence[StoredOffset]) -> bool:
        """Store offsets of partitions that are given away; False: they are another server's, which has more."""
        self.session.open()
        with self._assignments as partitions:
            server = partitions.server
        if any(each.server != server for each in offsets):
            return False
        self.session.run(self._storing(offsets))
        self.session.run(membership.release(self.session.group, self._member.name, offsets))
        return True

    def _storing(self, offsets: Sequence[StoredOffset]) -> Plan[None]:
        yield from self.session.listed()
        yield from membership.store(self.session.group, offsets)

    def _tick(self) -> None:
        session = self.session
        self._to_end.extend(self.watch())
        while self._to_end:
            try:
                session.run(membership.end_session(self._to_end[0]))
            except psycopg.errors.InsufficientPrivilege as error:
                # Of another role: the listener's connection is a callable's, or its session has ended by itself.
                log.warning("the session of a listener that was given up cannot be ended: %s", error)
            del self._to_end[0]
        with self._assignments as partitions:
            offsets, is_idle = partitions.offsets(), not partitions.places
        if offsets:
            session.run(self._storing(offsets))
            with self._assignments as partitions:
                partitions.stored(offsets)
            self.results.put(offsets)
        if is_idle == bool(session.stated) or monotonic() - self._renewed >= RENEWAL:
            self._renewed = monotonic()
            session.run(session.again())
            self._read_group()
        if monotonic() - self._kept >= UPKEEP:
            session.run(membership.ensure_ahead())
            session.server.days.clear()  # an operator may have dropped one
            self._kept = monotonic()

    def _open(self, opening: Opening) -> None:
        try:
            result = self.session.run(self._opening(opening))
        except Exception as error:
            asked = Question(opening.topic, tuple(opening.known), opening.ticket)
            self.results.put(Unanswered([asked], f"PostgreSQL: {type(error).__name__} {error}"))
            raise
        if isinstance(result, Opened):
            with self._assignments as partitions:
                for part in result.starts:
                    partitions.suspects.watch(opening.topic, part, result.suspects.get(part))
        self.results.put(result)

    def _opening(self, opening: Opening) -> Plan[Opened | Unanswered]:
        with self._assignments as partitions:
            server = partitions.server
        yield from self.session.listed()
        group, member = self.session.group, self._member
        return (yield from membership.open_partitions(group, member.group, member.name, opening, server))

    def _refuse(self, error: OutboxError) -> None:
        """End the member."""
        log.error("the member has to end: %s", error)
        self.refusal = error
        self._ends.set()
        with suppress(queue.Empty):
            while True:
                if (request := self._requests.get_nowait()) is not None:
                    request[0].cancel()
        self.refused()

    def _leave(self) -> None:
        try:
            self.session.run(membership.release(self.session.group, self._member.name))
            self.session.run(membership.leave(self.session.group, self._member.name))
        except (psycopg.Error, OutboxError, ServerChangedError) as error:
            log.debug("the member stays listed for a minute: %s", error)
        self.session.drop()
