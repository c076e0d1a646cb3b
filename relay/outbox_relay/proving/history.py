"""The history checker: what consumers read and applied, against what the producers know that they sent.

A core without I/O. It gets facts and counts what contradicts the promises; it reads no server, and least of all the
tables by which the outbox itself works. Times are seconds since 1970 of one machine's clock.

What a producer knows is its journal: a message that was committed has to arrive, once and in the order of its key; one
that was rolled back must never be seen, and neither must a half message before it is decided. Where the answer to a
COMMIT never came, both are right, until the counters of other messages settle it: a business row that each transaction
of a key locks gives them the numbers 1, 2, 3 …, so a number that is followed by another was committed by somebody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple


class Fate(StrEnum):
    """What a producer knows of a message."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDECIDED = "undecided"
    """A half message whose commit was never sent."""
    UNKNOWN = "unknown"
    """COMMIT was sent, and its answer never came."""


class SentMessage(NamedTuple):
    """One message, as its producer's journal has it."""

    message_id: str
    topic: str
    key: str
    fate: Fate
    counter: int | None = None
    """The number that the locked row of its key gave it; None if its key has no such row."""
    ending: float = 0.0
    """Before the COMMIT was sent that makes it visible."""
    is_half: bool = False


class ReadRecord(NamedTuple):
    """One record, as a consumer with isolation.level=read_committed got it from Kafka."""

    topic: str
    partition: int
    offset: int
    key: str
    message_id: str
    counter: int | None = None
    """From its body; None for a half message, which is sent before its counter is known."""
    published: float = 0.0
    """The record's own time, by the relay's clock."""
    received: float = inf


class RecordedPlace(NamedTuple):
    """Where PostgreSQL's publication rows have a message."""

    message_id: str
    topic: str
    partition: int
    offset: int | None
    """None: not known, of a batch of exactly-once that was proven after a crash."""


class Outage(NamedTuple):
    """A time in which a relay died or stood still: what it had sent and not recorded may be sent again."""

    at: float
    until: float


ALWAYS = (Outage(0.0, inf),)
"""For a history whose faults are not known."""


class Offence(StrEnum):
    """The ways in which a history breaks a promise."""

    LOST = "lost"
    GHOST = "ghost"
    DUPLICATE = "duplicate"
    REORDERED = "reordered"
    EARLY = "early"
    MISPLACED = "misplaced"
    UNACCOUNTED = "unaccounted"


PROMISES = {
    Offence.LOST: "every committed message arrived, and was applied",
    Offence.GHOST: "nothing arrived that was rolled back, or that no producer sent",
    Offence.DUPLICATE: "nothing arrived twice that may not, and nothing was applied twice",
    Offence.REORDERED: "the messages of each key came in the order of its counter, in one partition",
    Offence.EARLY: "no message was seen before the commit that decides it",
    Offence.MISPLACED: "each publication row names the offset at which the record is",
    Offence.UNACCOUNTED: "the producers' journals have each counter of a key once",
}


class RunHistory(NamedTuple):
    """All that is known of one run."""

    sent: Sequence[SentMessage]
    read: Iterable[ReadRecord]
    """What each reader got; of one partition in the order of offsets."""
    applied: Sequence[str] | None = None
    """The message ids in the order in which the inbox's listener committed their effects; None: there was no inbox."""
    places: Iterable[RecordedPlace] | None = None
    """What PostgreSQL recorded as published; None: not read."""
    outages: Sequence[Outage] = ALWAYS
    """When a message may come again. Empty for exactly-once: never."""
    allows_unknown_offsets: bool = False
    """Whether a publication row may name a partition only, as those of exactly-once may."""


class HistoryFindings:
    """What a history breaks: for each offence the messages, and where."""

    def __init__(self) -> None:
        self.found: dict[Offence, dict[str, str]] = {offence: {} for offence in Offence}
        self.checked: dict[Offence, int] = dict.fromkeys(Offence, 0)
        self.repeats = 0
        """Records that came again and were allowed to."""

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.found.values())

    def offend(self, offence: Offence, message_id: str, where: str) -> None:
        """Note one; a message offends once in each way."""
        self.found[offence].setdefault(message_id, where)

    def ids(self, offence: Offence) -> list[str]:
        """Return the messages that offend in this way, in the order of finding."""
        return list(self.found[offence])


