"""The rows of outbox.parked_key: which numbers a hold has, one in each lane.

A hold's number is the id of the message that it began with; a topic's is minus that, as operators' functions expect.
Where that number is in use, because the same message began another hold, it is moved by a power of two.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import psycopg

from outbox.statements import Statements, array_text
from outbox_relay.publisher.core.values import NOWHERE, Claim, Count, Scope
from outbox_relay.publisher.finder import KEY, LANE, MESSAGE_ID, ORDER_KEY, QUEUE, RawRow
from outbox_relay.publisher.hands.rows import TopicCount
from outbox_relay.publisher.records import FIRST_BYTES, LONGEST_KEY

STATEMENTS = Statements("outbox_relay/publisher/hands/writes.sql")

STEP = 1 << 60
MOST_REQUESTS = 1_000


class HoldRow(NamedTuple):
    """A row to insert, and its hold; of a partition, with the count and the selector that the topic's keys go by."""

    scope: Scope
    number: int
    lane: int
    topic: str
    partition: Hashable
    partitions: int | None
    selector: str | None
    queue: int | None
    order_key: bytes | None
    head: int
    error: str


class HoldRows:
    """The numbers of all holds of a set of lanes."""

    def __init__(self, conn: psycopg.Connection[Any], lanes: frozenset[int]) -> None:
        """Begin with what the table has, after the lanes were taken."""
        self._conn = conn
        self._lanes = lanes
        self.by_scope: dict[Scope, dict[int, int]] = {}
        """The number of each hold, by lane."""
        self.errors: dict[Scope, str] = {}
        """Why a topic or a partition is held."""
        self.counts: Mapping[str, Count] = {}
        """The partition counts of topics with a held partition, as of the beginning; then those of all topics."""
        self.mixed: set[str] = set()
        """Topics of which partitions are held by more than one count: their former owners had different ones."""
        self.scope_of: dict[int, Scope] = {}
        self.first: dict[Scope, int] = {}
        """A position in front of which none of its messages waits, as of the beginning."""
        self.acted: dict[Scope, float] = {}
        """Up to when requests have led to a release (seconds since 1970); a failure ends these, and no later one."""
        self.since: dict[int, int] = {}
        """By number, a place in front of which none of its messages waits; where nothing is known there is none."""
        self._load()

    def _load(self) -> None:
        values = {"lanes": array_text(self._lanes), "longest": LONGEST_KEY, "first": FIRST_BYTES}
        rows = self._conn.execute(STATEMENTS["holds"], values).fetchall()
        counts: dict[str, Count] = {}
        for number, lane, topic, partition, queue, order_key, first, error, partitions, selector in rows:
            if partitions is not None and counts.setdefault(topic, (partitions, selector)) != (
                partitions,
                selector,
            ):
                self.mixed.add(topic)
            scope = _scope(number, topic, partition, queue, order_key)
            self.note(scope, lane, number)
            self.errors.setdefault(scope, error)
            place = NOWHERE if first is None else first
            self.first[scope] = min(self.first.get(scope, NOWHERE), place)
        self.counts = counts

    def note(self, scope: Scope, lane: int, number: int) -> None:
        """Note that a hold has a row."""
        self.by_scope.setdefault(scope, {})[lane] = number
        self.scope_of[number] = scope

    def note_place(self, number: int, place: int) -> None:
        """Note that a message waits from now on, before its row is written."""
        if place < self.since.get(number, 0):
            self.since[number] = place

    def drop(self, numbers: Collection[int], *, is_over: bool = True) -> None:
        """Note that there are no such rows: they are deleted, or were not written and will be."""
        for number in numbers:
            scope = self.scope_of.pop(number)
            self.since.pop(number, None)
            rows = self.by_scope[scope]
            for lane in [lane for lane, one in rows.items() if one == number]:
                del rows[lane]
            if not rows:
                del self.by_scope[scope]
                if is_over:
                    self.acted.pop(scope, None)

    def number(self, scope: Scope, lane: int) -> int | None:
        """Return the number of a hold in a lane."""
        return self.by_scope.get(scope, {}).get(lane)

    def numbers(self, scopes: Collection[Scope]) -> list[int]:
        """Return all numbers of some holds."""
        return [number for scope in scopes for number in self.by_scope.get(scope, {}).values()]

    def empty(self, scopes: Iterable[Scope]) -> set[Scope]:
        """Read which of some holds have rows, and nothing waits for them."""
        found = {scope for scope in scopes if scope in self.by_scope}
        if found:
            values = {"numbers": array_text(self.numbers(found))}
            rows = self._conn.execute(STATEMENTS["waits"], values, prepare=True).fetchall()
            found -= {self.scope_of[number] for (number,) in rows}
        return found

    def begin(self, scope: Scope, raw: RawRow, id_: int, error: str) -> HoldRow:
        """Choose the number of a hold in the lane of the first message that waits for it."""
        step = -STEP if scope.kind == "topic" else STEP
        number = -id_ if scope.kind == "topic" else id_ + STEP if scope.kind == "partition" else id_
        while number in self.scope_of:
            number += step
        self.note(scope, raw[LANE], number)
        partition, count = None, cast("tuple[int | None, str | None]", (None, None))
        if scope.kind == "partition":
            partition, count = scope.part, cast("TopicCount", self.counts[scope.topic])
        queue = raw[QUEUE] if scope.kind == "key" else None
        has_key = scope.kind == "key" and queue is None
        order_key = (raw[KEY] if raw[ORDER_KEY] is None else raw[ORDER_KEY]) if has_key else None
        return HoldRow(
            scope, number, raw[LANE], scope.topic, partition, count[0], count[1], queue, order_key, id_, error
        )

    def requested(self, passed: Collection[Scope]) -> dict[Scope, float]:
        """Read which holds somebody has asked to release, and when; some are passed over, and what was acted on."""
        without = array_text(self.numbers(passed))
        values = {"lanes": array_text(self._lanes), "most": MOST_REQUESTS, "without": without}
        rows = self._conn.execute(STATEMENTS["requested"], values, prepare=True).fetchall()
        found: dict[Scope, float] = {}
        for number, at in rows:
            scope = self.scope_of.get(number)
            if scope is not None and at > self.acted.get(scope, float("-inf")):
                found[scope] = max(at, found.get(scope, at))
        return found

    def act(self, requests: Mapping[Scope, float | None]) -> None:
        """Note that holds are released because of requests of these times; None: because of none."""
        self.acted.update((scope, at) for scope, at in requests.items() if at is not None)


