"""The threads that run messages as they are delivered, one at a time or a batch; `core.hands` decides what comes next.

A thread takes a message when it has a connection. If PostgreSQL ends a transaction, the thread keeps its message,
pauses and tries again; if it cannot connect, it gives the message back in front of its key, because others may be
connected. No attempt is counted, and the order of the key is kept. If another session has the row or the key of a
message locked, such as that of a member that stands still, its key waits, and the thread takes one of another key.

While there are messages in memory, a thread for single ones sends the row of the next one behind the commit of the one
before, and notes the end of that one while PostgreSQL takes the next one over: two round trips for a message instead of
three. Listeners run one after the other, as ever: the next one runs after the one before is committed. The next message
is of another key, because a key is in one thread's hands at a time. It waits for the commit in the hands of this
thread, even if another thread is idle: for as long as that commit takes, with the triggers that are deferred to it. Its
transaction begins with the statement that commits the one before, so that is the time of its `now()`.

What happens to a message that is taken ahead:

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

import logging
from collections.abc import Hashable
from time import monotonic

import psycopg
from psycopg import capabilities

from outbox.drivers.psycopg_sync import run
from outbox.inbox import membership
from outbox.inbox.batches import Batching, handle_batch
from outbox.inbox.core.hands import MOST_INTERRUPTIONS, BatchOutcome, Hands, Interruption, Work
from outbox.inbox.core.suspects import MOST_RUNS
from outbox.inbox.failures import LockedError, UnconnectedError, interrupted, killed
from outbox.inbox.followers import fitting, park_followers
from outbox.inbox.handling import Connection, Handled, ListenerFailedError, handle, park
from outbox.inbox.messages import Attempt, Delivery
from outbox.inbox.plans import Taken
from outbox.inbox.repeats import Repeats
from outbox.inbox.round_trips import SentTake, check_and_commit, commit_and_take
from outbox.inbox.sessions import is_infrastructure, locked_by_others
from outbox.inbox.threads import IDLE, ListenerThread, Runtime

log = logging.getLogger("outbox.inbox")
_HEAD = "inbox_parked_head"
"""The index that lets one message of a key be the first one."""


class DeliveryThread(ListenerThread):
    """Runs messages as they are delivered."""

    def __init__(
        self, name: str, runtime: Runtime, batching: Batching | None = None, hands: Hands | None = None
    ) -> None:
        """Prepare the thread.

        Args:
            name: of the thread.
            runtime: what all threads of the member share.
            batching: how messages are put together; None: each is run alone.
            hands: what another thread has left.
        """
        if hands is None:
            with runtime.work as partitions:
                hands = Hands(partitions)
        super().__init__(name, runtime, hands)
        self.hands, self._server, self._batching = hands, runtime.server, batching
        self._sent: SentTake | None = None
        """The row of the message that was taken ahead, sent behind a commit, if it is not received yet."""
        self._taken: tuple[Work, Taken] | None = None
        """What the session has taken ahead, in the transaction that it is in."""
        self._repeats = Repeats()

    def run_once(self) -> None:
        """Handle what is in the hands of the thread, or take something first; however long PostgreSQL is away."""
        if not self.hands.works and self._is_connected():
            most, linger = (self._batching.most, self._batching.linger) if self._batching else (1, 0.0)
            taken = self._work.take(IDLE, most, linger)
            with self._work:
                self.hands.take(taken)
        while not self.session.ends.is_set() and (works := self._next()):
            self._handle(works)

    def _is_connected(self) -> bool:
        """Return whether the thread may take a message: it has a connection, or has made one because a message waits.

        There may be fewer connections than threads. What a thread without one had taken would wait, while others idle.
        """
        if self.session.conn is not None:
            return True
        if not self._work.wait(IDLE):
            return False
        try:
            self.session.require()
        except UnconnectedError as error:
            with self._work:
                pass  # wakes up another thread
            self._pause_unconnected(error)
            return False
        return True

    def _pause_unconnected(self, error: UnconnectedError) -> None:
        cause = error.__cause__
        assert isinstance(cause, Exception)  # noqa: S101  (`require` has caught it)
        if not is_infrastructure(cause):
            level = self._repeats.level("unconnected", logging.ERROR)
            log.log(level, "a connection cannot be made", exc_info=cause)
        self.session.pause(cause)

    def _next(self) -> list[Work]:
        with self._work:
            works = self.hands.next(monotonic())
        if self._taken is not None and not any(work is self._taken[0] for work in works):
            self.session.drop()  # the partition of what it has taken was given away, for example
            self._taken = None
        return works

    def _handle(self, works: list[Work]) -> None:
        """Try messages in one transaction, and note what became of them."""
        try:
            outcome = self._try_alone(works[0]) if len(works) == 1 else self._try_together(works)
        except ListenerFailedError as failed:
            with self._work:
                if self.hands.settle():
                    self.hands.failed(failed.failure)
            if len(works) > 1:
                log.info("%d messages failed together, and each half of them is run: %s", len(works), failed)
        except LockedError as error:
            self._postpone(works, error)
        except UnconnectedError as error:
            with self._work:
                if not self.hands.settle():
                    return
                self.hands.unconnected()
            self._pause_unconnected(error)
        except Exception as error:  # noqa: BLE001  (it is logged; whatever it is, the message is still here)
            self._interrupted(works, error)
        else:
            self.session.succeeded()
            if self.settle():
                self._note(works[0], outcome)

    def _note(self, first: Work, outcome: Handled | BatchOutcome | None) -> None:
        counts = self._how.counts
        if outcome is None:
            with self._work:
                self.hands.repeat()
        elif isinstance(outcome, Handled):
            counts.message(outcome.value)
            if outcome is Handled.PARKED and first.delivery.order_key is not None:
                self._park_followers(first.key, first.delivery)
            with self._work:
                self.hands.finish()
            self._begin_ahead()
        else:
            with self._work:
                refused = self.hands.note(outcome)
            counts.message("applied", outcome.applied)
            counts.message("discarded", len(outcome.done) - outcome.applied)
            counts.message("refused", refused)

    def _postpone(self, works: list[Work], error: LockedError) -> None:
        """Let the keys of messages wait that others have locked, or that are full; the thread goes on with others."""
        for each in works:
            message = each.delivery.message
            log.log(
                self._repeats.level(type(error).__name__, logging.INFO),
                "%s of %s[%d] waits, and its key with it: %s",
                message.message_id,
                message.topic,
                message.partition,
                error,
            )
        self.session.rollback()
        with self._work:
            if self.hands.settle():
                self.hands.locked(monotonic())

    def _interrupted(self, works: list[Work], error: Exception) -> None:
        if not self.settle():
            return
        defect = None if is_infrastructure(error) else self._report(error, works)
        with self._work:
            then = self.hands.interrupted(defect)
        if then is Interruption.GO_ON:
            self.session.drop()
        elif then is Interruption.BLAME and self.session.is_up():
            with self._work:
                self.hands.blame(interrupted(error, MOST_INTERRUPTIONS))
        else:
            self.session.pause(error)

    def _report(self, error: Exception, works: list[Work]) -> str | None:
        """Log what the inbox cannot take; return what is wrong with it, None: the row of its key is gone."""
        message = works[0].delivery.message
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
            return None
        what = message.message_id if len(works) == 1 else f"{len(works)} messages together"
        log.exception("the inbox cannot take %s", what)
        return type(error).__qualname__

    def _park_followers(self, key: Hashable, first: Delivery) -> None:
        """Park what waits behind a message that was parked, many in one transaction; what fails is handled alone."""
        while True:
            with self._work as partitions:
                followers = partitions.take_followers(key, fitting(frozenset(self._server.days)))
                most = 0
                if all(partitions.is_current(each) for each in followers):
                    most = partitions.full_keys.admit(first.message.topic, first.order_key, len(followers))
            parked = [False] * len(followers)
            try:
                if most:
                    parked[:most] = park_followers(self.session.open(), self._how.group, followers[:most])
            except Exception as error:  # noqa: BLE001  (whatever it is, it comes again if the messages are to blame)
                self.session.drop()
                level = self._repeats.level("followers")
                log.log(level, "%d messages are parked one by one: %s", len(followers), error)
            finally:
                with self._work as partitions:
                    partitions.finish_followers(key, followers, parked)
            self._how.counts.message("parked", sum(parked))
            if not followers or not all(parked) or self.session.ends.is_set():
                return

    def _ensure_days(self, conn: Connection, works: list[Work]) -> None:
        """Make the partitions of the inbox for the days of birth of messages."""
        for day in sorted({work.delivery.born_on for work in works} - self._server.days):
            with locked_by_others():
                run(conn, membership.ensure_partition(str(day)))
            conn.commit()
            self._server.days.add(day)

    def _are_current(self, works: list[Work]) -> bool:
        """Return whether messages may be tried: the connection may be new, and lead to a server that lacks others."""
        with self._work as partitions:
            return all(partitions.is_current(work.delivery) for work in works)

    def _try_alone(self, work: Work) -> Handled | None:
        """Handle a message; None: its partition was given away meanwhile."""
        taken = self._taken[1] if self._taken else None
        self._taken = None
        if work.failure is not None and taken is not None:
            self.session.drop()  # parking would find the row, and commit it without an effect
        before = self.session.conn
        conn, delivery, failure = self.session.require(), work.delivery, work.failure
        if not self._are_current([work]):
            return None
        if conn is not before:
            taken = None
        if taken is None:
            self._ensure_days(conn, [work])

        def begins(attempt: Attempt) -> None:
            # Not before: waiting for the row of a zombie is not the listener's time, nor is parking.
            work.attempt = attempt
            with self._work as partitions:
                is_counted = partitions.suspects.counts(delivery)
            if is_counted:
                runs = self._how.count_run(delivery, False)
                with self._work as partitions:
                    partitions.suspects.ran(delivery)
                if runs > MOST_RUNS:
                    conn.rollback()
                    raise ListenerFailedError(killed(runs - 1))
            self.hands.running = self.session.running(delivery)

        if failure is None:
            return handle(conn, self._how, delivery, begins, work.attempt, taken=taken, commit=self._commit)
        handled = park(conn, self._how, delivery, failure, work.attempt)
        if handled is not Handled.DEAD:
            log.warning("%s %s: %s", delivery.message.message_id, handled.value, failure.fingerprint)
        return handled

    def _try_together(self, works: list[Work]) -> BatchOutcome | None:
        conn = self.session.require()
        if not self._are_current(works):
            return None
        self._ensure_days(conn, works)

        def begins(attempt: Attempt, places: list[int]) -> None:
            for place in places:
                works[place].attempt = attempt
            self.hands.running = self.session.running(works[places[0]].delivery)

        assert self._batching is not None  # noqa: S101  (without it each message is alone)
        deliveries = [work.delivery for work in works]
        return handle_batch(conn, self._how.group, self._batching.listener, deliveries, begins)

    # Ahead ----------------------------------------------------------------------------------------------------

    def _commit(self, conn: Connection, xid: str) -> None:
        """Commit the effect of a message, and send the row of the next one behind it."""
        following = self._take_ahead()
        try:
            if (
                following is not None
                and following.failure is None
                and following.delivery.born_on in self._server.days
                and capabilities.has_pipeline()
            ):
                self._sent = commit_and_take(conn, xid, self._how.group, following.delivery)
            else:
                check_and_commit(conn, xid)
        except BaseException:
            with self._work:
                self.hands.give_ahead_back()
            raise

    def _take_ahead(self) -> Work | None:
        if self._batching is not None or self.session.ends.is_set():
            return None
        with self._work:
            return self.hands.take_ahead(monotonic())

    def _begin_ahead(self) -> None:
        """Let the message that was taken ahead come next, with what became of its row."""
        taken, sent, self._sent = None, self._sent, None
        if sent is not None:
            try:
                taken = sent.receive()
            except psycopg.Error:  # it comes again when the message is taken alone
                self.session.drop()
        with self._work:
            work = self.hands.begin_ahead()
        if work is not None and taken is not None:
            self._taken = work, taken
        elif taken is not None:
            self.session.drop()