def check_history(history: RunHistory) -> HistoryFindings:
    """Compare what arrived with what was sent, and count what contradicts the promises."""
    findings = HistoryFindings()
    sent = _settled(history.sent, findings)
    reading = _Reading(sent, history.outages, findings)
    for record in history.read:
        reading.take(record)
    if history.applied is not None:
        _check_applied(history.applied, sent, reading.places.keys(), findings)
    _check_arrived(sent, reading.places.keys(), findings)
    if history.places is not None:
        _check_places(history, sent, reading.places, findings)
    return findings


class _Reading:
    """Takes one record after the other."""

    def __init__(
        self, sent: dict[str, SentMessage], outages: Sequence[Outage], findings: HistoryFindings
    ) -> None:
        self._sent, self._outages, self._findings = sent, outages, findings
        self.places: dict[str, list[tuple[str, int, int]]] = {}
        """Where each message that may be there was found."""
        self._first: dict[str, float] = {}
        self._partition: dict[tuple[str, str], int] = {}
        self._order = _Order(findings)

    def take(self, record: ReadRecord) -> None:
        """Judge one record."""
        findings, message_id = self._findings, record.message_id
        findings.checked[Offence.GHOST] += 1
        where = f"at {record.topic}-{record.partition}@{record.offset}"
        message = self._sent.get(message_id)
        if message is None or message.fate is Fate.ROLLED_BACK:
            why = "no producer sent it" if message is None else "it was rolled back"
            findings.offend(Offence.GHOST, message_id, f"{why}; {where}")
            return
        if wrong := _difference(record, message):
            findings.offend(Offence.GHOST, message_id, f"{wrong}; {where}")
        findings.checked[Offence.EARLY] += 1
        if message.fate is Fate.UNDECIDED:
            findings.offend(Offence.EARLY, message_id, f"it is a half message that is not decided; {where}")
        elif record.received < message.ending:
            early = message.ending - record.received
            findings.offend(Offence.EARLY, message_id, f"{early:.3f} s before its commit was sent; {where}")
        known = self.places.setdefault(message_id, [])
        known.append((record.topic, record.partition, record.offset))
        findings.checked[Offence.DUPLICATE] += 1
        if len(known) > 1:
            self._repeat(record, f"{where}, and before at {known[0][0]}-{known[0][1]}@{known[0][2]}")
            return
        self._first[message_id] = record.published
        key = message.topic, message.key
        partition = self._partition.setdefault(key, record.partition)
        if partition != record.partition:
            text = f"its key {message.key} was in partition {partition}; {where}"
            findings.offend(Offence.REORDERED, message_id, text)
        self._order.take(message, where)

    def _repeat(self, record: ReadRecord, where: str) -> None:
        first, again = self._first[record.message_id], record.published
        # A record's time is in whole milliseconds.
        if any(first <= outage.until and again >= outage.at - 0.001 for outage in self._outages):
            self._findings.repeats += 1
        else:
            self._findings.offend(Offence.DUPLICATE, record.message_id, where)


class _Order:
    """The order of each key, by the counters of what appears for the first time."""

    def __init__(self, findings: HistoryFindings) -> None:
        self._findings = findings
        self._newest: dict[tuple[str, str], int] = {}

    def take(self, message: SentMessage, where: str) -> None:
        """Judge the next message."""
        if message.counter is None:
            return
        self._findings.checked[Offence.REORDERED] += 1
        key = message.topic, message.key
        newest = self._newest.get(key, message.counter - 1)
        if message.counter <= newest:
            text = f"number {message.counter} of key {message.key} after number {newest}; {where}"
            self._findings.offend(Offence.REORDERED, message.message_id, text)
        self._newest[key] = max(newest, message.counter)


