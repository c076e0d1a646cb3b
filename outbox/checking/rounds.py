"""One group's checker, step by step: what is due is done in short transactions, and no listener is asked inside of one.

A step settles the replies that have come, scans one page, claims what is due and hands it to the workers. Between any
two of its transactions the process may die: each leaves the group in a state from which any checker goes on (see the
schedules in `finding`, `claiming` and `settling`). Between claim and settle lies the asking, done by `workers`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg

from outbox.checking.asker import Asker, why_unable
from outbox.checking.asking import MOST_CLAIMED, Asking
from outbox.checking.claiming import claim
from outbox.checking.ending import warn_of_ended
from outbox.checking.finding import enqueue, settings, tidy
from outbox.checking.group_alarms import GroupAlarms
from outbox.checking.group_settings import GroupSettings
from outbox.checking.scan import Scan
from outbox.checking.settling import Expired, Reply, Settled, expire, settle
from outbox.checking.transaction import checker_name, transaction
from outbox.statements import Plan

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[Any]
ConnectionContext: TypeAlias = Callable[[], AbstractContextManager[Connection]]
"""Yields an idle connection for one step, such as `psycopg_pool.ConnectionPool.connection`."""

log = logging.getLogger("outbox.checking")

IDLE_PAUSE = 1.0
"""Seconds between two searches for what is due."""
UNABLE_AFTER = 2.0
"""Seconds after which a checker that cannot ask its group reports a half message that is due: others had the time."""
TICK = 0.05
"""Seconds between steps while replies are awaited: for so long a batch grows that is settled at once."""


class Step(NamedTuple):
    """What one step did, and when the next is worth while."""

    enqueued: int = 0
    claimed: int = 0
    locked: int = 0
    """Half messages postponed because a local transaction holds them."""
    decided: int = 0
    unknown: int = 0
    not_asked: int = 0
    expired: int = 0
    late: int = 0
    """Replies that changed nothing: the half message was decided, or claimed by somebody else, meanwhile."""
    in_flight: int = 0
    """Half messages that are claimed and not yet settled, after the step."""
    more: bool = False
    """Whether the claim was full."""
    pause: float = 0.0
    """Seconds after which the next step is due, if `wake` is not called before."""

    def plus(self, other: Step) -> Step:
        """Add another step's numbers; the rest is the other's."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in self._fields[:8]}
        return other._replace(**sums)


