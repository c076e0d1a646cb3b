"""Which messages may have ended the process of an earlier member: their runs are counted before they begin.

A listener may kill its process, whatever its message costs: out of memory, a crash in C, `os._exit`. What is counted in
the transaction of the run goes with it, so the message would come again and again, and with it all that the process
ran. So a member notes in the row of each partition that it reads it, and removes that when it gives the partition
back. A member that finds another one's name there takes over from one that was killed. The messages that ran then are
among the first ones that are not done, one of each key, as far as the other had fetched: `WATCHED` of them. The runs of
these are counted by the keeper, each in a transaction of its own that is committed before the listener is called; and
of a member that took over from one that ended well, none is.

A message whose run was counted and did not end is a suspect when the next process begins. Suspects run one at a time,
while others go on; so one that kills is the only suspect that its process ends with, and others that ran are suspects
of the next process, once. After `MOST_RUNS` counted runs, and the one before that was not counted, it is dead.

When the process dies:

- before a run is counted: nothing was run.
- between the count and the run: a run too many is counted. The dead letter states what is known, and no more.
- while a suspect runs that is not to blame, by a signal from outside for example: the same; three times in a row, with
  the same message running, it becomes a dead letter, which an operator can try again.

A retry is counted likewise: each one that failed before, and the first `FIRST_RETRIES` of a process, which are due
before it reads any partition. A run that ends, whatever its outcome, removes its count in the transaction of its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outbox.inbox.messages import Delivery

WATCHED = 2000
"""Runs of a partition that are counted: more than an earlier member can have fetched and not done."""
MOST_RUNS = 2
"""Counted runs of a delivery that did not end; there was one before them that was not counted."""
MOST_RETRY_RUNS = 3
"""Counted runs of a retry that did not end."""
FIRST_RETRIES = 100
"""Retries that are counted at the beginning of a process, also such as have not failed before."""


@dataclass(slots=True)
class _Watch:
    begun: set[int]
    """Offsets of suspects."""
    left: int = WATCHED
    """Runs that are counted yet."""


class Suspects:
    """The partitions of a member whose runs are counted, and the suspect that runs. Not thread-safe."""

    def __init__(self) -> None:
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._running: tuple[str, int, int] | None = None

    def watch(self, topic: str, partition: int, begun: Iterable[int] | None) -> None:
        """Begin with a partition: with offsets of suspects; None: the member before gave it back."""
        self._watches.pop((topic, partition), None)
        if begun is not None:
            self._watches[topic, partition] = _Watch(set(begun))

    def counts(self, delivery: Delivery) -> bool:
        """Return whether the runs of a message are counted."""
        return bool(self._watches) and self._watch_of(delivery) is not None

    def _watch_of(self, delivery: Delivery) -> _Watch | None:
        message = delivery.message
        watch = self._watches.get((message.topic, message.partition))
        return watch if watch and (watch.left > 0 or message.offset in watch.begun) else None

    def admit(self, delivery: Delivery) -> bool:
        """Begin with a message; False: it is a suspect, and another one runs. `leave` is called afterwards."""
        watch = self._watch_of(delivery)
        if watch is None or delivery.message.offset not in watch.begun:
            return True
        place = _place(delivery)
        if self._running not in (None, place):
            return False
        self._running = place
        return True

    def ran(self, delivery: Delivery) -> None:
        """Note a run that is counted."""
        if watch := self._watch_of(delivery):
            watch.left -= 1

    def leave(self, delivery: Delivery) -> bool:
        """End with a message; return whether another suspect can run now."""
        if self._running is None or self._running != _place(delivery):
            return False
        self._running = None
        return True


def _place(delivery: Delivery) -> tuple[str, int, int]:
    message = delivery.message
    return message.topic, message.partition, message.offset
