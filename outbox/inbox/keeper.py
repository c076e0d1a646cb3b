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
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn, TypeVar

import psycopg

from outbox.backoff import Backoff
from outbox.drivers.psycopg_sync import run
from outbox.errors import ConsumerFailedError, OutboxError, SubscriptionConflictError
from outbox.inbox import membership
from outbox.inbox.assignments import Assignments, StoredOffset
from outbox.inbox.failures import LockedError
from outbox.inbox.messages import Delivery
from outbox.inbox.opening_plans import open_partitions
from outbox.inbox.openings import Flush, Opened, Opening, Restarted, RunBegins, Standing, Unanswered
from outbox.inbox.pauses import Pauses, read_pauses
from outbox.inbox.repeats import Repeats
from outbox.inbox.server import CurrentServer, OtherServerError, Server, identify_server
from outbox.inbox.sessions import limit_transactions
from outbox.inbox.settings import ConsumerSettings
from outbox.inbox.threads import FIRST_PAUSE, LAST_PAUSE, Connect
from outbox.sessions import make_own
from outbox.statements import Plan

T = TypeVar("T")
log = logging.getLogger("outbox.inbox")
TICK = 1.0
RENEWAL = 10.0
UPKEEP = 3600.0
COUNT_TIME = 5.0
"""Seconds that a run waits until it is counted."""
LIMIT = 15.0
"""Seconds after which PostgreSQL ends a transaction of the keeper, which holds the row of its group."""


class ServerChangedError(Exception):
    """Ends what the keeper was about to do for another server."""