def _scope(
    number: int, topic: str, partition: int | None, queue: int | None, order_key: bytes | None
) -> Scope:
    if number < 0:
        return Scope("topic", topic)
    if partition is not None:
        return Scope("partition", topic, partition)
    if queue is None and order_key is None:
        return Scope("message", topic, number % STEP)
    return Scope("key", topic, queue if queue is not None else order_key)


COLUMNS = (
    "numbers", "lanes", "topics", "parts", "partitions", "selectors", "queues", "order_keys", "heads", "errors",
)  # fmt: skip


def values_of(rows: Collection[HoldRow]) -> dict[str, Any]:
    """Return what `begin_holds` binds: each column as an array."""
    _, *columns = zip(*rows, strict=True)
    return {name: [*column] for name, column in zip(COLUMNS, columns, strict=True)}


def raw_of(claim: Claim) -> RawRow:
    """Return the row of a claim as the finder read it."""
    return cast("tuple[RawRow, object]", claim.row.content)[0]


def claim_values(claims: Collection[Claim], numbers: list[int | None]) -> dict[str, Any]:
    """Return what `claim` binds: each claim with the number of its hold."""
    return {
        "ids": array_text(claim.row.id for claim in claims),
        "message_ids": [raw_of(claim)[MESSAGE_ID] for claim in claims],
        "reasons": [_reason(claim) for claim in claims],
        "numbers": numbers,
        "places": array_text(claim.row.position for claim in claims),
        "doubtful": [claim.in_doubt for claim in claims],
    }


def _reason(claim: Claim) -> str:
    if claim.scope.kind == "expired":
        return "expired"
    if claim.scope.kind in ("topic", "partition"):
        return "parked"
    return "failed" if claim.is_failed else "held"
