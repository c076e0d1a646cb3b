"""The threads that run listeners, and the one for messages as they are delivered; `retry_threads` has the other.

Each has one connection, and takes a message when it has it. If PostgreSQL ends a transaction, the thread keeps its
message, pauses and tries again; if it cannot connect, it gives the message back in front of its key, because others
may be connected. No attempt is counted, and the order of the key is kept. If another session has the row or the key of
a message locked, such as that of a member that stands still, its key waits, and the thread takes one of another key. A
listener that runs past its time-out cannot be stopped from outside; its session at PostgreSQL is ended, its thread is
given up, and another thread takes its place and parks the message.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

import psycopg

from outbox.backoff import Backoff
from outbox.drivers.psycopg_sync import run
from outbox.errors import error_name
from outbox.inbox import membership
from outbox.inbox.assignments import Assignments
from outbox.inbox.failures import (
    Failure,
    InterruptedListenerError,
    LockedError,
    UnconnectedError,
    interrupted,
    is_infrastructure,
    reported,
)
from outbox.inbox.followers import fitting, park_followers
from outbox.inbox.handling import (
    Connection,
    Handled,
    Handling,
    ListenerFailedError,
    handle,
    park,
)
from outbox.inbox.messages import Attempt, Delivery
from outbox.inbox.repeats import Repeats
from outbox.inbox.round_trips import check_and_commit
from outbox.inbox.runs import count_delivery
from outbox.inbox.server import CurrentServer, Server
from outbox.inbox.sessions import LOCK_WAIT, limit_transactions, locked_by_others
from outbox.inbox.work import Work

Connect = Callable[[], Connection]
log = logging.getLogger("outbox.inbox")
MOST_INTERRUPTIONS = 5
"""A message during which PostgreSQL went away so often in a row is to blame itself: it is a failed attempt."""
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
IDLE = 0.5
"""Seconds that a thread waits for work before it checks whether it is to end."""
_HEAD = "inbox_parked_head"
"""The index that lets one message of a key be the first one."""
MARGIN = 30.0
"""Seconds after the time-out of a listener at which PostgreSQL itself ends its transaction."""


@dataclass(slots=True)
class Running:
    """What a thread does at the moment, and since when."""

    since: float
    delivery: Delivery
    backend: int
    server: Server | None
    """The server that the session is at."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all threads of a member share."""

    how: Handling
    connect: Connect
    timeout: float
    server: CurrentServer


class ListenerThread(threading.Thread):
    """What both kinds of threads share: a connection, pauses, and being given up."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        super().__init__(name=name, daemon=True)
        self._how, self._connect, self._timeout = runtime.how, runtime.connect, runtime.timeout
        self._server = runtime.server
        self._conn: Connection | None = None
        self._conn_server: Server | None = None
        """The server that the connection leads to."""
        self._ends = threading.Event()
        self._pauses = Backoff(FIRST_PAUSE, LAST_PAUSE)
        self._paused_by: type[Exception] | None = None
        self._lock = threading.Lock()
        self.running: Running | None = None
        self.given_up = False
        """Whatever the listener still does, this thread decides nothing any more."""

    def end(self) -> None:
        """Ask the thread to end after what it does now."""
        self._ends.set()

    def give_up(self) -> Running | None:
        """Give the thread up if its listener runs past the time-out; return what it runs."""
        with self._lock:
            running = self.running
            if running is None or self.given_up or monotonic() - running.since <= self._timeout:
                return None
            self.given_up = True
            return running

    def _settle(self) -> bool:
        """Note that the listener has returned; False: too late, another thread has its message."""
        with self._lock:
            if not self.given_up:
                self.running = None
            return not self.given_up

    def run(self) -> None:
        """Work until the end is asked for."""
        try:
            while not self._ends.is_set() and not self.given_up:
                self.run_once()
        except BaseException:
            log.exception("a thread of the consumer ended; another one takes its place")
        finally:
            self._drop_connection()

    def run_once(self) -> None:
        """Do one piece of work, or wait for one."""
        raise NotImplementedError

    def _connection(self) -> Connection:
        if self._conn_server != self._server.accepted:
            # The keeper has been led to another server, and messages are read again there. The one that this thread
            # is connected to may still live, and refuse them as done, or apply them where nobody will find it.
            self._drop_connection()
        if self._conn is None or self._conn.closed or self._conn.broken:
            conn = self._connect()
            try:
                limit_transactions(conn, self._timeout + MARGIN, lock_wait=LOCK_WAIT)
                self._conn_server = self._server.require(conn)
            except BaseException:
                conn.close()
                raise
            self._conn = conn
        return self._conn

    def _drop_connection(self) -> None:
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _begin(self, delivery: Delivery, conn: Connection) -> None:
        self.running = Running(monotonic(), delivery, conn.info.backend_pid, self._conn_server)

    def _pause(self, error: Exception) -> None:
        """Pause after an error that is not a message's."""
        self._drop_connection()
        first = not self._pauses.pause or type(error) is not self._paused_by
        self._paused_by = type(error)
        self._how.counts.interrupted(error_name(error))
        seconds = self._pauses.next() * random.uniform(0.7, 1.0)  # noqa: S311  (spreads attempts, guards nothing)
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "%s%s; trying again in %.1f s",
            "" if isinstance(error, InterruptedListenerError) else "PostgreSQL: ",
            " ".join(str(error).split())[:300],
            seconds,
        )
        self._ends.wait(seconds)