class Keeper(threading.Thread):
    """Keeps the books of one member, on one connection."""

    def __init__(
        self,
        settings: ConsumerSettings,
        connect: Connect,
        assignments: Assignments,
        server: CurrentServer,
    ) -> None:
        """Prepare the thread.

        Args:
            settings: of the member.
            connect: opens a connection.
            assignments: whose offsets are stored.
            server: that the member works with.
        """
        super().__init__(name="outbox-consumer-keeper", daemon=True)
        self._settings, self._connect, self._assignments = settings, connect, assignments
        self._server = server
        self.watch: Callable[[], Sequence[int]] = list
        """Called every second; returns the sessions of listeners that were given up."""
        self.refused: Callable[[], None] = self.end
        """Called when the member may not go on; see `refusal`."""
        self._conn: psycopg.Connection[Any] | None = None
        self._requests: queue.Queue[Opening | Flush | RunBegins | None] = queue.Queue()
        self._openings: list[Opening] = []
        self._to_end: list[int] = []
        self._ends = threading.Event()
        self._is_idle = True
        """Whether the member was listed without partitions."""
        self._pauses, self._repeats = Backoff(FIRST_PAUSE, LAST_PAUSE), Repeats()
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
        self.group = 0
        """The number of the group, once the member is registered."""

    def register(self) -> int:
        """Register the member, before the thread is started.

        Raises:
            InvalidSubscriptionError: The topics are registered with several types.
            SubscriptionConflictError: A member that runs differs.
            ConfigurationError: No copy could be sent to the dead letter topic.
            ConsumerFailedError: The group is bound to a role that the user is not a member of.
        """
        self._conn, server = self._led_to()
        self._server.accept(server)
        self._run(membership.require_one_type(self._settings.group, list(self._settings.subscription)))
        topic = self._settings.dead_letter_topic
        if topic is not None:
            self._run(membership.require_copies(topic))
        self.group = self._run(self._registration())
        self._run(membership.copy_to(self.group, topic))
        self._read_group()
        self._renewed = monotonic()
        return self.group

    def _registration(self) -> Plan[int]:
        settings = self._settings
        return membership.register(
            settings.group,
            settings.member,
            settings.subscription_json,
            orderly=settings.orderly,
            partitions=self._assignments.count,
            full_keys=self._assignments.full_keys.count,
        )

    def _read_group(self) -> None:
        """Read what the member needs to know of its group: what is paused, and how much waits behind held keys."""
        keys, pauses = self._assignments.full_keys, self._assignments.pauses
        if (found := self._run(read_pauses(self.group))) != pauses.topics:
            log.warning(
                "group %s: paused by topic, '' is all: %s", self._settings.group, found or "none any more"
            )
            pauses.topics = found
            self.results.put(pauses)
        keys.begin_count()
        keys.counted(self._run(membership.count_behind(self.group, keys)))

    def _storing(self, offsets: Sequence[StoredOffset]) -> Plan[None]:
        """Store offsets, of a member that is listed only.

        A member that stood still for a minute may have skipped what members with another subscription handle. It is
        registered again first, and refused if there are any. If it stands still after this check, PostgreSQL ends its
        transaction (see LIMIT) before members that differ can join.
        """
        yield from self._listed()
        yield from membership.store(self.group, offsets)

    def _listed(self) -> Plan[None]:
        """Register the member again, unless it is listed."""
        if not (yield from membership.is_listed(self.group, self._settings.member)):
            yield from self._again()

    def _again(self) -> Plan[None]:
        """Register the member again; raise if its group was deleted meanwhile."""
        membership.require_same(self._settings.group, self.group, (yield from self._registration()))

    def ask(self, request: Opening | Flush | RunBegins) -> None:
        """Hand a request over; what comes of an opening is put into `results`."""
        self._requests.put(request)

    def flush(self, offsets: Sequence[StoredOffset], seconds: float) -> bool:
        """Store offsets now; return whether they are stored. It gives up after this time."""
        if not offsets:
            return True
        if self.refusal is not None:
            return False
        request = Flush(offsets)
        self.ask(request)
        request.finished.wait(seconds)
        return request.succeeded

    def count_run(self, delivery: Delivery, is_retry: bool) -> int:
        """Count durably that a message, or a retry, is run; return in how many processes its run has begun.

        Raises:
            LockedError: It was not counted within a few seconds.
        """
        request = RunBegins(delivery, is_retry)
        self.ask(request)
        request.finished.wait(COUNT_TIME)
        if request.runs is None:
            raise LockedError("its run cannot be counted now")
        return request.runs

    def end(self) -> None:
        """Ask the thread to end."""
        self._ends.set()
        self._requests.put(None)

    def run(self) -> None:
        """Keep the books until the end is asked for, however long PostgreSQL is away."""
        while not self._ends.is_set():
            try:
                self.run_once()
                self._pauses.reset()
                self.kept_at, self.trouble = monotonic(), None
            except ServerChangedError:
                continue
            except (SubscriptionConflictError, ConsumerFailedError) as error:
                self._refuse(error)
            except psycopg.Error as error:
                self.trouble = type(error).__name__
                self._drop()
                seconds = self._pauses.next()
                log.log(
                    self._repeats.level(type(error).__name__),
                    "group %s stores no positions until PostgreSQL is back: %s",
                    self._settings.group,
                    error,
                )
                self._ends.wait(min(seconds, 5.0))
            except Exception:
                log.exception("the books of the consumer")
                self._drop()
                self._ends.wait(LAST_PAUSE)
        self._leave()

    def run_once(self) -> None:
        """Wait for a request or the next second, and do what is due."""
        self._receive(max(0.0, self._ticked + TICK - monotonic()))
        if self._server.doubted.is_set():
            self._drop()
            self._connection()
            self._server.doubted.clear()
        while self._openings:
            self.results.put(self._open(self._openings[0]))
            del self._openings[0]
        if monotonic() - self._ticked >= TICK:
            self._ticked = monotonic()
            self._tick()

    def _receive(self, seconds: float) -> None:
        try:
            request = self._requests.get(timeout=0.0 if self._openings else seconds)
        except queue.Empty:
            return
        if isinstance(request, Opening):
            self._openings.append(request)
        elif isinstance(request, RunBegins):
            try:
                member = self._settings.member
                plan = membership.count_run(self.group, request.delivery, member, is_retry=request.is_retry)
                request.runs = self._run(plan)
            finally:
                request.finished.set()
        elif isinstance(request, Flush):
            try:
                self._connection()
                # Offsets of another server would pass what this one lacks.
                if all(each.server == self._assignments.server for each in request.offsets):
                    self._run(self._storing(request.offsets))
                    self._run(membership.release(self.group, self._settings.member, request.offsets))
                    request.succeeded = True
            finally:
                request.finished.set()

    def _tick(self) -> None:
        self._to_end.extend(self.watch())
        while self._to_end:
            try:
                self._run(membership.end_session(self._to_end[0]))
            except psycopg.errors.InsufficientPrivilege as error:
                # Of another role: the listener's connection is a callable's, or its session has ended by itself.
                log.warning("the session of a listener that was given up cannot be ended: %s", error)
            del self._to_end[0]
        if offsets := self._assignments.offsets():
            self._run(self._storing(offsets))
            self._assignments.stored(offsets)
            self.results.put(offsets)
        is_idle = not self._assignments.count
        if is_idle != self._is_idle or monotonic() - self._renewed >= RENEWAL:
            self._is_idle, self._renewed = is_idle, monotonic()
            self._run(self._again())
            self._read_group()
        if monotonic() - self._kept >= UPKEEP:
            self._run(membership.ensure_ahead())
            self._server.days.clear()  # an operator may have dropped one
            self._kept = monotonic()

    def _open(self, opening: Opening) -> Opened | Unanswered:
        result = self._run(self._opening(opening))
        if isinstance(result, Opened):
            for part in result.starts:
                self._assignments.suspects.watch(opening.topic, part, result.suspects.get(part))
        return result

    def _opening(self, opening: Opening) -> Plan[Opened | Unanswered]:
        settings, server = self._settings, self._assignments.server
        yield from self._listed()
        return (yield from open_partitions(self.group, settings.group, settings.member, opening, server))

    def _run(self, plan: Plan[T]) -> T:
        """Run a plan in a transaction of its own, on the server that is accepted.

        Raises:
            OtherServerError: a dump was read in under the session; the next connection finds another server.
        """
        conn = self._connection()
        with conn.transaction():
            found = identify_server(conn)
            if found == self._server.accepted:
                return run(conn, plan)
        self._drop()
        raise OtherServerError(f"the session leads to {found} now, and led to {self._server.accepted}")

    def _connection(self) -> psycopg.Connection[Any]:
        """Return the connection, or a new one.

        Raises:
            ServerChangedError: The new one leads to another server; all partitions are closed.
        """
        if self._conn is None or self._conn.closed:
            conn, server = self._led_to()
            if server == self._server.accepted:
                self._conn = conn
            else:
                self._take_over(conn, server)
        assert self._conn is not None  # noqa: S101  (or `_take_over` has raised)
        return self._conn

    def _led_to(self) -> tuple[psycopg.Connection[Any], Server]:
        """Connect; return the connection and the server that it leads to."""
        conn = self._connect()
        try:
            make_own(conn)
            limit_transactions(conn, LIMIT)
            with conn.transaction():
                return conn, identify_server(conn)
        except BaseException:
            conn.close()
            raise

    def _take_over(self, conn: psycopg.Connection[Any], server: Server) -> NoReturn:
        """Go on with another server; see `server` for the order."""
        before = self._server.accepted
        try:
            with conn.transaction():
                group = run(conn, self._registration())
        except BaseException:
            conn.close()
            raise
        self._conn = conn
        if group != self.group:
            raise ConsumerFailedError(
                f"group {self._settings.group!r}: it has number {group} on {server}, and had {self.group} on {before}, "
                "so rows of this member would be another group's; start the member again"
            )
        self._renewed, self._kept = 0.0, -UPKEEP
        self._to_end.clear()  # sessions of the other server
        self._assignments.restart()
        self._server.accept(server)
        self.results.put(Restarted())
        log.warning(
            "group %s: %s took over from %s; all partitions are read again from the positions that it has",
            self._settings.group,
            server,
            before,
        )
        raise ServerChangedError

    def _refuse(self, error: OutboxError) -> None:
        """End the member."""
        log.error("the member has to end: %s", error)
        self.refusal = error
        self._ends.set()
        with suppress(queue.Empty):
            while True:
                if isinstance(request := self._requests.get_nowait(), Flush | RunBegins):
                    request.finished.set()
        self.refused()

    def close(self) -> None:
        """Close the connection, of a thread that does not run."""
        self._drop()

    def _drop(self) -> None:
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _leave(self) -> None:
        try:
            self._run(membership.release(self.group, self._settings.member))
            self._run(membership.leave(self.group, self._settings.member))
        except (psycopg.Error, OutboxError, ServerChangedError) as error:
            log.debug("the member stays listed for a minute: %s", error)
        self._drop()
