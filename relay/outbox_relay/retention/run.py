"""One run of retention: every range is judged, those that may go leave, what an earlier run left half done ends.

A range that an earlier run left half way is judged like any other, by what this run asks for: if it may go it goes,
if not it is put back. So a run can be killed at any time, and repeated at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from outbox_relay.retention import ranges, tidy
from outbox_relay.retention.decision import Reason, Verdict
from outbox_relay.retention.eligibility import Judge, choose_targets
from outbox_relay.retention.ranges import Range
from outbox_relay.retention.removal import BusyError, Removal


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a range: dropped, droppable (a dry run, or a list), kept or refused.

    `restored`: an earlier run, or this one, had begun to detach it, and it was put back.
    """

    outcome: str
    verdict: Verdict
    restored: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """What a run is asked for: the retention, whose certificates count (None: all), seconds of patience for locks."""

    older_than: timedelta
    target: str | None
    wait: float


class Retention:
    """One run over one connection in autocommit. `targets` are those whose certificates count.

    Raises:
        TargetError: the target that is asked for has no certificates.
    """

    def __init__(self, conn: psycopg.Connection[Any], wish: Wish) -> None:
        self._conn = conn
        self._wish = wish
        self.targets = choose_targets(conn, wish.target)
        self._judge = Judge(conn, age=wish.older_than, targets=self.targets, wait=wish.wait)
        self._staying: list[Range] = []

    def look(self) -> Iterator[Outcome]:
        """Judge every range, oldest first, and change nothing."""
        found = ranges.read(self._conn)
        for place, range_ in enumerate(found):
            verdict = self._judge.judge(range_, found[place + 1 :], self._staying)
            if not verdict.may_go:
                self._staying.append(range_)
            yield Outcome(_stays(verdict) if verdict.reasons else "droppable", verdict)

    def drop(self) -> Iterator[Outcome]:
        """Judge every range, oldest first, and drop those that may go; `removal.prepare` comes before."""
        removal = Removal(self._conn, wait=self._wish.wait)
        # What is in the way of a detach that was begun. Until it has ended, no other range can be detached.
        busy = self._finish_pending(removal)
        found = ranges.read(self._conn)
        for place, range_ in enumerate(found):
            later = found[place + 1 :]
            verdict = self._judge.judge(range_, later, self._staying)
            try:
                if busy and (verdict.may_go or "pending" in range_.states.values()):
                    raise BusyError(busy)
                outcome = self._settle(removal, range_, verdict, later)
            except BusyError as error:
                busy = busy or str(error)
                reason = Reason("busy", str(error))
                outcome = Outcome("refused", Verdict(range_, (*verdict.reasons, reason), verdict.messages))
            if outcome.outcome != "dropped":
                self._staying.append(range_)
            yield outcome

    def tidy(self) -> tuple[int, int]:
        """Delete idempotency keys whose time has passed and left-over checks; return how many of each."""
        there = ranges.read(self._conn)
        keys = tidy.idempotency_keys(self._conn, self._wish.older_than, self._judge.newest, there)
        return keys, tidy.pending_checks(self._conn)

    def _finish_pending(self, removal: Removal) -> str | None:
        """End detaches that were begun; return what is in the way of one."""
        try:
            for range_ in ranges.read(self._conn):
                removal.finish_pending(range_)
        except BusyError as error:
            return str(error)
        return None

    def _settle(self, removal: Removal, range_: Range, verdict: Verdict, later: list[Range]) -> Outcome:
        if not verdict.may_go:
            return self._stay(removal, range_, verdict)
        removal.mark(range_)
        removal.detach(range_)
        second = verdict

        def still_may_go() -> bool:
            # A row may have been changed since the first look. Now nobody can write to the tables.
            nonlocal second
            second = self._judge.judge(range_, later, self._staying)
            return second.may_go

        try:
            if removal.drop(range_, still_may_go):
                return Outcome("dropped", verdict)
        except psycopg.errors.DependentObjectsStillExist as error:
            detail = (error.diag.message_detail or str(error)).splitlines()[0]
            second = Verdict(range_, (Reason("depended_on", detail),), verdict.messages)
        removal.restore(range_)
        return Outcome(_stays(second), second, restored=True)

    def _stay(self, removal: Removal, range_: Range, verdict: Verdict) -> Outcome:
        """Put back what an earlier run had begun to take away."""
        begun = range_.marked and range_.is_whole
        if begun and not range_.is_attached:
            removal.restore(range_)
            return Outcome(_stays(verdict), verdict, restored=True)
        if begun:
            removal.unmark(range_)
        return Outcome(_stays(verdict), verdict)


def _stays(verdict: Verdict) -> str:
    return "refused" if verdict.is_refusal else "kept"
