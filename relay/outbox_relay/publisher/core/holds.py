"""The holds: messages of a topic, partition, key or message wait in the table, and leave it by their hold only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from outbox_relay.publisher.core.topics import TopicCounts
from outbox_relay.publisher.core.values import (
    EXPIRED_SCOPE,
    NOWHERE,
    Claim,
    GroupOf,
    Item,
    Limits,
    Page,
    Row,
    Scope,
)


@dataclass(slots=True, eq=False)
class Hold:
    """The messages of one scope that wait.

    Its life: collecting, requested, announced, a page is out, again announced …, passing (the last page is out, and
    new rows go behind it), let go. A failure on the way leads back to collecting.
    """

    scope: Scope
    first: int = NOWHERE
    """No row waits in front of this position. It may be too low, never too high."""
    is_requested: bool = False
    is_paused: bool = False
    """An operator paused the topic: no request counts until they resume it."""
    has_failed: bool = False
    """A message of it failed alone: its topic is on probation when it is drained."""
    is_announced: bool = False
    """The table has the announcement."""
    may_read: bool = False
    """The next page is announced, and not read."""
    is_passing: bool = False
    has_empty_row: bool = False
    """Nothing waits for it, and a write is to delete its row. It goes on, and what comes begins another one."""
    out: set[int] = field(default_factory=set)
    """Rows that are out of the table, and not settled."""
    unwritten: int = 0
    """Claims that no write has recorded."""
    pause: float = 0.0
    """Seconds between the last failure that Kafka caused and the next try."""

    @property
    def loses_its_row(self) -> bool:
        """Whether a write is to delete its row in the table."""
        return self.is_passing or self.has_empty_row


class Holds:
    """All holds, and the claims that are not written."""

    def __init__(self, first: Mapping[Scope, int], topics: TopicCounts, limits: Limits) -> None:
        """Begin with what the tables have: each hold's scope, and a position in front of which nothing waits.

        Kafka may have caused the hold of a topic or partition, so each of them is tried once.
        """
        self.topics = topics
        self.limits = limits
        self.by_scope: dict[Scope, Hold] = {}
        self.claims: dict[int, Claim] = {}
        self._kinds: dict[str, Counter[str]] = {}
        self._busy: dict[Scope, Hold] = {}
        self._readable: dict[Scope, Hold] = {}
        self._retries: dict[Scope, float] = {}
        for scope, position in first.items():
            hold = self._begin(scope)
            hold.first = position
            hold.has_failed = scope.kind in ("key", "message")
            if not hold.has_failed:
                self._retries[scope] = 0.0

    def _begin(self, scope: Scope) -> Hold:
        hold = self.by_scope.get(scope)
        if hold is None:
            hold = self.by_scope[scope] = Hold(scope)
            self._kinds.setdefault(scope.topic, Counter())[scope.kind] += 1
        return hold

    def _end(self, hold: Hold) -> None:
        del self.by_scope[hold.scope]
        for others in (self._busy, self._readable, self._retries):
            others.pop(hold.scope, None)
        self._kinds[hold.scope.topic][hold.scope.kind] -= 1
        if not self._kinds[hold.scope.topic].total():
            del self._kinds[hold.scope.topic]

    # Which hold a row waits for -----------------------------------------------------------------------------------

    def scope_of(self, row: Row, partition: int, taken_from: Scope | None) -> Scope | None:
        """Return the widest hold that a row waits for (R5); the one that it comes from only if that has stopped."""
        if row.topic not in self._kinds:
            return None
        for scope in (
            Scope("topic", row.topic),
            Scope("partition", row.topic, partition),
            Scope("key", row.topic, row.key),
        ):
            hold = self.by_scope.get(scope)
            if hold is None or hold.is_passing or (scope == taken_from and hold.is_requested):
                continue
            if scope.kind == "key" and row.position < hold.first:
                continue  # in front of everything that waits for its key
            return scope
        return None

    def own_scope(self, row: Row) -> Scope:
        """Return the scope that a failed message holds: its key, or itself where that has no order.

        More holds than a limit would take memory and time from other topics, so the topic is held instead (isolation).
        """
        is_alone = row.key is None or row.topic in self.topics.skip_ahead
        scope = Scope("message", row.topic, row.id) if is_alone else Scope("key", row.topic, row.key)
        kinds = self._kinds.get(row.topic)
        if kinds and scope not in self.by_scope and kinds["key"] + kinds["message"] >= self.limits.holds:
            return Scope("topic", row.topic)
        return scope

    def has_partitions(self, topic: str) -> bool:
        """Return whether a partition of a topic is held."""
        kinds = self._kinds.get(topic)
        return kinds is not None and kinds["partition"] > 0

    def is_covered(self, scope: Scope) -> bool:
        """Return whether a wider hold may have rows in front of this one's (R6); a key's may be in any partition."""
        if scope.kind in ("topic", "message"):
            return False
        if scope.kind == "key" and self.has_partitions(scope.topic):
            return True
        return Scope("topic", scope.topic) in self.by_scope

    # Claims -------------------------------------------------------------------------------------------------------

    def claim(self, item: Item, scope: Scope, *, is_failed: bool = False) -> None:
        """Let a message wait in the table. Doubt stays with it (R8)."""
        if scope != EXPIRED_SCOPE:
            hold = self._begin(scope)
            hold.first = min(hold.first, item.row.position)
            hold.is_passing = hold.has_empty_row = False
            hold.unwritten += 1
            if is_failed:
                hold.has_failed = True
                self._stop(hold)
        # A row that another hold gave stays out of that one until the claim is written: it is not empty before (R5).
        self.claims[item.row.id] = Claim(item.row, scope, item.in_doubt, is_failed, item.number)

    def claimed_keys(self) -> set[tuple[str, Hashable]]:
        """Return topic and key of each claim that no write has recorded."""
        return {(claim.row.topic, claim.row.key) for claim in self.claims.values()}

    def put_back(self, item: Item) -> None:
        """Note that a row, which was never sent, is in the table only: its hold has it again, without a doubt (R8)."""
        hold = self.by_scope.get(item.taken_from) if item.taken_from else None
        if hold is not None:
            hold.out.discard(item.row.id)

    def take_out(self, scope: Scope, row: Row) -> bool:
        """Note that a row of a hold is out. Return whether a message of the hold failed before this page."""
        hold = self.by_scope[scope]
        hold.out.add(row.id)
        return hold.has_failed

    # Requests -----------------------------------------------------------------------------------------------------

    def hold(self, scope: Scope, *, is_paused: bool = False) -> None:
        """Begin a hold, or stop publishing from it. Its rows wait until it is released."""
        hold = self._begin(scope)
        if is_paused:
            self._retries.pop(scope, None)
        hold.is_paused |= is_paused
        hold.is_passing = False
        self._stop(hold)

    def fail(self, scope: Scope, now: float) -> None:
        """Hold a partition or topic that Kafka failed, and try it again after a pause of its own (isolation).

        A failure that comes before the next try is of the same one: several partitions of a topic are refused at once.
        """
        self.hold(scope)
        if now < self._retries.get(scope, now):
            return
        hold, limits = self.by_scope[scope], self.limits
        hold.pause = min(hold.pause * 2 or limits.pause, limits.longest_pause)
        self._retries[scope] = now + hold.pause

    def _stop(self, hold: Hold) -> None:
        hold.is_requested = hold.may_read = False
        self._readable.pop(hold.scope, None)

    def release(self, scope: Scope, *, is_resumed: bool = False) -> None:
        """Request that a hold is drained: an operator retries it, or its cause is over."""
        hold = self.by_scope.get(scope)
        if hold is None:
            return
        hold.is_paused &= not is_resumed
        if not hold.is_paused:
            hold.is_requested = True
            self._retries.pop(scope, None)
            self._busy[scope] = hold

    def is_requested(self, scope: Scope) -> bool:
        """Return whether a hold is to be drained."""
        hold = self.by_scope.get(scope)
        return hold is not None and hold.is_requested

    def is_retried(self, scope: Scope) -> bool:
        """Return whether a hold is tried again after a pause, without a request."""
        return scope in self._retries

    def due(self, now: float) -> list[Scope]:
        """Return the holds whose pause is over. The driver asks Kafka, and releases them or lets them fail again."""
        return [scope for scope, at in self._retries.items() if at <= now]

    # Draining -----------------------------------------------------------------------------------------------------

    def next_drain(self, full: list[Hashable], group_of: GroupOf) -> Scope | None:
        """Return the hold whose next page is read, in turn; it is announced (R7) and not covered (R6)."""
        for scope in self._readable:
            if group_of(scope.topic) not in full and not self.is_covered(scope):
                return scope
        return None

    def opened(self, page: Page) -> Hold | None:
        """Note that a page was read. Return its hold, or None if the rows stay in the table."""
        hold = self.by_scope.get(page.read.scope)
        if hold is None or not hold.may_read:
            return None
        hold.may_read = False
        del self._readable[hold.scope]
        return hold

    def pass_empty(self, scopes: Iterable[Scope]) -> None:
        """Let new rows pass holds that the driver found empty, until a write lets them go.

        An operator gave up all that waited. A wider hold may cover them for ever: the one of a topic with too many.
        """
        for hold in map(self.by_scope.__getitem__, scopes):
            if hold.unwritten:
                continue
            self._stop(hold)
            hold.is_passing = True
            self._busy[hold.scope] = hold

    def drop_row(self, scope: Scope) -> None:
        """Let a write delete the row of a hold that the driver found empty, and that goes on: its topic is closed."""
        hold = self.by_scope.get(scope)
        if hold is not None and not hold.unwritten:
            hold.has_empty_row = True
            self._busy[scope] = hold

    def close(self, hold: Hold, page: Page) -> None:
        """Note that a page was routed. Behind the last one new rows pass, unless a row of it is to be written (R5)."""
        hold.has_failed = False
        if not page.has_more and not hold.unwritten:
            hold.is_passing = True

    # Writing ------------------------------------------------------------------------------------------------------

    def to_announce(self, written: Mapping[Scope, int]) -> tuple[Scope, ...]:
        """Return the holds of which a page may be read next: no wider hold covers it (R6), all its claims are written.

        They take turns: what another session locks is passed over, and keeps none of the others waiting (isolation).

        Args:
            written: by hold, the claims that the same write records. A key that gets messages all the time has some in
                each.
        """
        found = tuple(
            hold.scope
            for hold in self._busy.values()
            if hold.is_requested
            and not (hold.is_passing or hold.may_read or hold.out or hold.unwritten > written[hold.scope])
            and not self.is_covered(hold.scope)
        )[: self.limits.announced]
        for scope in found:
            self._busy[scope] = self._busy.pop(scope)
        return found

    def to_retract(
        self, settled: set[int], written: Mapping[Scope, int], *, is_last: bool = False
    ) -> tuple[Scope, ...]:
        """Return the holds whose announcement is over with a write.

        Args:
            settled: the ids that it settles.
            written: by hold, what it claims.
            is_last: also holds whose request stays for the next leader.
        """
        return tuple(
            hold.scope
            for hold in self._busy.values()
            if hold.is_announced
            and not (
                (hold.is_requested and not is_last)
                or hold.out - settled
                or hold.unwritten > written[hold.scope]
            )
        )

    def to_let_go(self, settled: set[int]) -> tuple[Scope, ...]:
        """Return the holds that are empty when some rows are settled (R5): their rows are deleted."""
        return tuple(hold.scope for hold in self._busy.values() if hold.loses_its_row and hold.out <= settled)

    def claimed(self, claims: tuple[Claim, ...]) -> None:
        """Note claims that a write has recorded.

        A failed one ends the request of its hold, not the announcement: other rows of the hold may be out (R7).
        """
        for claim in claims:
            del self.claims[claim.row.id]
            hold = self.by_scope.get(claim.scope)
            if hold is not None:
                hold.unwritten -= 1

    def settle(self, settled: set[int]) -> None:
        """Note rows that a write has settled, and forget the holds of which nothing is under way."""
        for hold in list(self._busy.values()):
            hold.out -= settled
            if not (
                hold.is_requested or hold.is_announced or hold.loses_its_row or hold.out or hold.unwritten
            ):
                del self._busy[hold.scope]

    def announced(self, scopes: tuple[Scope, ...], retracted: tuple[Scope, ...]) -> None:
        """Note what a write has announced and retracted. Only now may a page be read (R7)."""
        for scope in retracted:
            self.by_scope[scope].is_announced = False
        for scope in scopes:
            hold = self.by_scope[scope]
            hold.is_announced, hold.may_read = True, hold.is_requested
            if hold.may_read:
                self._readable[scope] = hold

    def let_go(self, scopes: tuple[Scope, ...]) -> None:
        """Forget holds whose rows a write has deleted. One that got a claim since is written again with it."""
        for scope in scopes:
            hold = self.by_scope[scope]
            hold.has_empty_row = False
            if hold.is_passing:
                self._end(hold)
