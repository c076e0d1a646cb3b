"""What one thread has in its hands, and what becomes of it after each outcome.

A thread takes messages, tries those of `next` in one transaction, and notes the outcome by one of these:

- `finish`, `note`: they were dealt with;
- `failed`: the listener failed. A message that is alone is parked next, and each half of others is run;
- `locked`: another session has a row or a key of theirs, or the key is full. Their keys wait, and the thread goes on;
- `unconnected`: the thread gets no connection. All that it has waits in front of its keys, for threads that have one;
- `interrupted`: PostgreSQL ended the transaction. The same comes next, and counts no attempt.

When a thread has ended, or is given up because its listener runs past the time-out, a `successor` gets copies of all
that was left. What the listener of a thread that was given up returns is too late (`settle`): which
message of several made it hang is not known, so the successor runs each alone, and the next one that hangs is.

While a transaction is committed the next message may be taken behind it (`take_ahead`). It waits here, and for the
successor it is as if it had not been taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Any

from outbox.inbox.core.partitions import Partitions
from outbox.inbox.core.rounds import Rounds
from outbox.inbox.failures import Failure, reported
from outbox.inbox.messages import Attempt, Delivery

MOST_INTERRUPTIONS = 5
"""A message during which PostgreSQL went away so often in a row is to blame itself: it is a failed attempt."""


@dataclass(slots=True)
class Work:
    """A message in the hands of a thread, with the latest attempt to apply it.

    If the thread is given up or ends by itself, the next one gets all of it: a listener whose failure is known does not
    run again before that is parked.
    """

    key: Hashable
    delivery: Delivery
    attempt: Attempt | None = None
    failure: Failure | None = None
    """Why the message is parked; None: its listener has not failed, and runs."""
    interruptions: int = 0
    """How often in a row PostgreSQL ended its transaction."""

    @classmethod
    def of(cls, key: Hashable, delivery: Delivery) -> Work:
        """Begin with a message that was taken, or go on with one that was given back."""
        return cls(key, delivery, delivery.attempt, delivery.failure, delivery.interruptions)

    def left(self, *, was_locked: bool = False) -> Delivery:
        """Return the message with what is known of it, to be given back."""
        return replace(
            self.delivery,
            failure=self.failure,
            attempt=self.attempt,
            interruptions=self.interruptions,
            was_locked=was_locked or self.delivery.was_locked,
        )


@dataclass(slots=True)
class BatchOutcome:
    """What became of the messages of a batch, each by its place in it."""

    done: list[int] = field(default_factory=list)
    """They need nothing more."""
    applied: int = 0
    """How many of them have an effect; the listener discarded the others."""
    refused: list[int] = field(default_factory=list)
    """The group had taken them over before."""
    alone: list[int] = field(default_factory=list)
    """To be handled singly: their keys are held, or it takes a closer check why they are refused."""
    again: list[int] = field(default_factory=list)
    """To be run again, because their effects were rolled back with those of others."""
    failed: dict[int, Failure] = field(default_factory=dict)
    """To be parked: the listener reported that they failed."""


class Interruption(Enum):
    """What a thread does after an interruption."""

    PAUSE = "pause"
    """Wait a moment; the same comes next."""
    GO_ON = "go on"
    """Something of one of several messages cannot be stored, so each half comes next."""
    BLAME = "blame"
    """If PostgreSQL is up, the messages are to blame; else wait a moment."""


@dataclass(slots=True)
class Running:
    """A listener that runs, since when, and in which session of PostgreSQL."""

    since: float
    delivery: Delivery
    session: Any = None


class Watch:
    """Whether the listener of a thread runs past its time-out: then the thread decides nothing any more."""

    def __init__(self) -> None:
        self.running: Running | None = None
        self.given_up = False

    def give_up(self, now: float, timeout: float) -> Running | None:
        """Give the thread up if its listener runs past the time-out; return what it runs."""
        running = self.running
        if running is None or self.given_up or now - running.since <= timeout:
            return None
        self.given_up = True
        return running

    def settle(self) -> bool:
        """Note that the listener has returned; False: too late, another thread has its message."""
        if not self.given_up:
            self.running = None
        return not self.given_up


class Hands(Watch):
    """The messages of one thread. Not thread-safe."""

    def __init__(self, partitions: Partitions) -> None:
        super().__init__()
        self._partitions = partitions
        self._rounds: Rounds[Work] = Rounds()
        self._ahead: Work | None = None

    def take(self, taken: Iterable[tuple[Hashable, Delivery]]) -> None:
        """Begin with messages: together, but for those of which more is known."""
        works = [Work.of(*each) for each in taken]
        self._rounds = Rounds([work for work in works if not self._is_alone(work)])
        self._rounds.add_alone(work for work in works if self._is_alone(work))

    def _is_alone(self, work: Work) -> bool:
        is_counted = self._partitions.suspects.counts(work.delivery)
        return work.failure is not None or work.delivery.was_locked or is_counted

    def next(self, now: float) -> list[Work]:
        """Return what is run next, in one transaction; none: all is done, or the thread was given up."""
        while not self.given_up and (begun := self._rounds.next()) is not None:
            for work in begun.items:
                if not self._partitions.is_current(work.delivery):
                    self._end(work, done=False)
            begun.items = [work for work in begun.items if self._partitions.is_current(work.delivery)]
            if len(begun.items) == 1 and not self._partitions.suspects.admit(begun.items[0].delivery):
                self._partitions.give_back(begun.items[0].key, begun.items[0].left(), since=now)
            elif begun.items:
                return begun.items
        return []

    def _begun(self) -> list[Work]:
        return self._rounds.current.items if self._rounds.current else []

    def _end(self, work: Work, *, done: bool) -> None:
        self._partitions.finish(work.key, work.delivery, done=done)
        self._leave(work)

    def _leave(self, work: Work) -> None:
        if self._partitions.suspects.leave(work.delivery):
            self._partitions.ready(inf)  # others that were suspects, too

    def repeat(self) -> None:
        """Let the same come next."""
        self._rounds.repeat()

    def finish(self) -> None:
        """End the message that was alone: it needs nothing more."""
        for work in self._begun():
            self._end(work, done=True)
        self._rounds.current = None

    def note(self, outcome: BatchOutcome) -> int:
        """End what is done, and note what is run next; return how many were refused."""
        works, is_rest = self._begun(), bool(self._rounds.current and self._rounds.current.is_rest)
        # One that was tried before may have been committed by the listener itself, which is checked when it is alone.
        tried = [place for place in outcome.refused if works[place].attempt is not None]
        refused = [place for place in outcome.refused if place not in tried]
        for place in [*outcome.done, *refused]:
            self._end(works[place], done=True)
        self._rounds.add_alone(works[place] for place in [*outcome.alone, *tried])
        for place, failure in outcome.failed.items():
            works[place].failure = failure
            self._rounds.add_alone([works[place]])
        again = [works[place] for place in outcome.again]
        if outcome.failed or outcome.done:
            self._rounds.add_rest(again, is_rest=is_rest)
        else:
            self._rounds.add_again(again, is_rest=is_rest)
        self._rounds.current = None
        return len(refused)

    def failed(self, failure: Failure) -> None:
        """Note that the listener failed."""
        if len(works := self._begun()) == 1:
            works[0].failure = failure
            self.repeat()
        else:
            self._split()

    def _split(self) -> None:
        if (begun := self._rounds.current) is not None:
            self._rounds.add_split(begun.items, is_rest=begun.is_rest)
            self._rounds.current = None

    def locked(self, now: float) -> None:
        """Note that others have something of these locked. Which one is not known: each comes again, alone."""
        for work in self._begun():
            self._partitions.give_back(work.key, work.left(was_locked=True), since=now)
            self._leave(work)
        self._rounds.current = None

    def unconnected(self) -> None:
        """Give all back: another thread may have a connection."""
        self.give_ahead_back()
        for work in self._rounds.unfinished():
            self._partitions.give_back(work.key, work.left())
            self._leave(work)
        self._rounds = Rounds()

    def interrupted(self, defect: str | None = None) -> Interruption:
        """Note that PostgreSQL ended the transaction; `defect`: what is wrong with a message, if PostgreSQL is well."""
        works = self._begun()
        for work in works:
            work.interruptions += 1
            if defect is not None and work.failure is not None:
                work.failure = reported(defect)  # without what could not be stored
        if defect is not None and len(works) > 1:
            # It keeps its thread busy when it is alone, as it would without batches, so the others go first.
            self._split()
            return Interruption.GO_ON
        is_suspicious = any(work.interruptions >= MOST_INTERRUPTIONS and not work.failure for work in works)
        self.repeat()
        return Interruption.BLAME if is_suspicious else Interruption.PAUSE

    def blame(self, failure: Failure) -> None:
        """Note that PostgreSQL is up after many interruptions: park a message that is alone, and run others alone."""
        begun = self._rounds.next()
        works = begun.items if begun else []
        if len(works) == 1:
            works[0].failure = failure
        for work in works:
            work.interruptions = 0 if len(works) > 1 else work.interruptions
        self._rounds.add_alone(works)
        self._rounds.current = None

    # Ahead, and afterwards ------------------------------------------------------------------------------------

    def take_ahead(self, now: float) -> Work | None:
        """Take a message to come after the current one; None: no key is ready, or the thread was given up."""
        if not self.given_up and (taken := self._partitions.take(now)):
            self._ahead = Work.of(*taken[0])
        return self._ahead

    def give_ahead_back(self) -> None:
        """Let the message that was taken ahead wait in front of its key again."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._partitions.give_back(ahead.key, ahead.delivery)

    def begin_ahead(self) -> Work | None:
        """Let the message that was taken ahead come next; None: nothing was, or its thread was given up."""
        if self.given_up or self._ahead is None:
            return None
        begun, self._ahead = self._ahead, None
        self._rounds.add_alone([begun])
        return begun

    def successor(self, failure: Failure | None) -> Hands:
        """Return hands with all that is left in these, which decide nothing any more; may be called again.

        Args:
            failure: why the listener was given up; None: its thread has ended.
        """
        self.give_ahead_back()
        begun = self._begun()
        hung = begun[0] if len(begun) == 1 else None
        heir = Hands(self._partitions)
        # Copies: the thread that was given up may still write into its own.
        heir._rounds.add_alone(
            replace(work, failure=work.failure or (failure if work is hung else None))
            for work in self._rounds.unfinished()
        )
        return heir

    @property
    def works(self) -> Sequence[Work]:
        """All that the thread has, but for what it has taken ahead."""
        return list(self._rounds.unfinished())
