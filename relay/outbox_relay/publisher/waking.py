"""When the topics that are parked in lanes of a session are asked about again, and which of them can be published to.

A topic that Kafka does not take is asked about at once, after 2 s, and later each time, up to a minute; also whenever
the registry has changed, because a paused topic goes on by that. What was asked on a thread decides only that the topic
is tried: its drain reads it once more, and begins with one message alone.

Where the relay may not read min.insync.replicas, and not all replicas are in sync, only a try shows whether Kafka takes
messages. It holds up a lane for --ack-timeout, so it is made when more replicas are in sync than before, when the
registry has changed, and besides after a minute, and later each time, up to an hour.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from outbox.backoff import Backoff
from outbox_relay.publisher.stops import RETRY_FIRST_S, RETRY_LAST_S

TRIAL_FIRST_S = 60.0
TRIAL_LAST_S = 3600.0


@dataclass(slots=True)
class _NextTry:
    """When a topic is asked about again, in monotonic seconds."""

    at: float
    backoff: Backoff


@dataclass(slots=True)
class _Trial:
    """How many replicas of a topic were missing when it was read last, and when it is tried though none came back."""

    missing: int
    at: float
    backoff: Backoff


@dataclass(slots=True)
class Waking:
    """The parked topics of a session."""

    open: set[str] = field(default_factory=set)
    """Those that can be published to, as far as is known."""
    generation: int | None = None
    """The registry's, when they were read last; see topic_changes.py."""
    _change: int | None = None
    _waits: dict[str, _NextTry] = field(default_factory=dict)
    _locked: dict[int, float] = field(default_factory=dict)
    """The rows of lanes and topics that another session held: until when they are passed over, monotonic."""
    _trials: dict[str, _Trial] = field(default_factory=dict)
    """Of topics that may lack replicas."""
    _failed: dict[int, int] = field(default_factory=dict)
    """The rows of lanes and topics whose drain failed, by their numbers: which failure that was."""

    @property
    def names(self) -> Set[str]:
        """The topics that are parked in some lane."""
        return self._waits.keys()

    def follow(self, parked: Iterable[tuple[int, str]], change: int | None = None) -> None:
        """Note which topics are parked now, with their lanes; nothing, at the same change of them as before.

        Asked in each turn, and they may be thousands.
        """
        if change is not None and change == self._change:
            return
        self._change = change
        names = {topic for _, topic in parked}
        if names == self._waits.keys():
            return
        self.open &= names
        self._waits = {name: wait for name, wait in self._waits.items() if name in names}
        self._trials = {name: trial for name, trial in self._trials.items() if name in names}
        for name in names - self._waits.keys():
            # At once: it may be known from another relay, for which it was parked.
            self._waits[name] = _NextTry(time.monotonic(), Backoff(RETRY_FIRST_S, RETRY_LAST_S))
        if not names:
            self._failed.clear()
            self._locked.clear()

    def due(self, now: float) -> set[str]:
        """Return the topics to ask about now."""
        return {name for name, wait in self._waits.items() if now >= wait.at and name not in self.open}

    def note(
        self, found: Mapping[str, bool], generation: int | None, missing: Mapping[str, int] | None = None
    ) -> None:
        """Note which topics can be published to, as was read at a generation of the registry.

        `missing`: of topics that perhaps cannot, how many replicas are not in sync.

        One that was read before its time, because a new producer reads all topics for example, waits on: each try of a
        topic that refuses its messages ends a producer.
        """
        now = time.monotonic()
        due: Set[str] = self.due(now)
        is_changed = False
        if generation not in {None, self.generation}:
            is_changed = self.generation is not None
            self.generation = generation
            due = self._waits.keys()
        for name in due & found.keys():
            is_worth_it = self._is_worth_a_try(name, 0 if missing is None else missing.get(name, 0), now)
            if found[name] and (is_changed or is_worth_it):
                self.open.add(name)
            else:
                self.close(name)

    def _is_worth_a_try(self, name: str, missing: int, now: float) -> bool:
        if not missing:
            self._trials.pop(name, None)
            return True
        trial = self._trials.get(name)
        if trial is None:
            backoff = Backoff(TRIAL_FIRST_S, TRIAL_LAST_S)
            self._trials[name] = _Trial(missing, now + backoff.next(), backoff)
            return False
        is_better, trial.missing = missing < trial.missing, missing
        if now >= trial.at:
            trial.at = now + trial.backoff.next()
            return True
        return is_better

    def close(self, name: str) -> None:
        """Ask about a topic again later: it could not be published to."""
        self.open.discard(name)
        if (wait := self._waits.get(name)) is not None:
            wait.at = time.monotonic() + wait.backoff.next()

    def fail(self, name: str, number: int) -> None:
        """Note that the drain of a topic failed in a lane: the next try is that of another one."""
        self._failed[number] = max(self._failed.values(), default=0) + 1
        self.close(name)

    def pass_over(self, number: int, seconds: float) -> None:
        """Try other rows, and keys, before this one, which another session holds for as long as it likes."""
        self._locked[number] = time.monotonic() + seconds

    def first(self, numbers: Collection[int]) -> int | None:
        """Return of the rows of open topics the one to try first."""
        now = time.monotonic()
        free = (number for number in numbers if now >= self._locked.get(number, now))
        return min(free, key=lambda number: self._failed.get(number, 0), default=None)
