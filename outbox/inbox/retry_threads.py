"""The threads that run retries that are due, and how they share the search for these.

One idle thread of a member has the right to search, and searches every half second. It gives the right back before it
calls a listener, and the next idle thread searches at once: so a retry that runs long holds up the others only when
each thread has such a one. A thread that ends, or pauses because PostgreSQL is away, gives the right back, too. No
thread has it inside a listener, so a thread that is given up never has it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from outbox.inbox.failures import Failure, interrupted, is_infrastructure, timed_out
from outbox.inbox.handling import Connection, count_failure, handle_due, try_later
from outbox.inbox.parked_rows import DueSince, Retry
from outbox.inbox.pauses import EVERY_TOPIC
from outbox.inbox.runs import count_retry
from outbox.inbox.suspects import FIRST_RETRIES
from outbox.inbox.threads import FIRST_PAUSE, IDLE, MOST_INTERRUPTIONS, ListenerThread, Runtime

log = logging.getLogger("outbox.inbox")


class SearchRight:
    """What the retry threads of a member share: the right to search, which one of them has at a time."""

    def __init__(self) -> None:
        self._lock, self._soon = threading.Lock(), threading.Event()
        self._begun = 0
        self.due = DueSince()
        self._suspect: int | None = None
        self.interrupted: dict[int, int] = {}
        """How often in a row each retry was interrupted."""

    def take(self) -> bool:
        """Take the right; False: another thread has kept it for half a second."""
        return self._lock.acquire(timeout=IDLE)

    def give_back(self) -> None:
        """Let another thread have the right."""
        self._lock.release()

    @property
    def has_suspect(self) -> bool:
        """Whether a retry is run that may have ended another process: one at a time is."""
        return self._suspect is not None

    def begin(self, retry: Retry) -> bool:
        """Begin with a retry, by the thread that has the right; return whether its run is counted."""
        self._begun += 1
        if retry.is_suspect:
            self._suspect = retry.id
        return retry.is_suspect or retry.attempts > 0 or self._begun <= FIRST_RETRIES

    def end(self, retry: Retry | None) -> None:
        """End with a retry."""
        if retry is not None and retry.id == self._suspect:
            self._suspect = None
            self.hurry()

    def hurry(self) -> None:
        """Let the next search begin at once: a retry was found or has ended, so others may be due."""
        self._soon.set()

    def rest(self) -> None:
        """Wait after a search that found nothing, half a second at most, or until there is a reason to search."""
        self._soon.wait(self.due.left if 0 < self.due.left < IDLE else IDLE)
        self._soon.clear()


class RetryThread(ListenerThread):
    """Runs retries that are due."""

    def __init__(self, name: str, runtime: Runtime, right: SearchRight) -> None:
        super().__init__(name, runtime)
        self._right, self._has_right = right, False
        self._retry: Retry | None = None
        self.left: Retry | None = None
        """What a thread that was given up tried: counted as failed first."""

    @property
    def current(self) -> Retry | None:
        """The retry that the thread tries."""
        return self._retry

    def end(self) -> None:
        """Ask the thread to end after what it does now."""
        super().end()
        self._right.hurry()

    def run_once(self) -> None:
        """Search until a retry is found, and try it; return without a search while another thread searches."""
        if self.left is not None:
            self._retry = self.left
            self._fail(self.left, timed_out(self._timeout))
            self._right.end(self.left)
            self.left = None  # not before: if this thread ends here, the next one counts it
        self._has_right = self._right.take()
        if not self._has_right:
            return
        try:
            found = self._try_next()
        except Exception as error:  # noqa: BLE001  (it is logged; whatever it is, the retry is still due)
            self._give_right_back()
            self._right.end(self._retry)
            if self._settle():
                self._interruption(error)
            return
        finally:
            self._give_right_back()
        self._right.end(found)
        if found is not None and self._settle():
            self._right.interrupted.pop(found.id, None)
            self._right.hurry()  # the next message of its key is due now

    def _try_next(self) -> Retry | None:
        """Wait until a retry is due, and try it; None: the thread is to end."""
        while not self._ends.is_set():
            self._retry = None
            if EVERY_TOPIC in self._how.pauses.topics:
                self._right.rest()
                continue
            with_suspects = not self._right.has_suspect
            since = self._right.due.begin()
            found = handle_due(
                self._connection(), self._how, self._began, since=since, with_suspects=with_suspects
            )
            self._pauses.reset()
            if found is not None:
                return found
            self._right.rest()
        return None

    def _began(self, retry: Retry) -> None:
        self._retry = retry
        self._right.due.found(retry.due_at)
        is_counted = self._right.begin(retry)
        self._right.hurry()
        self._give_right_back()
        if is_counted:
            count_retry(self._how, retry)
        self._begin(retry.delivery, self._connection())

    def _give_right_back(self) -> None:
        if self._has_right:
            self._has_right = False
            self._right.give_back()

    def _interruption(self, error: Exception) -> None:
        """Postpone a retry that was interrupted before this thread pauses: another thread would find it at once."""
        retry, counts = self._retry, self._right.interrupted
        if not is_infrastructure(error):
            log.exception("a retry cannot be tried")
        self._drop_connection()
        if retry is not None:
            count = counts[retry.id] = counts.get(retry.id, 0) + 1
            if count < MOST_INTERRUPTIONS:
                is_noted = self._run(lambda conn: try_later(conn, retry, FIRST_PAUSE * 2**count))
            elif is_noted := self._fail(retry, interrupted(error, MOST_INTERRUPTIONS)):
                counts.pop(retry.id, None)  # another thread may have counted the same run
            if not is_noted:
                return  # it has paused
        self._pause(error)

    def _fail(self, retry: Retry, failure: Failure) -> bool:
        """Count an attempt; if PostgreSQL is away it is not counted, and the retry is still due."""
        return self._run(lambda conn: count_failure(conn, self._how, retry, failure))

    def _run(self, transaction: Callable[[Connection], None]) -> bool:
        try:
            transaction(self._connection())
        except Exception as error:  # noqa: BLE001  (the application's own callable may raise anything)
            self._pause(error)
            return False
        return True
