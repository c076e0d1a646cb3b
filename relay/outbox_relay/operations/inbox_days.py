"""Whether a day of the inbox may be dropped: Kafka cannot deliver its messages again, and nothing else needs them.

The floor of a group alone keeps an effect from being applied twice (see `inbox_drop`). What is proven here keeps
messages from being set aside: those that Kafka still has, and those that a group has not read yet. A decision
holds for the moment; the drop decides again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements
from outbox_relay.operations.kafka_logs import InboxTopic, KafkaLogs, Logs, TopicPart
from outbox_relay.text.formatting import count, many, moment

STATEMENTS = Statements("outbox_relay/operations/inbox_days.sql")
LATE = timedelta(days=1)
"""How long after a day its last messages may have been published, for a group that has not read them."""

NOT_ASKED_FOR = {
    "young": "its messages were born or handled within the retention",
    "default": "the DEFAULT partition has the messages without a day of their own; it is never dropped",
}
"""Reasons that are no refusals: such a day is not what `--older-than` asks for."""

REFUSALS = {
    "parked": "messages of it are parked: retries, what waits behind them, dead letters",
    "delivered": "Kafka still has records up to its last one, and can deliver them again",
    "behind": "a group that has rows of it has not read all that was published until the day after",
    "other_cluster": "its messages came from another Kafka cluster, of which nothing can be proven here",
    "unreadable": "Kafka does not describe a topic of it",
    "unverified": "no broker was asked",
    "busy": "a lock was not free in time, or a group began to write to it; the next run goes on",
}
"""Reasons to refuse a day that is old enough."""


@dataclass(frozen=True, slots=True)
class InboxDay:
    """A partition of the inbox; `rows` is an estimate."""

    table: str
    day: date | None
    """None: the DEFAULT partition."""
    rows: int
    size: int

    @property
    def identifier(self) -> sql.Identifier:
        """The table, to be put into a statement."""
        return sql.Identifier("outbox", self.table)


@dataclass(frozen=True, slots=True)
class DayFacts:
    """What the rows of a day state."""

    groups: frozenset[int]
    last: Mapping[TopicPart, int]
    """The highest offset in each partition of Kafka."""
    rows: int
    handled_at: datetime | None
    parked: int


@dataclass(frozen=True, slots=True)
class DayReason:
    """Something that speaks against dropping a day; `name` is one of the above."""

    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class DayDecision:
    """What was found about a day; `facts` only where its rows were read."""

    day: InboxDay
    reasons: tuple[DayReason, ...] = ()
    facts: DayFacts | None = None

    @property
    def may_go(self) -> bool:
        """Whether nothing speaks against dropping it."""
        return not self.reasons

    @property
    def is_refusal(self) -> bool:
        """Whether it is old enough, and must stay all the same."""
        return bool(self.reasons) and not any(reason.name in NOT_ASKED_FOR for reason in self.reasons)


def read_days(conn: psycopg.Connection[Any]) -> list[InboxDay]:
    """Return the partitions of the inbox, the oldest first, the DEFAULT partition last."""
    return [InboxDay(*row) for row in conn.execute(STATEMENTS["days"]).fetchall()]


def users_of(conn: psycopg.Connection[Any], day: date) -> tuple[frozenset[int], int]:
    """Return the groups that have rows of a day, and how many of its messages are parked; both are read quickly."""
    groups = conn.execute(STATEMENTS["groups"], {"day": day}).fetchall()
    [(parked,)] = conn.execute(STATEMENTS["parked"], {"day": day}).fetchall()
    return frozenset(group for (group,) in groups), parked


class DayRules:
    """Decides about days, by one reading of Kafka's logs: what they have lost since then only adds to the proof.

    Args:
        conn: an autocommit connection.
        age: the retention.
        kafka: the cluster that consumers read; None: no broker is asked.
        by_age: whether the age is enough, whatever Kafka has.

    Raises:
        TopicError: no broker replies.
    """

    def __init__(
        self, conn: psycopg.Connection[Any], *, age: timedelta, kafka: KafkaLogs | None, by_age: bool = False
    ) -> None:
        self._conn, self._age, self._kafka, self._by_age = conn, age, kafka, by_age
        self._topics = {row[0]: InboxTopic(*row) for row in conn.execute(STATEMENTS["topics"]).fetchall()}
        self._logs: Logs | None = None
        if kafka is not None and not by_age:
            self._logs = kafka.read(self._topics.values())

    def decide(self, day: InboxDay) -> DayDecision:
        """Return whether a day may be dropped, and what speaks against it."""
        if day.day is None:
            return DayDecision(day, (DayReason("default", NOT_ASKED_FOR["default"]),))
        now = self._conn.execute(STATEMENTS["now"]).fetchall()[0][0]
        if _end(day.day) + self._age > now:
            return DayDecision(day, (DayReason("young", "it is within the retention"),))
        facts = self.read(day.day)
        if facts.handled_at is not None and facts.handled_at + self._age > now:
            text = f"a message of it was handled at {moment(facts.handled_at)}, within the retention"
            return DayDecision(day, (DayReason("young", text),), facts)
        reasons = []
        if facts.parked:
            reasons.append(DayReason("parked", f"parked: {many(facts.parked, 'message')}: outbox dlq ls"))
        if not self._by_age and facts.rows:
            reasons += self._delivered(facts)
            reasons += self._behind(day.day, facts)
        return DayDecision(day, tuple(reasons), facts)

    def read(self, day: date) -> DayFacts:
        """Return what the rows of a day state."""
        values = {"day": day}
        places = self._conn.execute(STATEMENTS["facts"], values).fetchall()
        groups, parked = users_of(self._conn, day)
        return DayFacts(
            groups,
            {(topic, part): offset for topic, part, offset, _, _ in places},
            sum(rows for _, _, _, rows, _ in places),
            max((handled for *_, handled in places), default=None),
            parked,
        )

    def _delivered(self, facts: DayFacts) -> Iterator[DayReason]:
        """Find what Kafka can deliver again, one reason for each topic."""
        if self._logs is None:
            yield DayReason("unverified", "no broker was asked: --bootstrap-servers")
            return
        for number in sorted({topic for topic, _ in facts.last}):
            topic = self._topics.get(number)
            parts = {part: offset for (of, part), offset in facts.last.items() if of == number}
            if topic is None:
                yield DayReason("busy", "a topic was added meanwhile; run it again")
            elif not self._logs.is_here(topic):
                text = f"topic {topic.name!r} is one of cluster {topic.cluster}, and this one is {self._logs.cluster}"
                yield DayReason("other_cluster", text)
            elif number in self._logs.unreadable:
                yield DayReason("unreadable", f"topic {topic.name!r}: {self._logs.unreadable[number]}")
            elif any(of == number for of, _ in self._logs.starts):
                yield from self._still_there(topic, parts, self._logs)

    def _still_there(self, topic: InboxTopic, parts: dict[int, int], logs: Logs) -> Iterator[DayReason]:
        starts = {part: logs.starts.get((topic.number, part), 0) for part in parts}
        there = [part for part in sorted(parts) if starts[part] <= parts[part]]
        if not there:
            return
        part = there[0]
        text = (
            f"Kafka has {topic.name}[{part}] from offset {count(starts[part])} on, and the rows of this day go up to "
            f"{count(parts[part])}"
        )
        if len(there) > 1:
            text += f" ({len(there) - 1} more partitions)"
        if topic.number in logs.compacted:
            text += "; the topic is compacted, so Kafka keeps its first records for ever: --without-kafka"
        yield DayReason("delivered", text)

    def _behind(self, day: date, facts: DayFacts) -> Iterator[DayReason]:
        """Find groups that would lose messages which they have not read: one reason for each."""
        if self._logs is None or self._kafka is None:
            return
        until = _end(day) + LATE
        published = self._kafka.offsets_at(until, self._logs)
        values = {"groups": sorted(facts.groups)}
        named: set[str] = set()
        for group, number, part, offset in self._conn.execute(STATEMENTS["positions"], values).fetchall():
            place = (number, part)
            if place not in published or group in named:
                continue
            unread = max(offset, self._logs.starts[place])
            if unread < published[place]:
                named.add(group)
                yield DayReason(
                    "behind",
                    f"group {group!r} has not read {self._topics[number].name}[{part}] from offset {count(unread)} on, "
                    f"published before {moment(until)}",
                )


def _end(day: date) -> datetime:
    return datetime.combine(day + timedelta(days=1), time(), UTC)
