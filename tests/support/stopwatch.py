"""A stopwatch for deadlines that stands still while the machine does not let this process run."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

TICK_S = 0.01


class Stopwatch:
    """Counts hundredths of a second on a thread of its own: `with Stopwatch() as watch: …; watch.seconds`.

    What delays the code whose deadline is looked at, other processes or the disk, delays this thread as well. So a
    limit says something of the code, and nothing of the machine. Time that another process wastes counts in full.
    """

    def __init__(self) -> None:
        self._ticks = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._count, name="stopwatch", daemon=True)

    @property
    def seconds(self) -> float:
        """How long it has run; never more than the time that has passed."""
        return self._ticks * TICK_S

    def _count(self) -> None:
        while not self._ends.wait(TICK_S):
            self._ticks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
