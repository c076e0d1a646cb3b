"""Pauses between attempts, longer each time up to a limit, until the caller resets them."""

from __future__ import annotations


def pause_after(attempts: int, first: float, last: float) -> float:
    """Compute the pause after a stored number of attempts: `first`, then doubled each time up to `last`."""
    return min(first * 2.0 ** min(max(attempts - 1, 0), 60), last)


class Backoff:
    """A row of pauses: `first`, then `factor` times as long each time, and `last` from then on.

    Only `reset` begins again with `first`: the caller decides what counts as a success. Not thread-safe.
    """

    __slots__ = ("_factor", "_first", "_last", "pause")

    def __init__(self, first: float, last: float, *, factor: float = 2.0) -> None:
        """Prepare a row of pauses.

        Args:
            first: Seconds of the first pause, and of the first one after a reset.
            last: Seconds of the longest pause.
            factor: How much longer than the one before it each pause is.
        """
        self._first, self._last, self._factor = first, last, factor
        self.pause = 0.0
        """Seconds of the latest pause; 0 before the first one and after a reset."""

    def next(self, longest: float | None = None) -> float:
        """Return the seconds to pause now.

        Args:
            longest: Replaces `last` for this pause.
        """
        limit = self._last if longest is None else longest
        self.pause = min(self.pause * self._factor if self.pause else self._first, limit)
        return self.pause

    def reset(self) -> None:
        """Begin again with the first pause."""
        self.pause = 0.0
