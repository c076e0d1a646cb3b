"""Two processes of an orderly group, the partitions that they share, and what the threads of each are doing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from outbox.inbox.core.partitions import Limits
from outbox.inbox.messages import ConsumedMessage, Delivery, Source
from tests.support.inbox_search.database import TOPIC, Database, Message, Parked

NOW = datetime(2026, 11, 30, tzinfo=UTC)
PARTS = 3
THREADS = 3
TIMEOUT = 10.0
LIMITS = Limits(messages=4, size=1 << 20, width=8, behind_key=2, behind_group=12)


class Core(NamedTuple):
    """The classes of the core that is searched."""

    Partitions: Any
    Hands: Any
    Retries: Any


@dataclass
class Thread:
    """A thread for deliveries."""

    hands: Any
    most: int
    works: list[Any] = field(default_factory=list)
    """What is in the transaction that is open, if there is one."""
    asleep: float = 0.0
    is_committing: bool = False
    """Whether its commit was sent, and with it maybe the row of the next message."""

    @property
    def is_running(self) -> bool:
        """Whether a listener runs."""
        return bool(self.works)


@dataclass(eq=False)
class Seeker:
    """A retry thread."""

    row: Parked | None = None
    retry: Any = None


class Process:
    """One member."""

    def __init__(self, number: int, core: Core, rng: random.Random) -> None:
        self.number, self.core = number, core
        self.partitions = core.Partitions(orderly=True, limits=LIMITS)
        self.threads = [
            Thread(core.Hands(self.partitions), rng.choice((1, 1, 3))) for _ in range(rng.randint(1, THREADS))
        ]
        self.zombies: list[Thread] = []
        self.retries = core.Retries()
        self.seekers = [Seeker() for _ in range(rng.randint(1, 2))]
        self.reads: dict[int, int] = {}
        """The offset that is fetched next, of each partition that is read."""
        self.closing: dict[int, float] = {}
        """Partitions that are being given away, until when what runs is waited for."""
        self.paused: set[int] = set()
        self.lost: set[int] = set()
        """Partitions that are another member's, which this one does not know yet."""
        self.failed: set[tuple[int, int]] = set()
        """Messages whose failure is known, with the epochs of their partitions: they are to be parked."""
        self.is_stale = False
        """Whether another server has taken over, and this process has not noticed it."""


class World:
    """Everything."""

    def __init__(self, core: Core, rng: random.Random) -> None:
        self.core, self.rng = core, rng
        self.now = 1000.0
        self.db = Database()
        self.logs: list[list[Message]] = [[] for _ in range(PARTS)]
        self.messages: list[Message] = []
        self.processes = [Process(number, core, rng) for number in range(2)]
        self.started = 2
        self.owner: dict[int, Process | None] = dict.fromkeys(range(PARTS))
        self.topic_paused: set[int] = set()
        self.locked: set[int] = set()
        """Messages whose rows another session has locked."""
        self.snapshot = self.db.copy()
        self.discarded: set[int] = set()

    def produce(self, part: int, key: bytes | None, kind: str, bad_runs: int) -> Message:
        """Append a message to a partition."""
        log = self.logs[part]
        offset = log[-1].offset + self.rng.choice((1, 1, 2)) if log else 0
        message = Message(len(self.messages), part, offset, key, kind, bad_runs)
        log.append(message)
        self.messages.append(message)
        return message

    def end_of(self, part: int) -> int:
        """Return the offset behind the last message."""
        return self.logs[part][-1].offset + 1 if self.logs[part] else 0

    def delivery(self, message: Message, epoch: int) -> Delivery:
        """Return a message as it is fetched."""
        consumed = ConsumedMessage(
            UUID(int=message.number), TOPIC, message.part, message.offset, message.key, b"", (), NOW, NOW
        )
        return Delivery(consumed, 1, date(2026, 11, 30), b"", message.key, epoch)

    def of(self, delivery: Delivery) -> Message:
        """Return the message of a delivery."""
        return self.messages[delivery.message.message_id.int]

    def open(self, process: Process, part: int) -> None:
        """Let a process read a partition from its position on."""
        before, self.db.readers[part] = self.db.readers.get(part), process.number
        begun = None
        if before not in (None, process.number):
            begun = [m.offset for m in self.logs[part] if m.number in self.db.runs]
        if before is None or begun is not None:
            kept = {m.number for m in self.logs[part] if begun and m.offset in begun}
            for message in self.logs[part]:
                if message.number not in kept and message.number not in self.db.inbox:
                    self.db.runs.pop(message.number, None)
        partitions = process.partitions
        partitions.suspects.watch(TOPIC, part, begun)
        start = self.db.positions[part]
        assert partitions.open((TOPIC, part), Source(1, "c/t"), start, 0, partitions.server)
        process.reads[part] = start
        process.closing.pop(part, None)
        process.paused.discard(part)
        process.lost.discard(part)
        self.owner[part] = process

    def store(self, process: Process, offsets: list[Any]) -> None:
        """Store positions in the database; none passes what it does not have."""
        for each in offsets:
            if each.server == process.partitions.server and not process.is_stale:
                self.db.positions[each.part] = max(self.db.positions[each.part], each.offset)
        for part, log in enumerate(self.logs):
            if any(m.offset < self.db.positions[part] and m.number not in self.db.inbox for m in log):
                self.db.faults.add("lost")
