"""Removal: detach the tables of a range while others write, check them again, drop them, or put them back.

The steps are marked, message detached, publication detached, event detached, all three dropped in one transaction
with the second check. After a crash between any two, the catalogue shows how far it came: `detach` does what is
left to do, `restore` goes back.

Writers are not held up. DETACH … CONCURRENTLY takes a lock that allows inserts, and waits for transactions without
holding one. What needs ACCESS EXCLUSIVE needs it on the leaving table alone, which is out of everybody's sight then;
for a session that names it (a relay that has just started does) each attempt gives up after `HELD_MS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from outbox.statements import Statements
from outbox_relay.retention.ranges import KINDS, MARK, Range, state
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/retention/removal.sql")

PATIENT_MS = 2_000
"""For waits that hold up no writer: transactions that use the parent, a vacuum."""
HELD_MS = 200
"""For waits during which others queue behind us, if they name the leaving table."""
PAUSE_S = 0.2

RETRIED = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
"""A lock was not free in time, or another partition is being detached: worth another attempt."""


class NotAllowedError(OperatorError):
    """History cannot be dropped at all: by this user, at this moment, or in this database."""


class AlreadyRunningError(NotAllowedError):
    """Another session drops history at this moment."""


class BusyError(Exception):
    """A lock was not free within the patience; what was begun stays begun."""


@contextmanager
def only_removal(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Check that this session may drop history, and keep others from it until the end of the block.

    Args:
        conn: an autocommit connection.

    Raises:
        NotAllowedError: with what to do about it.
    """
    row = conn.execute(STATEMENTS["may"]).fetchone()
    assert row is not None  # noqa: S101  (the schema is there)
    owner, user, may, has_default = row
    if not may:
        raise NotAllowedError(
            f"user {user!r} may not drop partitions: they belong to {owner!r}\n"
            f"connect as {owner!r}, or as a member of that role; --dry-run and outbox history ls need no more than "
            "to read"
        )
    if has_default:
        raise NotAllowedError(
            "a DEFAULT partition forbids DETACH … CONCURRENTLY; take it away first: outbox db check names it"
        )
    row = conn.execute(STATEMENTS["only_one"]).fetchone()
    if row is None or not row[0]:
        raise AlreadyRunningError(
            "another `outbox history drop` is at work in this database, or a relay with --retain; nothing was changed"
        )
    try:
        yield
    finally:
        if not conn.closed:
            conn.execute(STATEMENTS["another_may"])


class Removal:
    """Takes ranges away, or puts them back, over one connection in autocommit.

    Args:
        wait: seconds to try again for, whenever a lock is not free.
    """

    def __init__(self, conn: psycopg.Connection[Any], *, wait: float) -> None:
        self._conn = conn
        self._wait = wait

    def mark(self, range_: Range) -> None:
        """Note on the range that it leaves; a detached table has no bounds but those."""
        self._comment(range_, sql.Literal(MARK.format(upper=range_.upper)))

    def unmark(self, range_: Range) -> None:
        """Note that it stays."""
        self._comment(range_, sql.SQL("NULL"))

    def _comment(self, range_: Range, mark: sql.Composable) -> None:
        statement = sql.SQL(STATEMENTS["mark"]).format(table=range_.table("message"), mark=mark)
        self._insist(lambda: self._run(statement, HELD_MS), range_, "message")

    def finish_pending(self, range_: Range) -> None:
        """Bring a detach that was begun to its end: it cannot be taken back before.

        Raises:
            BusyError: somebody still uses the table, or a snapshot is held from before.
        """
        for kind in KINDS:
            if range_.states.get(kind) == "pending":
                self._detach(range_, kind)

    def detach(self, range_: Range) -> None:
        """Detach all three tables, from wherever an earlier removal left them.

        Raises:
            BusyError: a transaction that uses the parent did not end in time. Its range is out of sight already.
        """
        for kind in KINDS:
            self._detach(range_, kind)

    def _detach(self, range_: Range, kind: str) -> None:
        def step() -> None:
            found = state(self._conn, range_, kind)
            if found == "attached":
                self._run(self._ddl("detach", range_, kind), PATIENT_MS)
            elif found == "pending":
                # It takes ACCESS EXCLUSIVE first, and then waits for old snapshots: so not for long.
                self._run(self._ddl("finalize", range_, kind), HELD_MS)

        self._insist(step, range_, kind)

    def drop(self, range_: Range, may_go: Callable[[], bool]) -> bool:
        """Drop the detached tables if the second check, under their lock, allows it; return whether.

        Raises:
            BusyError: somebody reads a table by its name.
            psycopg.errors.DependentObjectsStillExist: a view, for instance, depends on one.
        """
        dropped = False

        def step() -> None:
            nonlocal dropped
            tables = {kind: range_.table(kind) for kind in KINDS}
            with self._conn.transaction():
                self._run(sql.SQL(STATEMENTS["lock"]).format(**tables), HELD_MS)
                dropped = may_go()
                if dropped:
                    self._run(sql.SQL(STATEMENTS["drop"]).format(**tables), HELD_MS)

        self._insist(step, range_, "message")
        return dropped

    def restore(self, range_: Range) -> None:
        """Put a range back as it was: publications and events first, so that no message is seen without its own.

        Raises:
            BusyError: a lock was not free in time; the next run goes on.
        """
        for kind in reversed(KINDS):
            self._restore(range_, kind)
        self.unmark(range_)

    def _restore(self, range_: Range, kind: str) -> None:
        def step() -> None:
            found = state(self._conn, range_, kind)
            if found == "pending":
                self._run(self._ddl("finalize", range_, kind), HELD_MS)
                found = "detached"
            if found == "detached":
                with self._conn.transaction():
                    self._run(self._ddl("attach", range_, kind), HELD_MS)
                    self._drop_left_constraints(range_, kind)

        self._insist(step, range_, kind)

    def _drop_left_constraints(self, range_: Range, kind: str) -> None:
        table = f"outbox.{kind}_p{range_.suffix}"
        for (name,) in self._conn.execute(STATEMENTS["left_constraints"], {"table": table}).fetchall():
            self._conn.execute(
                sql.SQL(STATEMENTS["drop_constraint"]).format(
                    table=range_.table(kind), constraint=sql.Identifier(name)
                )
            )

    def _ddl(self, name: str, range_: Range, kind: str) -> sql.Composed:
        return sql.SQL(STATEMENTS[name]).format(
            parent=sql.Identifier("outbox", kind),
            table=range_.table(kind),
            lower=sql.Literal(range_.lower),
            upper=sql.Literal(range_.upper),
        )

    def _run(self, statement: sql.Composed, milliseconds: int) -> None:
        self._conn.execute(STATEMENTS["lock_timeout"], {"milliseconds": str(milliseconds)})
        self._conn.execute(statement)

    def _insist(self, step: Callable[[], None], range_: Range, kind: str) -> None:
        deadline = time.monotonic() + self._wait
        while True:
            try:
                step()
            except RETRIED as error:
                if time.monotonic() >= deadline:
                    raise BusyError(f"{kind}: {self._who(range_, kind) or str(error).strip()}") from error
                time.sleep(PAUSE_S)
            else:
                return

    def _who(self, range_: Range, kind: str) -> str | None:
        values = {"parent": f"outbox.{kind}", "table": f"outbox.{kind}_p{range_.suffix}"}
        row = self._conn.execute(STATEMENTS["in_the_way"], values).fetchone()
        return None if row is None else f"a transaction uses it ({row[0]})"