class GroupRound:
    """A group's checker without a thread or a connection of its own; see `outbox.checking` for how to use it.

    Not for several threads at once. Errors of the database pass through; the next step goes on.
    """

    def __init__(
        self,
        group: str,
        asker: Asker | None,
        *,
        name: str | None = None,
        wake: Callable[[], None] = lambda: None,
        batch: int = MOST_CLAIMED,
        page: int = 5000,
    ) -> None:
        """Prepare the checks of one group.

        Args:
            group: The producer group's name; its settings are read whenever the database is asked for something.
            asker: Who is asked; None: the group's half messages are only found and expired.
            name: Who this is in the audit; "checker:<group>@<host>:<pid>" by default.
            wake: Called from a worker's thread when all replies have come.
            batch: Half messages that one claim takes at most.
            page: Half messages that one transaction of a scan reads.
        """
        self.group, self.name = group, name or checker_name(group)
        self._scan = Scan(page)
        self._alarms = GroupAlarms(group)
        self._wake = wake
        self._ready = threading.Event()
        self._asking = None if asker is None else Asking(group, asker, self._woken, batch)
        self._claim_at = 0.0
        self._draining = False

    @property
    def in_flight(self) -> int:
        """Half messages that are claimed and not yet settled."""
        return 0 if self._asking is None else self._asking.in_flight

    @property
    def asking(self) -> Asking | None:
        """The workers and the circuit breaker, for inspection."""
        return self._asking

    def step(self, connection: ConnectionContext) -> Step:
        """Do what is due on one connection, in milliseconds; none is taken when nothing is. What is asked goes on."""
        done = Step()
        if self._something_is_due():
            with connection() as conn:
                now = self._run(conn, settings(self.group))
                done = self._settle(conn, now.settings)
                done = done.plus(self._page(conn, now.settings))
                if self._room() and time.monotonic() >= self._claim_at:
                    done = done.plus(self._claim(conn, now.settings))
                self._tell(conn)
        return done._replace(in_flight=self.in_flight, pause=self._pause())

    def run_once(self, connection: ConnectionContext) -> Step:
        """Scan the whole group and ask about all that is due now, once each; wait for the replies.

        For tests, and for programs that need it done now: it takes as long as the callbacks take.
        """
        self._scan.hurry()
        done, began, more = Step(), "", True
        while more or self.in_flight:
            self._collect()
            with connection() as conn:
                now = self._run(conn, settings(self.group))
                began = began or now.time
                done = done.plus(self._settle(conn, now.settings))
                done = done.plus(self._page(conn, now.settings))
                if more and not self._scan.on_its_way and self._room():
                    done = done.plus(self._claim(conn, now.settings, began))
                    more = done.more
                elif not self._scan.on_its_way and not self.in_flight:
                    more = False  # the breaker is open: nothing more is asked
                self._tell(conn)
            if self.in_flight and not self._scan.on_its_way:
                self._ready.wait(TICK)
                self._ready.clear()
        return done._replace(in_flight=0, pause=self._pause())

    def drain(self) -> None:
        """Claim nothing more; the next steps settle what comes back, and give back what was not begun."""
        self._draining = True
        if self._asking is not None:
            self._asking.give_back()

    def stop(self) -> None:
        """End the workers; what is still being asked about is due again when its lease has passed."""
        self._draining = True
        if self._asking is not None:
            self._asking.stop()

    def _woken(self) -> None:
        self._ready.set()
        self._wake()

    def _run(self, conn: Connection, plan: Plan[T]) -> T:
        return transaction(conn, self.name, plan)

    def _collect(self) -> None:
        if self._asking is not None:
            self._asking.collect(self._alarms)

    def _room(self) -> int:
        asking = self._asking
        return 0 if asking is None or self._draining or not self._asks else asking.room()

    @property
    def _asks(self) -> bool:
        """Whether anybody can be asked from here: not without an asker, nor with one that lacks what it needs."""
        return self._asking is not None and why_unable(self._asking.asker) is None

    def _something_is_due(self) -> bool:
        self._collect()
        now = time.monotonic()
        return bool(
            (self._asking is not None and self._asking.replies)
            or now >= self._scan.next_at
            or (now >= self._claim_at and self._room())
            or self._alarms.due()
        )

    def _pause(self) -> float:
        """Seconds until something is due that no worker tells of."""
        now = time.monotonic()
        ends = [now + IDLE_PAUSE, self._scan.next_at]
        if self.in_flight:
            ends.append(now + TICK)
        if self._room():
            ends.append(self._claim_at)
        return max(min(ends) - now, 0.0)

    def _settle(self, conn: Connection, group: GroupSettings) -> Step:
        """Settle what was answered. When the database fails, the replies are kept for the next step."""
        if self._asking is None or not self._asking.replies:
            return Step()
        replies = self._asking.replies
        try:
            settled = self._run(conn, settle(group, replies, self._alarms.stretch))
        except psycopg.Error:
            if conn.closed:
                raise
            settled = self._settle_one_by_one(conn, group, replies)
        self._asking.replies = []
        self._raise_ended(settled)
        warn_of_ended(self.group, settled.ended)
        return Step(
            decided=settled.decided,
            unknown=settled.unknown,
            not_asked=settled.not_asked,
            locked=settled.locked,
            expired=settled.expired,
            late=settled.late + settled.decided_before,
        )

    def _settle_one_by_one(self, conn: Connection, group: GroupSettings, replies: list[Reply]) -> Settled:
        """After a failure: one that cannot be settled must not keep the others; it is due again after its lease."""
        done = Settled()
        for reply in replies:
            try:
                one = self._run(conn, settle(group, [reply], self._alarms.stretch))
            except psycopg.Error as error:
                if conn.closed:
                    raise
                log.warning(
                    "checker of group %s: message %d is not settled: %s",
                    self.group,
                    reply.id,
                    error.diag.sqlstate,
                )
            else:
                done = done.plus(one)
        return done

    def _page(self, conn: Connection, group: GroupSettings) -> Step:
        """Scan one page, if one is due."""
        after = self._scan.begin()
        if after is None:
            return Step()
        began = time.monotonic()
        asked, why = self._asks, None if self._asking is None else why_unable(self._asking.asker)
        overdue_after = None if why is None else min(UNABLE_AFTER, group.check_interval)
        found = self._run(
            conn, enqueue(group, after, self._scan.page, asked=asked, overdue_after=overdue_after)
        )
        ended = found.over + (found.unheard if self._alarms.silence_is_over else [])
        expired = self._expire(conn, group, ended)
        overview = self._scan.took(found, time.monotonic() - began)
        if overview is not None:
            able = asked and self._asking is not None and not self._asking.breaker.open
            self._alarms.overview(overview, asked=asked, able=able, why=why)
            if not asked:
                self._run(conn, tidy(group))
        return Step(enqueued=found.enqueued, expired=expired)

    def _claim(self, conn: Connection, group: GroupSettings, due_by: str = "infinity") -> Step:
        """Claim what is due and have it asked about."""
        asking = self._asking
        if asking is None:
            return Step()
        claimed = self._run(conn, claim(group, self.name, asking.limit(group), due_by))
        asking.submit(claimed, group)
        self._claim_at = 0.0 if claimed.more else time.monotonic() + IDLE_PAUSE
        expired = self._expire(conn, group, claimed.over)
        return Step(
            claimed=len(claimed.views) + len(claimed.unreadable),
            locked=claimed.locked,
            expired=expired,
            more=claimed.more,
        )

    def _expire(self, conn: Connection, group: GroupSettings, over: list[int]) -> int:
        if not over:
            return 0
        ended = self._run(conn, expire(group, over))
        self._raise_ended(ended)
        warn_of_ended(self.group, ended.ended)
        return len(ended.ended)

    def _raise_ended(self, ended: Settled | Expired) -> None:
        if ended.exhausted:
            self._alarms.exhausted(ended.exhausted)
        if ended.by_policy:
            self._alarms.rolled_back(ended.by_policy)

    def _tell(self, conn: Connection) -> None:
        kinds = self._alarms.due()
        if kinds:
            self._run(conn, self._alarms.write(kinds))
            self._alarms.written(kinds)
