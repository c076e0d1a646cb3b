"""A clean history of a run, made from a seed, for tests that plant one fault in it."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from outbox_relay.proving.history import (
    Fate,
    HistoryFindings,
    Outage,
    ReadRecord,
    RecordedPlace,
    RunHistory,
    SentMessage,
    check_history,
)

TOPIC = "t"
PARTITIONS = 3
KEYS = 6
FATES = (
    *(Fate.COMMITTED,) * 12,
    Fate.ROLLED_BACK,
    Fate.UNDECIDED,
    Fate.UNKNOWN,
)


@dataclass
class Planted:
    """What `check_history` is given, to be changed by a test."""

    chance: random.Random
    sent: list[SentMessage] = field(default_factory=list)
    read: list[ReadRecord] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    places: list[RecordedPlace] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    allows_unknown_offsets: bool = False

    def findings(self) -> HistoryFindings:
        history = RunHistory(
            self.sent,
            self.read,
            self.applied,
            self.places,
            self.outages,
            allows_unknown_offsets=self.allows_unknown_offsets,
        )
        return check_history(history)

    def found(self) -> dict[str, list[str]]:
        """The kinds of offences that were found, with their messages."""
        findings = self.findings()
        return {str(kind): findings.ids(kind) for kind, ids in findings.found.items() if ids}

    def message(self, fate: Fate, *, is_half: bool | None = None) -> SentMessage:
        """Any message of this fate."""
        return self.chance.choice(
            [one for one in self.sent if one.fate is fate and is_half in (None, one.is_half)]
        )

    def record(self) -> ReadRecord:
        """Any record that appeared for the first time, of a message that was surely committed."""
        sure = {one.message_id for one in self.sent if one.fate is Fate.COMMITTED}
        first: dict[str, ReadRecord] = {}
        for record in self.read:
            if record.message_id in sure:
                first.setdefault(record.message_id, record)
        return self.chance.choice(list(first.values()))

    def neighbours(self) -> tuple[int, int]:
        """Places, in what was read, of two messages of one key that follow one another."""
        newest: dict[str, int] = {}
        found = []
        for place, record in enumerate(self.read):
            if record.key in newest and self._appears_once(record, self.read[newest[record.key]]):
                found.append((newest[record.key], place))
            newest[record.key] = place
        return self.chance.choice(found)

    def _appears_once(self, *records: ReadRecord) -> bool:
        ids = [record.message_id for record in self.read]
        counters = {one.message_id: one.counter for one in self.sent}
        return all(ids.count(one.message_id) == 1 and counters[one.message_id] for one in records)


def partition_of(key: str) -> int:
    """Return where the messages of a key are."""
    return int(key[1:]) % PARTITIONS


def planted(seed: int, *, messages: int = 120) -> Planted:
    """Make a history in which every promise was kept, with an outage in its midst after which messages came again."""
    chance = random.Random(seed)
    made = Planted(chance)
    counters: dict[str, int] = defaultdict(int)
    offsets: dict[int, int] = defaultdict(int)
    outage = Outage(messages / 2, messages / 2 + 5)
    made.outages.append(outage)

    def publish(message: SentMessage, now: float) -> None:
        partition = partition_of(message.key)
        record = ReadRecord(
            TOPIC,
            partition,
            offsets[partition],
            message.key,
            message.message_id,
            None if message.is_half else message.counter,
            published=now + 0.1,
            received=now + 0.2,
        )
        offsets[partition] += 1
        made.read.append(record)

    for number in range(messages):
        key, is_half = f"k{chance.randrange(KEYS)}", chance.random() < 0.3
        fate = chance.choice(FATES)
        if fate is Fate.UNDECIDED:
            is_half = True
        is_there = fate is Fate.COMMITTED or (fate is Fate.UNKNOWN and chance.random() < 0.5)
        counter = None if fate is Fate.UNDECIDED else counters[key] + 1
        if is_there:
            counters[key] += 1
        message = SentMessage(f"m{number}", TOPIC, key, fate, counter, float(number), is_half)
        made.sent.append(message)
        if is_there:
            publish(message, number)
            made.places.append(RecordedPlace(message.message_id, *_place(made.read[-1])))
            made.applied.append(message.message_id)
        if number == messages // 2:
            by_id = {one.message_id: one for one in made.sent}
            for record in made.read[-5:]:
                publish(by_id[record.message_id], number + 1)
    chance.shuffle(made.places)
    chance.shuffle(made.sent)
    return made


def _place(record: ReadRecord) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset
