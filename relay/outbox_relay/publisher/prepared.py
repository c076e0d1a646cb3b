"""Statements of every turn: composed and prepared once, executed through libpq, several in one round trip.

A driver's cursor composes a statement, finds its placeholders and adapts its values at each execution; a poll that
finds nothing costs less than that. Here a statement is prepared under a name of its own, values are bound as text that
the caller has ready, and results come in binary form.

Statements that travel together are not one transaction: each is followed by a Sync, so each commits by itself, in
order, and an error of one leaves the others alone. Schedules:

- The connection is lost after both were sent: nothing is known of either. The caller's session ends, as if it had been
  lost during the second of two round trips.
- The first fails, and the second does not: both results are returned, and the caller notes the second one's effect
  before it raises the error of the first.
- The names are gone: the driver sends `DEALLOCATE ALL` when it rolls a transaction back. Each statement whose name
  is gone fails before it does anything. If all of a round trip are, they are prepared and executed again, in order. If
  only the first is, it is executed again, and nothing is behind it; if only the second is, it has not travelled.
- The names are gone, and a transaction is open: the error has aborted it, so that nothing of it has happened.
  The reader or the recorder, which began it, does all of it again (`redo`).
- The session is another one (a pooler in transaction mode, or its reset), without the settings that the relay made:
  the error is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

BOOL, INT8, INT2, TEXT = 16, 20, 21, 25
"""Types of values, as `pg_type` numbers them. A value without a type here gets the one that PostgreSQL infers."""

T = TypeVar("T")

_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_MARK = re.compile(r"%(?:\((\w+)\)s|%)")

Values = Sequence[bytes | None]
"""Values of a statement in the order of `Numbered.names`, as PostgreSQL's text."""


class Numbered(NamedTuple):
    """A statement with PostgreSQL's own placeholders."""

    text: bytes
    names: tuple[str, ...]
    """The values, in the order of their numbers."""
    types: tuple[int, ...]

    @classmethod
    def of(cls, statement: str, types: Mapping[str, int]) -> Numbered:
        """Number the placeholders `%(name)s` of a statement.

        Args:
            statement: its text.
            types: of the values whose type PostgreSQL would not infer as it is meant.
        """
        numbers: dict[str, int] = {}

        def number(mark: re.Match[str]) -> str:
            if mark[1] is None:
                return "%"
            return f"${numbers.setdefault(mark[1], len(numbers) + 1)}"

        text = _MARK.sub(number, statement).encode()
        return cls(text, tuple(numbers), tuple(types.get(name, 0) for name in numbers))

    def bind(self, values: Mapping[str, Any]) -> list[bytes | None]:
        """Write values as PostgreSQL's text, in the order of the statement."""
        return [None if (value := values[name]) is None else str(value).encode() for name in self.names]


class Call(NamedTuple):
    """One execution of a statement."""

    statement: Numbered
    values: Values


class Rider:
    """A call that travels with another one, behind it, and its result once it has been there."""

    __slots__ = ("call", "is_behind", "result")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.result: PGresult | None = None
        self.is_behind = False
        """Whether it was executed behind the one that it travelled with."""


