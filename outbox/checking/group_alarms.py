"""What a checker sees of its group, and which alarms follow from it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from outbox.checking.alarms import Alarms
from outbox.checking.walk import Overview
from outbox.resolution import shortened

FLOOD = 10_000
"""Half messages of one group that wait for a decision, from which on its operators are told; cleared below half."""

MOST_SHOWN = 5
"""Half messages that an alarm names."""


class GroupAlarms(Alarms):
    """The four alarms of one group, by what is seen."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(group, clock)
        self._list = f"outbox tx ls --group {shlex.quote(group)}"
        self._missing_until = 0.0
        self._exhausted = self._exhausted_new = 0

    def failing(self, reason: str | None, stuck: Sequence[int] = ()) -> None:
        """The circuit breaker is open, and why, or None; calls about the half messages `stuck` do not return."""
        parts = []
        if stuck:
            shown = ", ".join(map(str, stuck[:MOST_SHOWN])) + (", …" if len(stuck) > MOST_SHOWN else "")
            halves = f"half message{'s' if len(stuck) > 1 else ''} {shown}"
            calls = "1 call has" if len(stuck) == 1 else f"{len(stuck)} calls have"
            parts.append(f"{calls} not returned, about {halves}: each keeps a thread until it does")
        if reason is not None:
            parts.append(f"checks fail, and are paused: {reason}")
        self.set("failing", shortened("; ".join(parts)))

    def well(self) -> None:
        """The circuit breaker is closed, and no call hangs."""
        self.set("failing", None)

    def no_checker(self, reason: str, seconds: float) -> None:
        """Nobody could be asked about a half message, which is seen again at the latest after `seconds`."""
        self._missing_until = self._clock() + seconds
        self.set("no_checker", shortened(reason))

    def answered(self, everybody_found: bool) -> None:
        """Somebody answered, if only UNKNOWN."""
        self.set("failing", None)
        if everybody_found and self._clock() >= self._missing_until:
            self.set("no_checker", None)

    def exhausted(self, more: int) -> None:
        """Half messages became EXHAUSTED; the walk that is on its way may have passed them before."""
        self._exhausted += more
        self._exhausted_new += more
        self.set(
            "exhausted",
            f"{_halves(self._exhausted, 'wait')} for an operator; see: {self._list} --state EXHAUSTED",
        )

    def overview(self, seen: Overview, *, asked: bool) -> None:
        """The whole group was walked over; `asked` tells whether this checker can ask at all."""
        count = max(seen.exhausted, self._exhausted_new)
        self._exhausted = self._exhausted_new = 0
        if count:
            self.exhausted(count)
            self._exhausted_new = 0
        else:
            self.set("exhausted", None)
        if seen.pending >= FLOOD:
            self.set("flood", f"{_halves(seen.pending, 'wait')} for a decision; see: {self._list}")
        elif seen.pending < FLOOD // 2:
            self.set("flood", None)
        if not asked:
            self.set(
                "no_checker",
                f"{_halves(seen.overdue, 'are')} overdue, and no checker of this group asks about them"
                if seen.overdue
                else None,
            )


def _halves(count: int, verb: str) -> str:
    """So many half messages, with the verb that goes with them."""
    if count == 1:
        return f"1 half message {'is' if verb == 'are' else verb + 's'}"
    return f"{count} half messages {verb}"
