"""What a checker sees of its group, and which alarms follow from it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence

from outbox.checking.alarms import STANDS, Alarms
from outbox.checking.group_settings import GRACE
from outbox.checking.scan import Overview
from outbox.operations.remarks import shortened

FLOOD = 10_000
"""Half messages of one group that wait for a decision, from which on the alarm is raised; cleared below half."""
MOST_STRETCH = 10.0
"""How many times as long the pauses between two checks of a half message become in a flood, at most."""

MOST_SHOWN = 5
"""Half messages that an alarm names."""


def stretch_of(pending: int) -> float:
    """Compute by how much a flooded group's pauses are longer: 2 at `FLOOD` half messages, 1 at half of it.

    A group that always replies UNKNOWN would be asked `pending` questions every `max_check_interval`, the more the
    flood grows. With longer pauses the questions a second stay about as many as at the beginning of the flood, up to
    `MOST_STRETCH`.
    """
    return min(max(2 * pending / FLOOD, 1.0), MOST_STRETCH)


class GroupAlarms(Alarms):
    """The six alarms of one group, by what is seen."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(group, clock)
        self._list = f"outbox tx ls --group {shlex.quote(group)}"
        self._rolled_back_list = f"outbox message ls --group {shlex.quote(group)} --status ROLLED_BACK"
        self._missing_until = 0.0
        self._exhausted = self._exhausted_new = 0
        self._rolled_back, self._rolled_back_at = 0, 0.0
        self._heard = False
        """Whether somebody has answered since the last overview."""
        self.stretch = 1.0
        """By how much the pauses between checks are longer now, because the group is flooded."""

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
        """No listener was registered for a half message, which is due again after `seconds` at the latest."""
        self._missing_until = self._clock() + seconds
        self.set("no_checker", shortened(reason))

    def asked(self, everybody_found: bool) -> None:
        """Somebody was asked, whether asking failed or not: so there is a checker."""
        if everybody_found and self._clock() >= self._missing_until:
            self.set("no_checker", None)

    def answered(self, everybody_found: bool) -> None:
        """Somebody answered, if only UNKNOWN."""
        self._heard = True
        self.set("failing", None)
        self.set("silent", None)
        self.asked(everybody_found)

    @property
    def silence_is_over(self) -> bool:
        """Whether the group has not replied for so long that what is past its age is left to an operator."""
        return self.stood("silent") >= GRACE

    def exhausted(self, more: int) -> None:
        """Half messages became EXHAUSTED; the scan that is on its way may have passed them before."""
        self._exhausted += more
        self._exhausted_new += more
        self.set(
            "exhausted",
            f"{_halves(self._exhausted, 'wait')} for an operator; see: {self._list} --state EXHAUSTED",
        )

    def rolled_back(self, more: int) -> None:
        """Half messages were rolled back by the group's policy; they are counted until none was for `STANDS`."""
        now = self._clock()
        if now - self._rolled_back_at >= STANDS:
            self._rolled_back = 0
        self._rolled_back, self._rolled_back_at = self._rolled_back + more, now
        were = "1 half message was" if self._rolled_back == 1 else f"{self._rolled_back} half messages were"
        self.set(
            "rolled_back",
            f"{were} rolled back by the group's policy, undecided; see: {self._rolled_back_list}",
        )

    def overview(
        self, seen: Overview, *, asked: bool, able: bool | None = None, why: str | None = None
    ) -> None:
        """Draw the conclusions from a scan of the whole group.

        Args:
            seen: What the scan has counted.
            asked: Whether this checker asks the group at all.
            able: Whether it can ask now (its breaker is closed); `asked` by default.
            why: Why it does not ask, if the group has a callback that it cannot use.
        """
        heard, self._heard = self._heard, False
        if not seen.unheard or heard:
            self.set("silent", None)
        elif not (asked if able is None else able):
            self.set(
                "silent",
                f"{_halves(seen.unheard, 'are')} past the longest age without a reply: from {GRACE / 60:g} min "
                f"after this alarm was raised they are left to an operator (EXHAUSTED); see: {self._list}",
            )
        count = max(seen.exhausted, self._exhausted_new)
        self._exhausted = self._exhausted_new = 0
        if count:
            self.exhausted(count)
            self._exhausted_new = 0
        else:
            self.set("exhausted", None)
        if not self.is_unwritten("rolled_back"):
            self.set("rolled_back", None)
        if seen.pending >= FLOOD or (self.stretch > 1.0 and seen.pending >= FLOOD // 2):
            self.stretch = stretch_of(seen.pending)
            self.set(
                "flood",
                f"{_halves(seen.pending, 'wait')} for a decision, and each is asked about {self.stretch:.1f} times as "
                f"rarely; see: {self._list}",
            )
        elif seen.pending < FLOOD // 2:
            self.stretch = 1.0
            self.set("flood", None)
        if asked:
            if not seen.overdue and self._clock() >= self._missing_until:
                self.set("no_checker", None)
        elif seen.overdue:
            self.set(
                "no_checker",
                f"{_halves(seen.overdue, 'are')} overdue, and {why or 'no checker of this group asks about them'}",
            )
        else:
            self.set("no_checker", None)


def _halves(count: int, verb: str) -> str:
    """So many half messages, with the verb that goes with them."""
    if count == 1:
        return f"1 half message {'is' if verb == 'are' else verb + 's'}"
    return f"{count} half messages {verb}"