class PreparedStatements:
    """Prepares statements on one connection in autocommit, and executes them.

    Args:
        conn: the connection.
        is_ours: asked before statements that are gone are prepared again, whether the session has its settings still.
    """

    def __init__(self, conn: psycopg.Connection[Any], is_ours: Callable[[], bool] = lambda: True) -> None:
        self._conn = conn
        self._is_ours = is_ours
        self._names: dict[Numbered, bytes] = {}
        self._count = 0
        self.round_trips = 0
        """How often statements were executed; with those that travelled together counted once."""

    def run(self, call: Call) -> PGresult:
        """Execute a statement, in the transaction that is open if there is one.

        Raises:
            psycopg.Error: as PostgreSQL reports it.
        """
        (result,) = self._run((call,))
        return _checked(result, self._conn)

    def run_with(self, call: Call, rider: Rider) -> PGresult:
        """Execute a statement, and behind it the rider's, in one round trip; return the result of the first.

        The rider has its result, even if it is an error, before the error of the first is raised.

        Raises:
            psycopg.Error: the first statement's, as PostgreSQL reports it.
        """
        result, along = self._run((call, rider.call))
        if _is_gone(along):
            return _checked(result, self._conn)
        rider.result = along
        if _is_gone(result):
            return self.run(call)
        rider.is_behind = True
        return _checked(result, self._conn)

    def redo(self, work: Callable[[], T]) -> T:
        """Do what is one transaction; do it again if a statement was gone: nothing of it has happened then.

        Raises:
            psycopg.Error: as PostgreSQL reports it.
        """
        try:
            return work()
        except InvalidSqlStatementName:
            self._names.clear()
            if not self._is_ours():
                raise
            return work()

    def finish(self, rider: Rider) -> PGresult:
        """Return the result of a rider; execute it now if it has not travelled.

        Raises:
            psycopg.Error: as PostgreSQL reports it.
        """
        return self.run(rider.call) if rider.result is None else _checked(rider.result, self._conn)

    def forget(self, statements: Iterable[Numbered]) -> list[bytes]:
        """Forget statements that are of no further use; return the names to be deallocated."""
        return [name for each in statements if (name := self._names.pop(each, None)) is not None]

    def _run(self, calls: Sequence[Call]) -> list[PGresult]:
        for call in calls:
            if call.statement not in self._names:
                self._prepare(call.statement)
        results = self._execute(calls)
        gone = [call.statement for call, result in zip(calls, results, strict=True) if _is_gone(result)]
        if gone and self._conn.pgconn.transaction_status == TransactionStatus.IDLE and self._is_ours():
            for statement in gone:
                self._prepare(statement)
            if len(gone) == len(calls):
                results = self._execute(calls)
        return results

    def _prepare(self, statement: Numbered) -> None:
        self._count += 1
        name = b"outbox_%d" % self._count
        conn = self._conn
        with conn.lock:
            conn.pgconn.send_prepare(name, statement.text, statement.types)
            (result,) = conn.wait(generators.execute(conn.pgconn))
        _checked(result, conn)
        self._names[statement] = name

    def _execute(self, calls: Sequence[Call]) -> list[PGresult]:
        self.round_trips += 1
        conn, names = self._conn, self._names
        with conn.lock:
            if len(calls) > 1:
                return conn.wait(self._together(calls))
            ((statement, values),) = calls
            conn.pgconn.send_query_prepared(names[statement], values, result_format=Format.BINARY)
            return conn.wait(generators.execute(conn.pgconn))

    def _together(self, calls: Sequence[Call]) -> PQGen[list[PGresult]]:
        pgconn, names = self._conn.pgconn, self._names
        results: list[PGresult] = []
        pgconn.enter_pipeline_mode()
        # Should anything fail in between, the connection is of no further use: a session does not outlive that.
        for statement, values in calls:
            pgconn.send_query_prepared(names[statement], values, result_format=Format.BINARY)
            pgconn.pipeline_sync()
        yield from generators.send(pgconn)
        for _ in calls:
            results += yield from generators.fetch_many(pgconn)
            yield from generators.fetch_many(pgconn)  # the Sync
        pgconn.exit_pipeline_mode()
        return results


_GONE = InvalidSqlStatementName.sqlstate.encode() if InvalidSqlStatementName.sqlstate else b""


def _is_gone(result: PGresult) -> bool:
    return result.error_field(DiagnosticField.SQLSTATE) == _GONE


def _checked(result: PGresult, conn: psycopg.Connection[Any]) -> PGresult:
    if result.status not in _DONE:
        raise error_from_result(result, encoding=conn.info.encoding)
    return result
