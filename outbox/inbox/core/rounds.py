"""Which messages of a batch are run together next.

A batch is one transaction, and either all of it is committed or nothing. So a message that fails is isolated from the
others, which are run again without it:

- The listener raised, and does not state for which message: each half is run as a batch, until the message is
  alone. A message that is alone is handled as every single message is: committed, or parked.
- The listener returned a result for each message: those that failed are parked, and those that succeeded are run
  again without them. If that fails in part once more, each half of the rest is run from then on.
- It ran past its time-out, or PostgreSQL went away again and again: each message is run alone, because each try takes
  long.

A message is run at most 2 + log2(n) times as one of a batch of n, rounded up, however the listener behaves, and each
round ends at least one message or has fewer of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Round(Generic[T]):
    """Messages that are run together."""

    items: list[T]
    is_rest: bool = False
    """Whether others were taken out of it because the listener reported that they failed."""


class Rounds(Generic[T]):
    """What is left to do of one batch."""

    def __init__(self, items: Sequence[T] = ()) -> None:
        self._queue: deque[Round[T]] = deque()
        self.current: Round[T] | None = None
        """The round that has begun."""
        if items:
            self._queue.append(Round(list(items)))

    def next(self) -> Round[T] | None:
        """Begin the next round; what the one before left over was added by now."""
        self.current = self._queue.popleft() if self._queue else None
        return self.current

    def unfinished(self) -> Iterator[T]:
        """Yield what is in the round that has begun and in those that have not."""
        for each in [self.current, *self._queue]:
            if each is not None:
                yield from each.items

    def repeat(self) -> None:
        """Run the round that has begun once more, before the others."""
        if self.current is not None:
            self._queue.appendleft(self.current)
            self.current = None

    def add_alone(self, items: Iterable[T]) -> None:
        """Handle each of these alone."""
        self._queue.extend(Round([item]) for item in items)

    def add_split(self, items: Sequence[T], *, is_rest: bool = False) -> None:
        """Run each half."""
        middle = (len(items) + 1) // 2
        self._queue.extend(
            Round(list(half), is_rest=is_rest) for half in (items[:middle], items[middle:]) if half
        )

    def add_again(self, items: Sequence[T], *, is_rest: bool) -> None:
        """Run these again, as many at once as before."""
        if items:
            self._queue.append(Round(list(items), is_rest=is_rest))

    def add_rest(self, items: Sequence[T], *, is_rest: bool) -> None:
        """Run what succeeded again, without what failed; `is_rest`: it was such a rest before."""
        if is_rest:
            self.add_split(items, is_rest=True)
        else:
            self.add_again(items, is_rest=True)
