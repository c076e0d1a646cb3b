"""What PostgreSQL has of a group, in memory: each method is one committed transaction, but for what is taken.

The inbox's own statements are proven on a real server, and by `tests/support/models/inbox_model.py`. Here they hold, so
that what goes wrong is the core's.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field

from outbox.inbox.core.full_keys import CountBehind

TOPIC = "t"


@dataclass(slots=True)
class Message:
    """A record of Kafka, and how its listener behaves."""

    number: int
    part: int
    offset: int
    key: bytes | None
    kind: str
    """`ok`, or what its listener does: see `actions.end`."""
    bad_runs: int = 0
    """How often it still does that."""


@dataclass(slots=True)
class Parked:
    """A row of `inbox_parked`."""

    id: int
    message: Message
    state: str
    attempts: int = 0
    due: float = 0.0
    locked_by: object = None


@dataclass
class Database:
    """The rows of one group."""

    inbox: set[int] = field(default_factory=set)
    applied: list[Message] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    held: set[bytes] = field(default_factory=set)
    positions: Counter[int] = field(default_factory=Counter)
    readers: dict[int, int] = field(default_factory=dict)
    """Which process reads a partition, and has not given it back."""
    runs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Counted runs that have not ended, by message: in how many processes, and the last of them."""
    rows: dict[int, object] = field(default_factory=dict)
    """Rows of the inbox in transactions that are open: who has them locked."""
    ids: int = 0
    faults: set[str] = field(default_factory=set)

    def copy(self) -> Database:
        """Return what a standby has at this moment: nothing of transactions that are open."""
        rows = [(each, each.locked_by) for each in self.parked]
        for each, _ in rows:
            each.locked_by = None
        open_, self.rows = self.rows, {}
        found = copy.deepcopy(self, {id(m): m for m in [*self.applied, *(each.message for each, _ in rows)]})
        self.rows = open_
        for each, by in rows:
            each.locked_by = by
        return found

    def take(self, message: Message, who: object) -> str:
        """Insert the row of a message in a transaction of `who`; return what became of it."""
        if self.rows.get(message.number, who) is not who:
            return "locked"
        if message.number in self.inbox:
            return "refused"
        self.rows[message.number] = who
        return "held" if message.key in self.held else "new"

    def count_run(self, message: Message, process: int) -> int:
        """Count that a run begins, and return in how many processes it has."""
        count, last = self.runs.get(message.number, (0, -1))
        self.runs[message.number] = count + (last != process), process
        return self.runs[message.number][0]

    def roll_back(self, who: object) -> None:
        """End what `who` has open."""
        self.rows = {number: by for number, by in self.rows.items() if by is not who}
        for each in self.parked:
            each.locked_by = None if each.locked_by is who else each.locked_by

    def commit(self, messages: list[Message], who: object, *, is_applied: bool = True) -> None:
        """Commit the rows of messages, with their effects."""
        for each in messages:
            if self.rows.pop(each.number, None) is not who:
                self.faults.add("a message is committed that was not taken")
            if each.number in self.inbox:
                self.faults.add("twice")
            self.inbox.add(each.number)
            self.runs.pop(each.number, None)
            if is_applied:
                self.applied.append(each)
        self.check_order()

    def park(self, message: Message, who: object, state: str, due: float) -> None:
        """Commit the row of a message, and park it."""
        self.commit([message], who, is_applied=False)
        if state != "waiting" and message.key is not None:
            self.held.add(message.key)
        self.ids += 1
        self.parked.append(Parked(self.ids, message, state, 1, due))
        self.check_order()

    def take_out(self, row: Parked, *, is_applied: bool = True) -> None:
        """Delete a parked message with its effect, and let the next one of its key follow."""
        self.parked.remove(row)
        self.runs.pop(row.message.number, None)
        if is_applied:
            self.applied.append(row.message)
        key = row.message.key
        following = [each for each in self.parked if key is not None and each.message.key == key]
        if following:
            following[0].state = "retry" if following[0].state == "waiting" else following[0].state
        elif key is not None:
            self.held.discard(key)
        self.check_order()

    def count_behind(self, per_key: int) -> CountBehind:
        """Count what waits behind messages that failed."""
        waiting = Counter(each.message.key for each in self.parked if each.state == "waiting")
        long = {(TOPIC, key): count for key, count in waiting.items() if count > per_key // 2}
        return CountBehind(len(self.held), waiting.total(), 2, long)

    def check_order(self) -> None:
        """Note whether messages of a key were applied or parked in another order than Kafka's."""
        last: dict[bytes, int] = {}
        for each in [*self.applied, *(row.message for row in self.parked)]:
            if each.key is not None:
                if each.offset <= last.get(each.key, -1):
                    self.faults.add("order")
                last[each.key] = each.offset
