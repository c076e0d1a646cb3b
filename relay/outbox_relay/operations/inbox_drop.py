"""Dropping a day of the inbox, so that no effect is applied twice whatever Kafka delivers later.

The steps, each of which may be the last one of the process; steps 2, 5 and 6 are transactions of their own:

1. Decide (`inbox_days`).
2. Raise the floor of each group that has rows of the day. From here on a message of the day that has no row is
   set aside by the consumer. One that has its row is refused by it, as ever.
3. Wait for the transactions that have locked the inbox since before 2 was committed: they may have read the floor as
   it was. A transaction locks the inbox before it takes the snapshot that reads the floor. So one that is not waited
   for has read the new floor. Nothing is locked meanwhile.
4. Decide again, with all that those transactions have inserted.
5. Lock the table of the day. Check that no other group has begun to write to it, and that nothing of it is parked.
   Empty it. Listeners of other days go on meanwhile, however long they run.
6. Lock the inbox, and remove the empty table. If listeners run all the time, the empty table stays for the next run.

If the process dies after 2, rows are there and the floor is raised: a message of the day is refused by its row, or was
never seen by the group and becomes a dead letter; step 1 has found that Kafka has none and that the group has none to
read. If the process dies after 5, the next run removes the empty table. A group without rows of the day has no floor
because of it, and may write to the day at any time: before 5 that is found, between 5 and 6 the table stays, after 6
consumers make the partition again, or use the DEFAULT partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements
from outbox_relay.operations.inbox_days import DayDecision, DayReason, DayRules, InboxDay, read_days, users_of
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/inbox_drop.sql")
HELD_MS = 200
"""For waits during which consumers queue behind this session."""
PAUSE_S, POLL_S = 0.5, 0.05
RETRIED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class InboxNotAllowedError(OperatorError):
    """The inbox cannot be dropped at all: by this user, or at this moment."""


class DayBusyError(Exception):
    """A lock was not free in time, or a group began to write to the day."""


@dataclass(frozen=True, slots=True)
class DayResult:
    """What became of a day: dropped, emptied (its table stays for the next run), droppable, kept or refused."""

    outcome: str
    decision: DayDecision


def preview(conn: psycopg.Connection[Any], rules: DayRules) -> Iterator[DayResult]:
    """Decide about every day, the oldest first, and change nothing."""
    for day in read_days(conn):
        decision = rules.decide(day)
        yield DayResult(_stays(decision) if decision.reasons else "droppable", decision)


@contextmanager
def only_drop(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Check that this session may drop days of the inbox, and keep others from it until the end of the block.

    Args:
        conn: an autocommit connection.

    Raises:
        InboxNotAllowedError: with what to do about it.
    """
    [(owner, user, may)] = conn.execute(STATEMENTS["may"]).fetchall()
    if not may:
        raise InboxNotAllowedError(
            f"user {user!r} may not drop partitions: they belong to {owner!r}\n"
            f"connect as {owner!r}, or as a member of that role; --dry-run and outbox inbox ls need the role "
            "outbox_reader"
        )
    [(alone,)] = conn.execute(STATEMENTS["only_one"]).fetchall()
    if not alone:
        raise InboxNotAllowedError(
            "another `outbox inbox drop` is at work in this database; nothing was changed"
        )
    yield
    conn.execute(STATEMENTS["another_may"])


class InboxDropping:
    """Drops the days that may go; inside `only_drop`.

    Args:
        conn: an autocommit connection of the owner.
        rules: that decide.
        wait: seconds to wait for transactions and locks, for each step of each day.
    """

    def __init__(self, conn: psycopg.Connection[Any], rules: DayRules, *, wait: float) -> None:
        self._conn, self._rules, self._wait = conn, rules, wait

    def drop(self) -> Iterator[DayResult]:
        """Decide about every day, the oldest first, and drop those that may go."""
        for day in read_days(self._conn):
            decision = self._rules.decide(day)
            if not decision.may_go:
                yield DayResult(_stays(decision), decision)
                continue
            try:
                yield self._drop(day, decision)
            except DayBusyError as error:
                busy = replace(decision, reasons=(DayReason("busy", str(error)),))
                yield DayResult("refused", busy)

    def _drop(self, day: InboxDay, decision: DayDecision) -> DayResult:
        groups = decision.facts.groups if decision.facts else frozenset()
        values = {"day": day.day, "groups": sorted(groups)}
        self._conn.execute(STATEMENTS["raise_floor"], values)
        self._await_writers(day)
        second = self._rules.decide(day)
        if not second.may_go:
            return DayResult(_stays(second), second)
        self._insist(lambda: self._empty(day, groups), day)
        # If the table is in use, its rows are gone all the same.
        try:
            removed = self._insist(lambda: self._remove(day), day)
        except DayBusyError:
            removed = False
        return DayResult("dropped" if removed else "emptied", decision)

    def _await_writers(self, day: InboxDay) -> None:
        """Wait for the transactions that may have read the floor before it was raised.

        Raises:
            DayBusyError: one did not end in time.
        """
        deadline = time.monotonic() + self._wait
        before = writers(self._conn)
        while before:
            if time.monotonic() >= deadline:
                raise DayBusyError(self._who(day) or "a transaction that may write to it did not end")
            time.sleep(POLL_S)
            before &= writers(self._conn)

    def _empty(self, day: InboxDay, groups: frozenset[int]) -> bool:
        assert day.day is not None  # noqa: S101  (the DEFAULT partition may not go)
        with self._conn.transaction():
            self._limited(sql.SQL(STATEMENTS["lock_day"]).format(table=day.identifier))
            found, parked = users_of(self._conn, day.day)
            if parked or found - groups:
                raise DayBusyError("a message of it was taken over meanwhile")
            self._conn.execute(sql.SQL(STATEMENTS["empty"]).format(table=day.identifier))
        return True

    def _remove(self, day: InboxDay) -> bool:
        with self._conn.transaction():
            self._limited(sql.SQL(STATEMENTS["lock_partitions"]))
            self._limited(sql.SQL(STATEMENTS["lock_inbox"]))
            [(has_rows,)] = self._conn.execute(STATEMENTS["has_rows"], {"day": day.day}).fetchall()
            if not has_rows:
                self._conn.execute(sql.SQL(STATEMENTS["remove"]).format(table=day.identifier))
        return not has_rows

    def _limited(self, statement: sql.SQL | sql.Composed) -> None:
        self._conn.execute(STATEMENTS["lock_timeout"], {"milliseconds": str(HELD_MS)})
        self._conn.execute(statement)

    def _insist(self, step: Callable[[], bool], day: InboxDay) -> bool:
        deadline = time.monotonic() + self._wait
        while True:
            try:
                return step()
            except RETRIED as error:
                if time.monotonic() >= deadline:
                    raise DayBusyError(self._who(day) or str(error).strip()) from error
                time.sleep(PAUSE_S)

    def _who(self, day: InboxDay) -> str | None:
        values = {"table": f"outbox.{day.table}"}
        row = self._conn.execute(STATEMENTS["in_the_way"], values).fetchone()
        return None if row is None else f"a transaction uses the inbox ({row[0]})"


def writers(conn: psycopg.Connection[Any]) -> set[str]:
    """Return the names of the transactions that may have inserted into the inbox."""
    return {name for (name,) in conn.execute(STATEMENTS["writers"]).fetchall()}


def _stays(decision: DayDecision) -> str:
    return "refused" if decision.is_refusal else "kept"
