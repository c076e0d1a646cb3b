"""Alarms of a producer group: raised and cleared by its checkers, written only when there is news.

no_checker  nobody is registered who could be asked        failing    the callback fails, and is left alone for a while
flood       very many half messages are undecided           exhausted  half messages wait for an operator
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outbox.checking.transaction import SQL
from outbox.statements import Plan, Statement

KINDS = ("no_checker", "failing", "flood", "exhausted")
AGAIN = 60.0
"""Seconds after which a raised alarm is written again: `seen_at` tells that it still holds."""


def raise_alarm(group: str, kind: str, detail: str) -> Plan[None]:
    """Raise an alarm, or say that it still holds."""
    yield Statement(SQL["raise_alarm"], (group, kind, detail))


def clear_alarm(group: str, kind: str) -> Plan[bool]:
    """Clear an alarm; whether there was one."""
    return bool((yield Statement(SQL["clear_alarm"], (group, kind))))


class Alarms:
    """What one checker knows of its group's alarms; nothing at first, so what is well is cleared once.

    Several checkers of one group tell what each of them sees: one that cannot ask raises, one that can clears.
    """

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._group, self._clock = group, clock
        self._wanted: dict[str, str | None] = {}
        self._written: dict[str, tuple[bool, float]] = {}

    def set(self, kind: str, detail: str | None) -> None:
        """Remember what is to be told: a detail raises the alarm, None clears it."""
        self._wanted[kind] = detail

    def due(self) -> list[str]:
        """The kinds to be written now."""
        now = self._clock()
        return [kind for kind, detail in self._wanted.items() if self._news(kind, detail is not None, now)]

    def write(self, kinds: list[str]) -> Plan[None]:
        """Write what is to be told about these kinds."""
        for kind in kinds:
            detail = self._wanted[kind]
            if detail is None:
                yield from clear_alarm(self._group, kind)
            else:
                yield from raise_alarm(self._group, kind, detail)

    def written(self, kinds: list[str]) -> None:
        """Remember that they were committed."""
        now = self._clock()
        for kind in kinds:
            self._written[kind] = (self._wanted[kind] is not None, now + AGAIN)

    def _news(self, kind: str, wanted: bool, now: float) -> bool:
        raised, until = self._written.get(kind, (None, 0.0))
        return raised is not wanted or (wanted and now >= until)