class DeliveryThread(ListenerThread):
    """Runs messages as they are delivered."""

    def __init__(self, name: str, runtime: Runtime, work: Assignments) -> None:
        super().__init__(name, runtime)
        self._work, self._repeats = work, Repeats()
        self.current: Work | None = None
        """What the thread works on."""
        self.left: Work | None = None
        """What the thread before worked on: done first."""

    def take_over(self, lost: DeliveryThread, failure: Failure | None) -> None:
        """Begin with what another thread left; `failure`: why it was given up; None: it ended by itself."""
        if work := lost.current or lost.left:
            # A copy: the thread that was given up may still write into its own.
            self.left = replace(work, failure=work.failure or failure)

    def run_once(self) -> None:
        """Take one message and handle it, however long PostgreSQL is away."""
        if self.left is not None:
            self.current, self.left = self.left, None
            self._work_on(self.current)
        elif self._is_connected() and (taken := self._work.take(IDLE)):
            self.current = Work.of(*taken)
            self._work_on(self.current)

    def _is_connected(self) -> bool:
        """Return whether the thread may take a message: it has a connection, or has made one because a message waits.

        There may be fewer connections than threads. What a thread without one had taken would wait, while others idle.
        """
        if self._conn is not None:
            return True
        if not self._work.wait(IDLE):
            return False
        try:
            self._connected()
        except UnconnectedError as error:
            self._work.pass_on()
            self._pause_unconnected(error)
            return False
        return True

    def _connected(self) -> Connection:
        try:
            return self._connection()
        except Exception as error:
            raise UnconnectedError from error

    def _pause_unconnected(self, error: UnconnectedError) -> None:
        cause = error.__cause__
        assert isinstance(cause, Exception)  # noqa: S101  (`_connected` has caught it)
        if not is_infrastructure(cause):
            level = self._repeats.level("unconnected", logging.ERROR)
            log.log(level, "a connection cannot be made", exc_info=cause)
        self._pause(cause)

    def _work_on(self, work: Work) -> None:
        """Handle a message; a suspect waits while another one runs."""
        suspects = self._work.suspects
        if not suspects.admit(work.delivery):
            self._put_off(work)
            self.current = None
            return
        try:
            self._handle(work)
        finally:
            if suspects.leave(work.delivery):
                self._work.hurry()

    def _handle(self, work: Work) -> None:
        delivery, done = work.delivery, False
        handled: Handled | None = None
        while not done and self._work.is_current(delivery):
            try:
                handled = self._try(work)
                done = handled is not None
                self._pauses.reset()
            except ListenerFailedError as failed:
                if not self._settle():
                    return
                work.failure = failed.failure
            except LockedError as error:
                if self._settle():
                    self._postpone(work, error)
                    self.current = None
                return
            except UnconnectedError as error:
                if self._settle():
                    self._return(work)
                    self._pause_unconnected(error)
                return
            except Exception as error:  # noqa: BLE001  (it is logged; whatever it is, the message is still here)
                if not self._settle():
                    return
                if not is_infrastructure(error):
                    self._report(error, work)
                work.interruptions += 1
                if self._ends.is_set():
                    break
                if work.interruptions < MOST_INTERRUPTIONS or work.failure is not None or not self._is_up():
                    self._pause(error)
                else:
                    work.failure = interrupted(error, MOST_INTERRUPTIONS)
        if self._settle():
            if handled is not None:
                self._how.counts.message(handled.value)
            if handled is Handled.PARKED and delivery.order_key is not None:
                self._park_followers(work.key, delivery)
            self._work.finish(work.key, delivery, done=done)
            self.current = None

    def _return(self, work: Work) -> None:
        """Give back all that is in the hands of the thread."""
        self._work.give_back(work.key, work.left())
        self.current = None

    def _postpone(self, work: Work, error: LockedError) -> None:
        """Give back a message that others have locked, or whose key is full: this thread goes on with other keys."""
        message = work.delivery.message
        log.log(
            self._repeats.level(type(error).__name__, logging.INFO),
            "%s of %s[%d] waits, and its key with it: %s",
            message.message_id,
            message.topic,
            message.partition,
            error,
        )
        self._put_off(work, was_locked=True)

    def _put_off(self, work: Work, *, was_locked: bool = False) -> None:
        if self._conn is not None:
            with suppress(psycopg.Error):  # of a connection that was lost
                self._conn.rollback()
        work.taken = None
        self._work.postpone(work.key, work.left(was_locked=was_locked))

    def _park_followers(self, key: Hashable, first: Delivery) -> None:
        """Park what waits behind a message that was parked, many in one transaction; what fails is handled alone."""
        days, full_keys = frozenset(self._server.days), self._work.full_keys
        while followers := self._work.take_followers(key, fitting(days)):
            parked = [False] * len(followers)
            try:
                conn = self._connection()
                if all(self._work.is_current(each) for each in followers):
                    most = full_keys.admit(first.message.topic, first.order_key, len(followers))
                    if most:
                        parked[:most] = park_followers(conn, self._how.group, followers[:most])
            except Exception as error:  # noqa: BLE001  (whatever it is, it comes again if the messages are to blame)
                self._drop_connection()
                level = self._repeats.level("followers")
                log.log(level, "%d messages are parked one by one: %s", len(followers), error)
            finally:
                self._work.finish_followers(key, followers, parked)
            self._how.counts.message("parked", sum(parked))
            if not all(parked) or self._ends.is_set():
                return

    def _try(self, work: Work) -> Handled | None:
        """Handle a message; None: its partition was given away meanwhile."""
        if work.failure is not None and work.taken is not None:
            self._drop_connection()  # parking would find the row, and commit it without an effect
        conn, delivery, failure = self._connected(), work.delivery, work.failure
        if not self._work.is_current(delivery):
            return None  # the connection may be new, and lead to a server that lacks earlier messages
        taken = work.taken[1] if work.taken and work.taken[0] is conn else None
        work.taken = None
        if taken is None and delivery.born_on not in self._server.days:
            with locked_by_others():
                run(conn, membership.ensure_partition(str(delivery.born_on)))
            conn.commit()
            self._server.days.add(delivery.born_on)

        def begins(attempt: Attempt) -> None:
            # Not before: waiting for the row of a zombie is not the listener's time, nor is parking.
            work.attempt = attempt
            if self._work.suspects.counts(delivery):
                count_delivery(conn, self._how, self._work.suspects, delivery)
            self._begin(delivery, conn)

        if failure is None:
            handled = handle(
                conn, self._how, delivery, begins, work.attempt, taken=taken, commit=self._commit
            )
        else:
            handled = park(conn, self._how, delivery, failure, work.attempt)
        if failure is not None and handled is not Handled.DEAD:
            log.warning("%s %s: %s", delivery.message.message_id, handled.value, failure.fingerprint)
        return handled

    def _commit(self, conn: Connection, xid: str) -> None:
        """Commit the effect of a message."""
        check_and_commit(conn, xid)

    def _report(self, error: Exception, work: Work) -> None:
        message = work.delivery.message
        if isinstance(error, psycopg.Error) and error.diag.constraint_name == _HEAD:
            log.log(
                self._repeats.level(_HEAD, logging.ERROR),
                "%s cannot be parked, and %s[%d] waits: a message of its key is parked, and the row of the key in "
                "outbox.inbox_held_key is gone (%s). To hold the key again: outbox dlq hold",
                message.message_id,
                message.topic,
                message.partition,
                _HEAD,
            )
            return
        log.exception("the inbox cannot take %s", message.message_id)
        if work.failure is not None:
            work.failure = reported(type(error).__qualname__)  # without what could not be stored

    def _is_up(self) -> bool:
        self._drop_connection()
        try:
            self._connection().rollback()
        except Exception:  # noqa: BLE001  (the application's own callable may raise anything)
            return False
        return True
