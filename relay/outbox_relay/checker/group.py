"""One group inside the service: its round, the asker that fits its registration, and what it did lately.

A group has its turn on one thread at a time. When its registration changes, the old round claims nothing more, and the
new one begins when what was asked is settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from outbox.backoff import Backoff
from outbox.checking import GroupRound, Step
from outbox.checking.rounds import ConnectionContext
from outbox_relay.checker.askers.registered import Askers, Registration
from outbox_relay.text.logs import Log

log = Log("checker")

FIRST_PAUSE_S = 0.4
LAST_PAUSE_S = 5.0
CHANGE_WITHIN_S = 15.0
"""Seconds after which what an old callback was asked is left to its lease."""


class CheckedGroup:
    """A group that this process checks.

    Args:
        name: the producer group.
        registration: how it is asked now.
        askers: makes its asker.
        wake: called, from any thread, when it should have its turn.
    """

    def __init__(
        self, name: str, registration: Registration, askers: Askers, wake: Callable[[], None]
    ) -> None:
        self.name, self.wanted = name, registration
        self.retired = False
        """Set when the group has nothing left: it ends when it is idle."""
        self.ended = False
        self.draining = False
        """Set when the service stops: nothing more is claimed."""
        self.done = Step()
        """What it did since `report` was last called."""
        self.total = Step()
        """What it did since it was found."""
        self.claims_no_more = False
        """Whether it had a turn since then: no claim is under way, and none follows."""
        self.drained = False
        """The same, and nothing is out."""
        self.failures = 0
        """Turns that failed in a row."""
        self.trouble: str | None = None
        """The name of what failed the last turn; None: it did not fail, or there was none yet."""
        self.backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        """The pauses after them."""
        self._askers, self._wake = askers, wake
        self._changing_since: float | None = None
        self._start()

    @property
    def in_flight(self) -> int:
        """Half messages that are claimed and not yet settled."""
        return self._round.in_flight

    def turn(self, connection: ConnectionContext) -> float | None:
        """Do what is due; return the seconds until the next turn, or None when it has ended."""
        leaving = self.retired or self.wanted != self._registration
        draining = self.draining
        if leaving or draining:
            self._round.drain()
        step = self._round.step(connection)
        self.done = self.done.plus(step)
        self.total = self.total.plus(step)
        self.claims_no_more = draining
        self.drained = draining and not self._round.in_flight
        if not leaving:
            return step.pause
        now = time.monotonic()
        self._changing_since = self._changing_since or now
        if self._round.in_flight and now - self._changing_since < CHANGE_WITHIN_S:
            return step.pause
        self._changing_since = None
        self.stop()
        if self.retired:
            self.ended = True
            return None
        self._start()
        return 0.0

    def stop(self) -> None:
        """End its workers and close its connections."""
        self._round.stop()
        if self._asker is not None:
            self._asker.close()

    def report(self) -> None:
        """Log what it did since the last report, if anything."""
        done, self.done = self.done, Step()
        numbers = {
            name: value
            for name, value in done._asdict().items()
            if name not in ("in_flight", "more", "pause") and value
        }
        if numbers:
            log.info("checked", group=self.name, **numbers, in_flight=self.in_flight)

    def _start(self) -> None:
        self._registration = self.wanted
        self._asker = self._askers.make(self.name, self._registration)
        self._round = GroupRound(self.name, self._asker, wake=self._wake)
