"""What a replay would give to a group: each chosen message is applied, or left out for a reason; nothing is written."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.inbox.messages import Source
from outbox.inbox.tags import EVERYTHING, TagExpression
from outbox.statements import Statements
from outbox_relay.operations import consumers
from outbox_relay.operations.names import require_known
from outbox_relay.operations.replay_source import Chosen
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/replays.sql")
MESSAGES_AT_ONCE = 500
MOST_OF_A_KEY = 20_000
"""Messages of one order key, which are parked in one transaction."""

APPLY, AGAIN, APPLIED, PARKED, TO_COME, TOO_OLD, NOT_SUBSCRIBED = (
    "apply",
    "apply_again",
    "applied",
    "parked",
    "to_come",
    "too_old",
    "not_subscribed",
)
MEANINGS = {
    APPLY: "are new to the group and will be applied",
    AGAIN: "were applied and will be applied again",
    APPLIED: "were applied before, and are left out: --again",
    PARKED: "are parked already, and are left out: outbox dlq ls",
    TO_COME: "are left out: the group has not read that far in Kafka, and will get them there (or it is unknown)",
    TOO_OLD: "are left out: it cannot be proven that they were not applied; --again applies them all the same",
    NOT_SUBSCRIBED: "are left out: the group does not subscribe to their tags",
}


@dataclass(frozen=True)
class Target:
    """A group and the topic of which it is given messages."""

    group: str
    group_id: int
    topic: str
    source: Source
    orderly: bool
    tags: TagExpression
    by_headers: bool
    """Whether the group subscribes by a function of the headers, which a member asks before each message."""

    def place(self, message: Chosen) -> tuple[bytes | None, int]:
        """Return where a message comes in the replay."""
        return (message.order_key if self.orderly else None), message.position

    def rank(self, message: Chosen) -> tuple[bool, bytes, int]:
        """Return the same as something that can be sorted: messages without an order first."""
        key, position = self.place(message)
        return key is not None, key or b"", position

    def batches(self, chosen: Sequence[Chosen], size: int) -> Iterator[list[Chosen]]:
        """Yield messages in the order of a replay: all of a key together, otherwise so many at a time."""
        batch: list[Chosen] = []
        groups = itertools.groupby(sorted(chosen, key=self.rank), key=lambda each: self.rank(each)[:2])
        for (has_order, _), messages in groups:
            while part := list(messages if has_order else itertools.islice(messages, size - len(batch))):
                batch += part
                if len(batch) >= size:
                    yield batch
                    batch = []
        if batch:
            yield batch


@dataclass(frozen=True)
class _Read:
    """What a group reads of a topic."""

    group_id: int
    orderly: bool
    subscribed: str | None
    topic_id: int
    kafka_id: str


def target(conn: psycopg.Connection[Any], group: str, topic: str) -> Target:
    """Find a group and its topic.

    Raises:
        OperatorError: There is no such group, or it does not read the topic.
    """
    consumers.find(conn, group)
    with conn.cursor(row_factory=class_row(_Read)) as cursor:
        row = cursor.execute(STATEMENTS["topic"], {"group": group, "topic": topic}).fetchone()
    if row is None or row.subscribed is None:
        require_known(conn, topic=topic)
        raise OperatorError(
            f"group {group!r} does not read topic {topic!r}, so no listener of it takes its messages; what it reads: "
            f"outbox consumers show {group}"
        )
    by_headers = row.subscribed.startswith("headers by ")
    tags = EVERYTHING if by_headers else TagExpression.parse(row.subscribed)
    source = Source(row.topic_id, row.kafka_id)
    return Target(group, row.group_id, topic, source, row.orderly, tags, by_headers)


def judge(
    conn: psycopg.Connection[Any], target: Target, chosen: Sequence[Chosen], *, again: bool
) -> list[str]:
    """Return for each message what becomes of it, one of MEANINGS."""
    values = {"group_id": target.group_id, "topic_id": target.source.topic_id}
    positions = dict(conn.execute(STATEMENTS["positions"], values).fetchall())
    ids = {"ids": [each.message_id for each in chosen], "days": [each.born_on for each in chosen]}
    rows = conn.execute(STATEMENTS["known"], {**values, **ids}).fetchall()
    return [_of(target, positions, each, row, again=again) for each, row in zip(chosen, rows, strict=True)]


def _of(
    target: Target, positions: dict[int, int], message: Chosen, known: tuple[bool, bool, bool], *, again: bool
) -> str:
    is_known, is_parked, is_below_floor = known
    if not target.tags.matches(message.tags):
        return NOT_SUBSCRIBED
    if is_parked:
        return PARKED
    is_passed = 0 <= message.offset < positions.get(message.partition, 0)
    if not is_passed and (message.offset >= 0 or not is_known):
        return TO_COME
    if is_known:
        return AGAIN if again else APPLIED
    return TOO_OLD if is_below_floor and not again else APPLY


@dataclass(frozen=True)
class Preview:
    """What a replay would do: how many messages by what becomes of them, and how many keys are held by others."""

    counts: dict[str, int]
    held_keys: int
    first: Chosen | None
    last: Chosen | None

    @property
    def applied(self) -> int:
        """How many messages the group would get."""
        return self.counts.get(APPLY, 0) + self.counts.get(AGAIN, 0)


def plan(conn: psycopg.Connection[Any], target: Target, chosen: Sequence[Chosen], *, again: bool) -> Preview:
    """Count what a replay would do.

    Raises:
        OperatorError: A key has too many messages.
    """
    if target.orderly:
        frequent = Counter(each.order_key for each in chosen if each.order_key is not None).most_common(1)
        if frequent and frequent[0][1] > MOST_OF_A_KEY:
            key, count = frequent[0]
            raise OperatorError(
                f"{count:,} messages of the key {key!r} fit; a key is replayed in one transaction, of at most "
                f"{MOST_OF_A_KEY:,}. Choose fewer: --from, --to"
            )
    counts: Counter[str] = Counter()
    keys: set[bytes] = set()
    for begin in range(0, len(chosen), MESSAGES_AT_ONCE):
        part = chosen[begin : begin + MESSAGES_AT_ONCE]
        judged = judge(conn, target, part, again=again)
        counts.update(judged)
        for each, what in zip(part, judged, strict=True):
            if target.orderly and what in (APPLY, AGAIN) and each.order_key is not None:
                keys.add(each.order_key)
    values = {"group_id": target.group_id, "topic_id": target.source.topic_id, "keys": list(keys)}
    [(held,)] = conn.execute(STATEMENTS["held"], values).fetchall()
    by_time = sorted(chosen, key=lambda each: each.born)
    return Preview(dict(counts), held, by_time[0] if by_time else None, by_time[-1] if by_time else None)
