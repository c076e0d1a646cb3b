"""The threads that run retries that are due; `core.retries` has who of them searches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from outbox.inbox.core.hands import MOST_INTERRUPTIONS, Watch
from outbox.inbox.core.partitions import EVERY_TOPIC
from outbox.inbox.core.retries import SEARCH_PAUSE, Retries
from outbox.inbox.core.suspects import MOST_RETRY_RUNS
from outbox.inbox.failures import Failure, interrupted, killed, timed_out
from outbox.inbox.handling import Connection, ListenerFailedError, count_failure, handle_due, try_later
from outbox.inbox.parked_rows import Retry
from outbox.inbox.sessions import is_infrastructure
from outbox.inbox.threads import ListenerThread, Runtime

log = logging.getLogger("outbox.inbox")


class RetrySearch:
    """Shares `Retries` between threads: `with search as retries:` is the lock, and its end wakes up who waits."""

    def __init__(self) -> None:
        self._changed, self._retries = threading.Condition(), Retries()

    def __enter__(self) -> Retries:
        self._changed.acquire()
        return self._retries

    def __exit__(self, *_: object) -> None:
        self._changed.notify_all()
        self._changed.release()

    def take(self, who: threading.Thread) -> bool:
        """Take the right to search; False: another thread has kept it for half a second."""
        with self._changed:
            return self._changed.wait_for(lambda: self._retries.take(who), SEARCH_PAUSE)

    def rest(self) -> None:
        """Wait after a search that found nothing, half a second at most, or until there is a reason to search."""
        with self._changed:
            self._changed.wait_for(lambda: self._retries.is_soon, self._retries.rest(monotonic()))
            self._retries.is_soon = False


class RetryThread(ListenerThread):
    """Runs retries that are due."""

    def __init__(self, name: str, runtime: Runtime, search: RetrySearch, left: Retry | None = None) -> None:
        """Prepare the thread.

        Args:
            name: of the thread.
            runtime: what all threads of the member share.
            search: shared by the retry threads.
            left: what a thread that was given up tried: counted as failed first.
        """
        super().__init__(name, runtime, Watch())
        self._search, self._timeout = search, runtime.timeout
        self.current: Retry | None = None
        """The retry that the thread tries."""
        self.left = left

    def end(self) -> None:
        """Ask the thread to end after what it does now."""
        super().end()
        with self._search as retries:
            retries.is_soon = True

    def run_once(self) -> None:
        """Search until a retry is found, and try it; return without a search while another thread searches."""
        if self.left is not None:
            self.current = self.left
            self._fail(self.left, timed_out(self._timeout))
            with self._search as retries:
                retries.end(self.left)
            self.left = None  # not before: if this thread ends here, the next one counts it
        if not self._search.take(self):
            return
        found, error = None, None
        try:
            found = self._try_next()
        except Exception as raised:  # noqa: BLE001  (it is logged; whatever it is, the retry is still due)
            error = raised
        finally:
            with self._search as retries:
                retries.give_back(self)
        with self._search as retries:
            retries.end(found if error is None else self.current)
        if self.settle():
            if error is not None:
                self._interruption(error)
            elif found is not None:
                with self._search as retries:
                    retries.succeeded(found)

    def _try_next(self) -> Retry | None:
        """Wait until a retry is due, and try it; None: the thread is to end."""
        while not self.session.ends.is_set():
            self.current = None
            if EVERY_TOPIC not in self._how.pauses.topics:
                with self._search as retries:
                    may_suspect, since = not retries.has_suspect, retries.due.begin(monotonic())
                conn = self.session.open()
                found = handle_due(conn, self._how, self._begins, since=since, with_suspects=may_suspect)
                self.session.succeeded()
                if found is not None:
                    return found
            self._search.rest()
        return None

    def _begins(self, retry: Retry) -> None:
        self.current = retry
        with self._search as retries:
            is_counted = retries.begin(self, retry, monotonic())
        if is_counted and (runs := self._how.count_run(retry.delivery, True)) > MOST_RETRY_RUNS:
            raise ListenerFailedError(killed(runs - 1))
        self.watch.running = self.session.running(retry.delivery)

    def _interruption(self, error: Exception) -> None:
        """Postpone a retry that was interrupted before this thread pauses: another thread would find it at once."""
        if not is_infrastructure(error):
            log.exception("a retry cannot be tried", exc_info=error)
        self.session.drop()
        if (retry := self.current) is not None:
            with self._search as retries:
                seconds = retries.interrupted(retry)
            if seconds is not None:
                is_noted = self._run(lambda conn: try_later(conn, retry, seconds))
            elif is_noted := self._fail(retry, interrupted(error, MOST_INTERRUPTIONS)):
                with self._search as retries:
                    retries.succeeded(retry)
            if not is_noted:
                return  # it has paused
        self.session.pause(error)

    def _fail(self, retry: Retry, failure: Failure) -> bool:
        """Count an attempt; if PostgreSQL is away it is not counted, and the retry is still due."""
        return self._run(lambda conn: count_failure(conn, self._how, retry, failure))

    def _run(self, transaction: Callable[[Connection], None]) -> bool:
        try:
            transaction(self.session.open())
        except Exception as error:  # noqa: BLE001  (the application's own callable may raise anything)
            self.session.pause(error)
            return False
        return True
