"""Counters of a producer: what became of its messages, for the application's own metrics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

COUNTERS = {
    "half_messages_total": "half messages stored",
    "committed_total": "decided COMMIT by this producer",
    "rolled_back_total": "decided ROLLBACK by this producer",
    "unknown_total": "left UNKNOWN for a check: the listener returned it, or raised",
    "exceptions_total": "of these, because the listener raised",
    "ambiguous_total": "half messages of which it is not known whether they were stored, or stored safely",
    "confirm_failed_total": "decisions that could not be stored; the check repeats them",
}
"""Every counter with its meaning."""


class Counts:
    """Counters that threads and tasks share; they only grow, from 0 at the producer's making."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = dict.fromkeys(COUNTERS, 0)

    def add(self, name: str, number: int = 1) -> None:
        """Count."""
        with self._lock:
            self._values[name] += number

    def read(self) -> Mapping[str, int]:
        """All counters at one moment."""
        with self._lock:
            return MappingProxyType(dict(self._values))

    def __getitem__(self, name: str) -> int:
        return self._values[name]
