"""Repeats: which records may come a second time, and in which order, because the relay was killed.

A relay that dies has published more than it has recorded. Its successor publishes again what was not recorded: of
each aircraft the last few flights, up to the very last, in their order, under their message ids, once. Everything
else that comes twice is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from outbox_local.demo.journal import Crash, Entry


@dataclass(slots=True)
class _Run:
    """The repeats of one aircraft."""

    last: int
    """The sequence that was repeated last."""
    until: int
    """The highest sequence that had appeared before the first repeat: with it the run ends."""


class Repeats:
    """Checks records that were read before."""

    def __init__(self, crash: Crash | None) -> None:
        self._crash = crash
        self._runs: dict[str, _Run] = {}
        self.count = 0
        """How many were explained."""

    def judge(self, entry: Entry, first: int, again: int, arrived: int) -> str | None:
        """Return why a repeat is not explained, or None when it is.

        Args:
            entry: the flight.
            first: when its first appearance was published, in milliseconds.
            again: when this one was.
            arrived: the aircraft's highest sequence so far.
        """
        crash = self._crash
        if crash is None or first > crash.at * 1000 or again < int(crash.at * 1000):
            return "and no kill of the relay lies between the two"
        run = self._runs.get(entry.aircraft)
        if run is None:
            self._runs[entry.aircraft] = _Run(entry.sequence, arrived)
        elif entry.sequence != run.last + 1:
            return f"as number {entry.sequence} of its aircraft, where number {run.last} was repeated before"
        else:
            run.last = entry.sequence
        self.count += 1
        return None

    def unfinished(self, aircraft: str) -> str | None:
        """Return what an aircraft's run of repeats lacks at a point where it has to be complete; None: nothing."""
        run = self._runs.get(aircraft)
        if run is None or run.last >= run.until:
            return None
        found = f"the repeats of its aircraft {aircraft} ended with number {run.last}, not with {run.until}"
        run.until = run.last  # said once
        return found

    def aircraft(self) -> list[str]:
        """The aircraft that have repeats."""
        return list(self._runs)
