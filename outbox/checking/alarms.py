"""Alarms of a producer group: raised and cleared by its checkers, written only when they change.

no_checker  no listener is registered                      failing    the callback fails, and is left alone for a while
flood       very many half messages are undecided           exhausted  half messages wait for an operator
silent      half messages are past their age and checks get no reply: EXHAUSTED when it has stood for `GRACE`
rolled_back the policy has rolled half messages back: stands for `STANDS` after the last one, by PostgreSQL's clock, so
            a checker that starts, or another one of the group, does not clear what has just been raised

An alarm is written after the transaction that it is about. A checker that dies in between leaves it to the checker that
finds the same state next. A rollback leaves no state to find: it is then in the audit (outbox.event) only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outbox.checking.group_settings import GRACE
from outbox.checking.transaction import SQL
from outbox.statements import Plan, Statement

KINDS = ("no_checker", "failing", "flood", "exhausted", "silent", "rolled_back")
STANDS = 600.0
"""Seconds for which an alarm about an event stands after the last one."""
AGAIN = 60.0
"""Seconds after which an alarm is written again: `seen_at` shows that it still holds. And after which one that does not
hold is cleared again, because another checker of the group, that cannot see it, may have raised it meanwhile."""


def raise_alarm(group: str, kind: str, detail: str) -> Plan[float]:
    """Raise an alarm, or confirm that it still holds; return for how many seconds it has stood."""
    ((seconds,),) = yield Statement(SQL["raise_alarm"], (group, kind, detail, repr(GRACE)))
    return float(seconds)


def clear_alarm(group: str, kind: str) -> Plan[bool]:
    """Clear an alarm; whether there was one."""
    return bool((yield Statement(SQL["clear_alarm"], (group, kind, repr(STANDS)))))


class Alarms:
    """What one checker knows of its group's alarms; nothing at first, so what is well is cleared once.

    Each checker of a group reports what it finds: one that cannot ask raises the alarm, one that can clears it.
    """

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group, self._clock = group, clock
        self._wanted: dict[str, str | None] = {}
        self._seen: set[str] = set()
        """Kinds that were set since they were written: old knowledge clears nobody's alarm."""
        self._written: dict[str, tuple[bool, float]] = {}
        self._began: dict[str, float] = {}
        """When each alarm that this process has written was raised, by its own clock."""

    def set(self, kind: str, detail: str | None) -> None:
        """Remember an alarm to write: a detail raises it, None clears it."""
        self._wanted[kind] = detail
        self._seen.add(kind)

    def stood(self, kind: str) -> float:
        """For how many seconds an alarm of this process has stood; 0 when it is not raised."""
        if self._wanted.get(kind) is None or kind not in self._began:
            return 0.0
        return self._clock() - self._began[kind]

    def is_unwritten(self, kind: str) -> bool:
        """Whether an alarm is to be raised, and is not written yet."""
        return self._wanted.get(kind) is not None and not self._written.get(kind, (False, 0.0))[0]

    def due(self) -> list[str]:
        """The kinds to be written now."""
        now = self._clock()
        return [kind for kind, detail in self._wanted.items() if self._news(kind, detail is not None, now)]

    def write(self, kinds: list[str]) -> Plan[None]:
        """Write the remembered alarms of these kinds."""
        for kind in kinds:
            detail = self._wanted[kind]
            if detail is None:
                self._began.pop(kind, None)
                yield from clear_alarm(self._group, kind)
            else:
                seconds = yield from raise_alarm(self._group, kind, detail)
                self._began[kind] = self._clock() - seconds

    def written(self, kinds: list[str]) -> None:
        """Remember that they were committed."""
        now = self._clock()
        for kind in kinds:
            self._written[kind] = (self._wanted[kind] is not None, now + AGAIN)
            self._seen.discard(kind)

    def _news(self, kind: str, wanted: bool, now: float) -> bool:
        raised, until = self._written.get(kind, (None, 0.0))
        return raised is not wanted or (now >= until and (wanted or kind in self._seen))
