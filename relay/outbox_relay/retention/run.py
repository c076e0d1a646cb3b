"""One run of retention: decides about each range, drops those that may go, and ends what an earlier run left half done.

A range that an earlier run left half way is decided about like any other, by this run's options: if it may go it goes,
if not it is put back. So a run can be killed at any time, and repeated at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from outbox_relay.retention import ranges, tidy
from outbox_relay.retention.decision import Reason, RetentionDecision
from outbox_relay.retention.eligibility import Eligibility, choose_targets
from outbox_relay.retention.ranges import Range
from outbox_relay.retention.removal import BusyError, Removal


@dataclass(frozen=True, slots=True)
class RangeResult:
    """What became of a range: dropped, droppable (a dry run, or a list), kept or refused.

    `restored`: an earlier run, or this one, had begun to detach it, and it was put back.
    """

    outcome: str
    decision: RetentionDecision
    restored: bool = False


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The options of a run: the retention, whose certificates count (None: all), seconds of patience for locks.

    `without_warehouse`: nothing has to be exported. `despite_certificates`: also where a warehouse has certificates.
    """

    older_than: timedelta
    target: str | None
    wait: float
    without_warehouse: bool = False
    despite_certificates: bool = False


class Retention:
    """One run over one connection in autocommit. `targets` are those whose certificates count; None: no warehouse.

    Raises:
        TargetError: the target that is asked for has no certificates.
        WarehouseFoundError: a run without a warehouse, and there are certificates.
    """

    def __init__(self, conn: psycopg.Connection[Any], options: RetentionOptions) -> None:
        self._conn = conn
        self._options = options
        self.targets = choose_targets(
            conn,
            options.target,
            without_warehouse=options.without_warehouse,
            despite_certificates=options.despite_certificates,
        )
        self._eligibility = Eligibility(conn, age=options.older_than, targets=self.targets, wait=options.wait)
        self._staying: list[Range] = []

    def preview(self) -> Iterator[RangeResult]:
        """Decide about every range, oldest first, and change nothing."""
        found = ranges.read(self._conn)
        for place, range_ in enumerate(found):
            decision = self._eligibility.decide(range_, found[place + 1 :], self._staying)
            if not decision.may_go:
                self._staying.append(range_)
            yield RangeResult(_stays(decision) if decision.reasons else "droppable", decision)

    def drop(self) -> Iterator[RangeResult]:
        """Decide about every range, oldest first, and drop those that may go; inside `removal.only_removal`."""
        removal = Removal(self._conn, wait=self._options.wait)
        # What is in the way of a detach that was begun. Until it has ended, no other range can be detached.
        busy = self._finish_pending(removal)
        found = ranges.read(self._conn)
        for place, range_ in enumerate(found):
            later = found[place + 1 :]
            decision = self._eligibility.decide(range_, later, self._staying)
            try:
                if busy and (decision.may_go or "pending" in range_.states.values()):
                    raise BusyError(busy)
                outcome = self._settle(removal, range_, decision, later)
            except BusyError as error:
                busy = busy or str(error)
                reason = Reason("busy", str(error))
                outcome = RangeResult(
                    "refused", RetentionDecision(range_, (*decision.reasons, reason), decision.messages)
                )
            if outcome.outcome != "dropped":
                self._staying.append(range_)
            yield outcome

    def tidy(self) -> tuple[int, int]:
        """Delete idempotency keys whose time has passed and left-over checks; return how many of each."""
        there = ranges.read(self._conn)
        keys = tidy.idempotency_keys(self._conn, self._options.older_than, self._eligibility.newest, there)
        return keys, tidy.pending_checks(self._conn)

    def _finish_pending(self, removal: Removal) -> str | None:
        """End detaches that were begun; return what is in the way of one."""
        try:
            for range_ in ranges.read(self._conn):
                removal.finish_pending(range_)
        except BusyError as error:
            return str(error)
        return None

    def _settle(
        self, removal: Removal, range_: Range, decision: RetentionDecision, later: list[Range]
    ) -> RangeResult:
        if not decision.may_go:
            return self._stay(removal, range_, decision)
        removal.mark(range_)
        removal.detach(range_)
        second = decision

        def still_may_go() -> bool:
            # A row may have been changed since the first decision. Now nobody can write to the tables.
            nonlocal second
            second = self._eligibility.decide(range_, later, self._staying)
            return second.may_go

        try:
            if removal.drop(range_, still_may_go):
                return RangeResult("dropped", decision)
        except psycopg.errors.DependentObjectsStillExist as error:
            detail = (error.diag.message_detail or str(error)).splitlines()[0]
            second = RetentionDecision(range_, (Reason("depended_on", detail),), decision.messages)
        removal.restore(range_)
        return RangeResult(_stays(second), second, restored=True)

    def _stay(self, removal: Removal, range_: Range, decision: RetentionDecision) -> RangeResult:
        """Put back what an earlier run had begun to take away."""
        begun = range_.marked and range_.is_whole
        if begun and not range_.is_attached:
            removal.restore(range_)
            return RangeResult(_stays(decision), decision, restored=True)
        if begun:
            removal.unmark(range_)
        return RangeResult(_stays(decision), decision)


def _stays(decision: RetentionDecision) -> str:
    return "refused" if decision.is_refusal else "kept"
