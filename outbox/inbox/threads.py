"""What the threads that run listeners share: a session at PostgreSQL, pauses while that is away, and an end.

A listener that runs past its time-out cannot be stopped from outside; its session at PostgreSQL is ended, its thread is
given up, and another thread takes its place: see `seats`.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import psycopg

from outbox.backoff import Backoff
from outbox.errors import error_name
from outbox.inbox.assignments import Assignments
from outbox.inbox.core.hands import Running, Watch
from outbox.inbox.failures import InterruptedListenerError, UnconnectedError
from outbox.inbox.handling import Connection, Handling
from outbox.inbox.messages import Delivery
from outbox.inbox.server import CurrentServer, Server
from outbox.inbox.sessions import LOCK_WAIT, limit_transactions
from outbox.inbox.settings import Connect

log = logging.getLogger("outbox.inbox")
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
IDLE = 0.5
"""Seconds that a thread waits for work before it checks whether it is to end."""
MARGIN = 30.0
"""Seconds after the time-out of a listener at which PostgreSQL itself ends its transaction."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What all threads of a member share."""

    how: Handling
    connect: Connect
    timeout: float
    server: CurrentServer
    work: Assignments


class ListenerSession:
    """The session of one thread at PostgreSQL, and its pauses."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.conn: Connection | None = None
        self._conn_server: Server | None = None
        """The server that the connection leads to."""
        self.ends = threading.Event()
        """Set when the thread is to end; pauses end at once then."""
        self._pauses = Backoff(FIRST_PAUSE, LAST_PAUSE)
        self._paused_by: type[Exception] | None = None

    def open(self) -> Connection:
        """Return the connection, or a new one."""
        server = self._runtime.server
        if self._conn_server != server.accepted:
            # The keeper has been led to another server, and messages are read again there. The one that this thread
            # is connected to may still live, and refuse them as done, or apply them where nobody will find it.
            self.drop()
        if self.conn is None or self.conn.closed or self.conn.broken:
            conn = self._runtime.connect()
            try:
                limit_transactions(conn, self._runtime.timeout + MARGIN, lock_wait=LOCK_WAIT)
                self._conn_server = server.require(conn)
            except BaseException:
                conn.close()
                raise
            self.conn = conn
        return self.conn

    def require(self) -> Connection:
        """Return the connection, or a new one.

        Raises:
            UnconnectedError: It cannot be made; the cause is why.
        """
        try:
            return self.open()
        except Exception as error:
            raise UnconnectedError from error

    def drop(self) -> None:
        """Close the connection, and so end its transaction."""
        if self.conn is not None:
            self.conn.close()
        self.conn = None

    def rollback(self) -> None:
        """End the transaction, if there is one."""
        if self.conn is not None:
            with suppress(psycopg.Error):  # of a connection that was lost
                self.conn.rollback()

    def is_up(self) -> bool:
        """Return whether a new connection can be made."""
        self.drop()
        try:
            self.open().rollback()
        except Exception:  # noqa: BLE001  (the application's own callable may raise anything)
            return False
        return True

    def running(self, delivery: Delivery) -> Running:
        """Return that a listener begins in this session."""
        backend = 0 if self.conn is None else self.conn.info.backend_pid
        return Running(monotonic(), delivery, (backend, self._conn_server))

    def succeeded(self) -> None:
        """Let the next pause be the first one again."""
        self._pauses.reset()

    def pause(self, error: Exception) -> None:
        """Pause after an error that is not a message's."""
        self.drop()
        first = not self._pauses.pause or type(error) is not self._paused_by
        self._paused_by = type(error)
        self._runtime.how.counts.interrupted(error_name(error))
        seconds = self._pauses.next() * random.uniform(0.7, 1.0)  # noqa: S311  (spreads attempts, guards nothing)
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "%s%s; trying again in %.1f s",
            "" if isinstance(error, InterruptedListenerError) else "PostgreSQL: ",
            " ".join(str(error).split())[:300],
            seconds,
        )
        self.ends.wait(seconds)


class ListenerThread(threading.Thread, ABC):
    """A thread that runs listeners until it is to end, or is given up."""

    def __init__(self, name: str, runtime: Runtime, watch: Watch) -> None:
        super().__init__(name=name, daemon=True)
        self._how, self._work = runtime.how, runtime.work
        self.session, self.watch = ListenerSession(runtime), watch

    def end(self) -> None:
        """Ask the thread to end after what it does now."""
        self.session.ends.set()

    def run(self) -> None:
        """Work until the end is asked for."""
        try:
            while not self.session.ends.is_set() and not self.watch.given_up:
                self.run_once()
        except BaseException:
            log.exception("a thread of the consumer ended; another one takes its place")
        finally:
            self.session.drop()

    @abstractmethod
    def run_once(self) -> None:
        """Do one piece of work, or wait for one."""

    def settle(self) -> bool:
        """Note that the listener has returned; False: too late, another thread has its message."""
        with self._work:
            return self.watch.settle()
