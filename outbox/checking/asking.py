"""Asking about what was claimed: how much a group takes on, and what its replies mean for the next time.

What happens between claim and settle, when no transaction is open:

- The process dies: the leases pass and another checker asks again. Asking changes nothing, so it may happen twice.
- The process is stopped, and goes on: a task that waited too long is given back unasked. An answer that comes after
  another checker has claimed is thrown away by `settle`.
- A call hangs: see `workers`; the half message is settled as UNKNOWN at its deadline, in time for its lease. As long as
  it hangs, the half message is given back whenever it is claimed, and no further check is used up: another process may
  ask, and so may this one after a restart.
- Calls fail again and again: the breaker opens, what waits is given back, and no check is used up.
- No listener is registered for any message of a claim: given back, no check is used up, and a pause without claims. The
  half messages are due again before that pause ends, so that one checker of an older version delays the others little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outbox.checking.answers import FailedAnswer, LocalTransactionState
from outbox.checking.asker import Asker
from outbox.checking.breaker import Breaker
from outbox.checking.claiming import QUEUE_SECONDS, Claimed
from outbox.checking.group_alarms import GroupAlarms
from outbox.checking.group_settings import GroupSettings
from outbox.checking.settling import Reply
from outbox.checking.workers import Task, Workers

MOST_CLAIMED = 200
"""Half messages that one claim takes at most; fewer where the callback is slow."""
WORK_SECONDS = 0.5
"""Seconds of its workers' time that a claim takes on, by how long the callback took lately."""
STUCK_AFTER = 5.0
"""Seconds after its deadline from which on a call that has not returned is reported to operators."""
MISSING_PAUSE = 5.0
"""Seconds without claims after every reply was that no listener is registered."""
MISSING_RETRY = 2.0
"""Seconds (or `check_interval`, if shorter) after which a half message without a listener here is due again.
Shorter than `MISSING_PAUSE`, so that in between another checker of the group, which may know it, can claim it."""

UNREADABLE = FailedAnswer(LocalTransactionState.UNKNOWN, "not asked: the message's headers cannot be read")


class Asking:
    """One group's workers, circuit breaker and replies. Not for several threads at once."""

    def __init__(
        self,
        group: str,
        asker: Asker,
        wake: Callable[[], None],
        batch: int,
        *,
        breaker: Breaker | None = None,
    ) -> None:
        """Ask with `asker` about at most `batch` half messages at a time."""
        self.group, self.breaker, self.asker = group, breaker or Breaker(), asker
        self.replies: list[Reply] = []
        """What is to be settled."""
        self.workers = Workers(f"outbox-check-{group}", asker, wake)
        self._most, self._size = batch, 1
        self._interval = 30.0
        self._seconds: float | None = None
        """How long an answer took lately."""
        self._not_before = 0.0
        self._told = False

    @property
    def in_flight(self) -> int:
        """Half messages that are claimed and not yet settled."""
        return len(self.replies) + self.workers.in_flight

    def room(self) -> int:
        """How many half messages may be claimed now."""
        may = self.breaker.may_ask()
        if may == 0 or time.monotonic() < self._not_before or self.workers.available == 0:
            return 0
        in_flight, batch = self.in_flight, self._batch()
        if may == 1:
            return 1 if in_flight == 0 else 0
        return batch - in_flight if in_flight <= batch // 2 else 0

    def limit(self, group: GroupSettings) -> int:
        """The same for a claim that is made now, with the group's present settings."""
        self._size, self._interval = group.workers, group.check_interval
        self.workers.resize(group.workers)
        return self.room()

    def submit(self, claimed: Claimed, group: GroupSettings) -> None:
        """Have the workers ask about what was claimed; what cannot be read has failed without asking."""
        self.replies.extend(
            Reply(id, claimed.claim, checks, UNREADABLE, silent=True) for id, checks in claimed.unreadable
        )
        if not claimed.views:
            return
        self.breaker.probe()
        start_by = time.monotonic() + QUEUE_SECONDS
        self.workers.submit(
            Task(view, claimed.claim, group.check_timeout, start_by) for view in claimed.views
        )

    def collect(self, alarms: GroupAlarms) -> None:
        """Take what the workers have answered and make replies of it."""
        tasks = self.workers.collect()
        if tasks:
            self.replies.extend(self._reply(task) for task in tasks)
            self._judge(tasks, alarms)
            if self.workers.available == 0:
                self.breaker.trip(f"all {self.workers.hanging} threads hang in calls that do not return")
            if self.breaker.open:
                self.workers.give_back()
                self.replies.extend(self._reply(task) for task in self.workers.collect())
        stuck = self.workers.hanging_since(STUCK_AFTER)
        if stuck or self.breaker.open:
            alarms.failing(self.breaker.reason if self.breaker.open else None, stuck)
        elif self._told:
            alarms.well()
        self._told = bool(stuck) or self.breaker.open

    def give_back(self) -> None:
        """Ask about nothing that was not begun."""
        self.workers.give_back()

    def stop(self) -> None:
        """End the workers."""
        self.workers.stop()

    def _judge(self, tasks: list[Task], alarms: GroupAlarms) -> None:
        """What the answers say about who was asked."""
        missing = [task.missing for task in tasks if task.missing is not None]
        answered = [task for task in tasks if task.answer is not None]
        for task in answered:
            self._seconds = (
                task.seconds if self._seconds is None else 0.8 * self._seconds + 0.2 * task.seconds
            )
            if task.failed is None:
                self.breaker.succeeded()
                alarms.answered(len(missing) == 0)
            else:
                self.breaker.failed(task.failed)
                alarms.asked(len(missing) == 0)
        if missing:
            alarms.no_checker(missing[0], 2 * self._interval)
        if not answered:
            self.breaker.no_probe()
            if missing:
                self._not_before = time.monotonic() + min(MISSING_PAUSE, self._interval)

    def _reply(self, task: Task) -> Reply:
        if task.missing is not None:
            pause = min(MISSING_RETRY, self._interval)
            return Reply(task.view.id, task.claim, task.view.checks, None, pause, task.missing, silent=True)
        if task.hangs:
            why = "the call made for an earlier check has not returned yet"
            return Reply(task.view.id, task.claim, task.view.checks, None, self._interval, why, silent=True)
        if task.answer is None:
            return Reply(task.view.id, task.claim, task.view.checks, None, 0.0, "no worker was free in time")
        return Reply(task.view.id, task.claim, task.view.checks, task.answer, silent=task.failed is not None)

    def _batch(self) -> int:
        if self._seconds is None:
            return min(self._size, self._most)
        takes = int(self._size * WORK_SECONDS / max(self._seconds, 1e-6))
        return min(max(takes, self._size), self._most)
