"""The thread that runs a listener for single messages: it takes the next message over when it commits the one before.

While there are messages in memory, it sends the row of the next one behind the commit of the one before, and notes the
end of that one while PostgreSQL takes the next one over: two round trips for a message instead of three. Listeners run
one after the other, as ever: the next one runs after the one before is committed. The next message is of another key,
because a key is in one thread's hands at a time. It waits for the commit in the hands of this thread, even if another
thread is idle: for as long as that commit takes, with the triggers that are deferred to it. Its transaction begins with
the statement that commits the one before, so that is the time of its `now()`.

What happens to a message that is taken ahead (`Work.taken`):

- The commit before it fails, or its outcome is unknown: PostgreSQL has not taken it, or its connection is closed. It is
  given back, and waits in front of its key for any thread.
- Its partition is given away, or another server of PostgreSQL has taken over: the connection is closed, so nothing of
  it is committed, and it is not done. Until then it counts as running.
- The thread is given up, or ends by itself, before the message is its current work: the thread that takes its place
  gives it back. Afterwards it inherits it, and takes it over on its own connection, after the transaction of the first
  one has ended.
- The process dies: see `round_trips`.
"""

from __future__ import annotations

import psycopg
from psycopg import capabilities

from outbox.inbox.assignments import Assignments
from outbox.inbox.failures import Failure
from outbox.inbox.handling import Connection
from outbox.inbox.round_trips import SentTake, commit_and_take
from outbox.inbox.threads import DeliveryThread, Runtime
from outbox.inbox.work import Work


class AheadThread(DeliveryThread):
    """Runs messages as they are delivered, and takes the next one with the commit of the one before."""

    def __init__(self, name: str, runtime: Runtime, work: Assignments) -> None:
        super().__init__(name, runtime, work)
        self._next: Work | None = None
        """The message that comes after the current one."""
        self._sent: SentTake | None = None
        """Its row, sent behind a commit, if it is not received yet."""

    def take_over(self, lost: DeliveryThread, failure: Failure | None) -> None:
        """Begin with what another thread left; another one may do what it had taken ahead."""
        super().take_over(lost, failure)
        if isinstance(lost, AheadThread):
            lost._give_next_back()

    def run_once(self) -> None:
        """Take one message and handle it, and then what was taken with its commit."""
        super().run_once()
        while work := self._begin_next():
            self._work_on(work)
            if work.taken is not None:  # its partition was given away
                self._drop_connection()

    def _commit(self, conn: Connection, xid: str) -> None:
        following = self._take_next()
        if following is None:
            super()._commit(conn, xid)
            return
        delivery = following.delivery
        try:
            if (
                delivery.failure is None
                and delivery.born_on in self._server.days
                and capabilities.has_pipeline()
            ):
                self._sent = commit_and_take(conn, xid, self._how.group, delivery)
            else:
                super()._commit(conn, xid)
        except BaseException:
            self._give_next_back()
            raise

    def _take_next(self) -> Work | None:
        """Take a message to come after the current one; not if the thread is given up, or is to end."""
        if self._ends.is_set() or (taken := self._work.take(0)) is None:
            return None
        with self._lock:
            if not self.given_up:
                self._next = Work.of(*taken)
                return self._next
        self._work.give_back(*taken)  # whoever has this thread's place has given back what it had by then
        return None

    def _begin_next(self) -> Work | None:
        """Make the next message the current work, with what became of its row."""
        taken, sent, self._sent = None, self._sent, None
        if sent is not None:
            try:
                taken = sent.receive()
            except psycopg.Error:  # it comes again when the message is taken alone
                self._drop_connection()
        with self._lock:
            if not self.given_up and self._next is not None:
                self.current, self._next = self._next, None
                if sent is not None and taken is not None:
                    self.current.taken = (sent.conn, taken)
                return self.current
        self._give_next_back()
        return None

    def _give_next_back(self) -> None:
        with self._lock:
            following, self._next = self._next, None
        if following is not None:
            self._work.give_back(following.key, following.delivery)
