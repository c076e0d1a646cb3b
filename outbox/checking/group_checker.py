"""The checker of one producer group, embedded in the producer's own process."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from outbox import sessions
from outbox.backoff import Backoff
from outbox.checking.asker import Asker
from outbox.checking.asking import MOST_CLAIMED
from outbox.checking.rounds import GroupRound, Step
from outbox.errors import ConfigurationError

log = logging.getLogger("outbox.checking")

FIRST_RETRY = 0.5
LAST_RETRY = 15.0
"""Seconds between attempts while the database fails; doubled each time, and made uneven."""


class GroupChecker:
    """Asks about the half messages of one producer group, with one connection and one thread of its own.

        checker = GroupChecker(lambda: psycopg.connect(dsn), "payments", ListenerAsker(listeners))
        checker.start()
        …
        checker.stop()

    Any number of processes may run one for the same group: they share the work. The roles outbox_producer and
    outbox_checker suffice. It ends with its process and needs no `stop`: what it was asking about is then due again
    within seconds. It must be made after a fork, not before.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]] | str,
        group: str,
        asker: Asker,
        *,
        name: str | None = None,
        batch: int = MOST_CLAIMED,
    ) -> None:
        """Prepare a checker; nothing is opened before `start` or `run_once`.

        Args:
            connect: Opens a connection, or the database's address. It is made autocommit, gets the settings of
                `outbox.sessions`, is used by the checker alone, and opened again when it is lost.
            group: The producer group; its settings are in `outbox.producer_group`, or the defaults.
            asker: Who is asked, usually `ListenerAsker(listeners)`.
            name: Who this is in the audit; "checker:<group>@<host>:<pid>" by default.
            batch: Half messages that one claim takes at most.

        Raises:
            ConfigurationError: the group is not a valid name.
        """
        if not 1 <= len(group) <= 255:
            raise ConfigurationError(
                f"group: {group!r}; allowed: a producer group's name, 1 to 255 characters"
            )
        self._connect = connect
        self._something = threading.Event()
        self.round = GroupRound(group, asker, name=name, wake=self._something.set, batch=batch)
        self._conn: psycopg.Connection[Any] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Only one thread makes steps: the checker's own, or who calls `run_once`."""

    def run_once(self) -> Step:
        """Ask about all that is due now, and wait for the replies; for tests and for schedulers of one's own.

        Raises:
            psycopg.Error: the database cannot be reached, or refuses. Call it again.
        """
        with self._lock:
            return self.round.run_once(self._connection)

    def start(self) -> None:
        """Begin to check, in a daemon thread; it survives the loss of the database, and never raises.

        Raises:
            ConfigurationError: it was started before.
        """
        if self._thread is not None:
            raise ConfigurationError("start: this checker was started already; allowed: once")
        self._thread = threading.Thread(
            target=self._loop, name=f"outbox-checker-{self.round.group}", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Claim nothing more, settle what is answered within `timeout` seconds, and end; whether that was in time.

        What was not answered by then is due again when its lease has passed.
        """
        self._stopping.set()
        self._something.set()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                self.round.stop()
                return False
        with self._lock:
            self.round.stop()
            self._disconnect()
        return True

    def _loop(self) -> None:
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            if self._stopping.is_set():
                self.round.drain()
            try:
                with self._lock:
                    wait = self.round.step(self._connection).pause
                backoff.reset()
            except Exception as error:
                # The database is away, or something is wrong that an operator has to repair; either may pass.
                log.warning(
                    "checker of group %s: %s",
                    self.round.group,
                    _told(error),
                    exc_info=not isinstance(error, psycopg.Error),
                )
                wait = backoff.next() * random.uniform(0.5, 1.0)  # noqa: S311  (spreads attempts, guards nothing)
            if self._stopping.is_set() and not self.round.in_flight:
                return
            self._something.wait(wait)
            self._something.clear()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if self._conn is None or self._conn.closed:
            self._conn = self._open()
        try:
            yield self._conn
        except psycopg.OperationalError:
            self._disconnect()
            raise

    def _open(self) -> psycopg.Connection[Any]:
        if isinstance(self._connect, str):
            return sessions.connect(self._connect, f"outbox checker {self.round.group}")
        conn = self._connect()
        try:
            conn.autocommit = True
            sessions.make_own(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def _told(error: Exception) -> str:
    """An error for the log; of the server's only the first line, for its details may quote a row."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return f"{type(error).__name__}: {primary or error}"
