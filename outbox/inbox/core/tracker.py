"""Which offsets of a partition are not done yet, and so the offset that may be stored."""

from __future__ import annotations


class OffsetTracker:
    """The incomplete offsets of one partition, from its assignment until it is revoked.

    Offsets arrive in ascending order and are done in any. There may be gaps between them: the broker's own records of
    transactions take offsets, compaction takes records away. So `n + 1` is never expected after `n`. Not thread-safe.
    """

    __slots__ = ("_done", "_incomplete", "next")

    def __init__(self, start: int) -> None:
        """Begin where reading begins."""
        self.next = start
        """The offset that is read next: all below it were seen."""
        self._incomplete: dict[int, None] = {}
        self._done = start
        """Behind the highest offset that is done."""

    def add(self, offset: int) -> bool:
        """Note an offset that arrived; False: it was seen before and must not be handled."""
        if offset < self.next:
            return False
        self._incomplete[offset] = None
        self.next = offset + 1
        return True

    def done(self, offset: int) -> None:
        """Note that an offset needs nothing more. One that is not incomplete is left alone."""
        if offset in self._incomplete:
            del self._incomplete[offset]
            self._done = max(self._done, offset + 1)

    def advance(self, position: int) -> None:
        """Note that reading has passed everything below this position, also control records."""
        self.next = max(self.next, position)

    @property
    def safe(self) -> int:
        """The offset that may be stored: everything below it is done."""
        return next(iter(self._incomplete), self.next)

    @property
    def incomplete(self) -> int:
        """How many offsets are not done."""
        return len(self._incomplete)

    @property
    def width(self) -> int:
        """How many offsets lie between the lowest that is not done and the highest that is: they would come again."""
        return max(0, self._done - self.safe)