def _difference(record: ReadRecord, message: SentMessage) -> str | None:
    """Return in what a record is not what was sent."""
    if (record.topic, record.key) != (message.topic, message.key):
        return f"its topic and key are {record.topic} {record.key}, sent as {message.topic} {message.key}"
    if record.counter is not None and record.counter != message.counter:
        return f"its counter is {record.counter}, sent as {message.counter}"
    return None


def _settled(messages: Iterable[SentMessage], findings: HistoryFindings) -> dict[str, SentMessage]:
    """Return the messages by id, with the fates that the counters settle; the journals are doubted, too."""
    sent: dict[str, SentMessage] = {}
    committed: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    unknown: dict[tuple[str, str], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for message in messages:
        findings.checked[Offence.UNACCOUNTED] += 1
        if message.message_id in sent:
            findings.offend(Offence.UNACCOUNTED, message.message_id, "it is journalled twice")
        sent[message.message_id] = message
        if message.counter is None:
            continue
        key = message.topic, message.key
        if message.fate is Fate.COMMITTED:
            other = committed[key].setdefault(message.counter, message.message_id)
            if other != message.message_id:
                text = f"number {message.counter} of key {message.key}, which {other} has too"
                findings.offend(Offence.UNACCOUNTED, message.message_id, text)
        elif message.fate is Fate.UNKNOWN:
            unknown[key][message.counter].append(message.message_id)
    for key, candidates in unknown.items():
        newest = max(committed[key], default=0)
        for counter, ids in candidates.items():
            fate = Fate.UNKNOWN
            if counter in committed[key]:
                fate = Fate.ROLLED_BACK
            elif counter < newest and len(ids) == 1:
                fate = Fate.COMMITTED
            for message_id in ids:
                sent[message_id] = sent[message_id]._replace(fate=fate)
    return sent


def _check_arrived(sent: dict[str, SentMessage], arrived: Iterable[str], findings: HistoryFindings) -> None:
    there = set(arrived)
    for message in sent.values():
        if message.fate is Fate.COMMITTED:
            findings.checked[Offence.LOST] += 1
            if message.message_id not in there:
                text = f"key {message.key}, number {message.counter}: no consumer got it"
                findings.offend(Offence.LOST, message.message_id, text)


def _check_applied(
    applied: Sequence[str], sent: dict[str, SentMessage], arrived: Iterable[str], findings: HistoryFindings
) -> None:
    order = _Order(findings)
    done: set[str] = set()
    for message_id in applied:
        message = sent.get(message_id)
        if message is None or message.fate is Fate.ROLLED_BACK:
            findings.offend(Offence.GHOST, message_id, "the inbox applied it, and no producer committed it")
        elif message_id in done:
            findings.offend(Offence.DUPLICATE, message_id, "the inbox applied it twice")
        else:
            order.take(message, "as the inbox applied it")
        done.add(message_id)
    for message_id in arrived:
        if message_id not in done and sent[message_id].fate in (Fate.COMMITTED, Fate.UNKNOWN):
            findings.offend(Offence.LOST, message_id, "it arrived, and the inbox never applied it")


def _check_places(
    history: RunHistory,
    sent: dict[str, SentMessage],
    places: dict[str, list[tuple[str, int, int]]],
    findings: HistoryFindings,
) -> None:
    """Compare with the publication rows. What never arrived, or never should have, is counted as that already."""
    seen: set[str] = set()
    for row in history.places or ():
        seen.add(row.message_id)
        found = places.get(row.message_id)
        if found is None:
            continue
        findings.checked[Offence.MISPLACED] += 1
        near = [(topic, partition) for topic, partition, _ in found]
        if row.offset is None and history.allows_unknown_offsets and (row.topic, row.partition) in near:
            continue
        if (row.topic, row.partition, row.offset) not in found:
            text = (
                f"recorded at {row.topic}-{row.partition}@{row.offset}, and is at {found[0][1]}@{found[0][2]}"
            )
            findings.offend(Offence.MISPLACED, row.message_id, text)
    for message_id in places:
        if message_id not in seen and sent[message_id].fate in (Fate.COMMITTED, Fate.UNKNOWN):
            findings.offend(Offence.MISPLACED, message_id, "it is in Kafka, and no row records it")
