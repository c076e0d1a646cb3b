"""Asks a producer group by one read-only query that the operator registered; all else than a clear state is UNKNOWN.

The query runs in a READ ONLY transaction that is always rolled back, through a cursor (so that it can be nothing but
one query, of which two rows are read at most), and with the message's names bound as parameters: nothing of a message
ever becomes part of its text. What a query may leave behind in its session (advisory locks, prepared statements) is
taken away after each question, with the rollback.

A user who may register a query is not trusted with the checker's rights, by which bodies can be read. So it runs by a
login that the process was given for this, never by the checker's own; a row names OUTBOX_CALLBACK_DSN_… only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outbox import sessions
from outbox.checking import Answer, FailedAnswer, LocalTransactionState
from outbox.checking.answers import answer_of
from outbox.checking.describing import error_text
from outbox.operations.remarks import shortened
from outbox.records import MessageView
from outbox.statements import Statements
from outbox_relay.calls.deadline import Bounded, DeadlineError, Watch, Watchdog, left
from outbox_relay.checker.callback import PARAMETERS, SqlCallback
from outbox_relay.database.connections import Connection, connect_for_queries
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/checker/askers/query.sql")

DSN = "OUTBOX_CALLBACK_DSN"
CURSOR = "outbox_check"
LONGEST_LIFE_S = 300.0
"""Seconds after which a connection is opened again."""


class SqlAsker:
    """Asks one group's database; safe for several threads. Connections are kept and used again.

    Args:
        callback: the query, and where it runs.
        dsn: the login for queries that name no variable; None: the process was given none.
        environment: where `dsn_env` is read.
        connections: questions at once, and idle connections kept, at most.
    """

    def __init__(
        self, callback: SqlCallback, dsn: str | None, environment: Mapping[str, str], *, connections: int = 4
    ) -> None:
        self._callback = callback
        self._dsn = environment.get(callback.dsn_env, "").strip() if callback.dsn_env else dsn or ""
        self._connections = connections
        self._opening: Bounded[Connection] = Bounded(connections, discard=lambda late: late.close())
        self._watchdog = Watchdog()
        self._idle: list[tuple[float, Connection]] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def place(self) -> str:
        """Where it asks, for people."""
        return f"the database in {self._callback.dsn_env or DSN}"

    def problem(self, deadline: float) -> str | None:
        """Return why this group cannot be asked from here, or None; plans the query, and runs nothing."""
        why = self.unable()
        if why is not None:
            return why
        try:
            conn = self._opening.call(self._open, deadline, "connecting to the database")
        except (TimeoutError, OSError, OperatorError, psycopg.Error) as error:
            return str(error).partition("\n")[0]
        with contextlib.closing(conn):
            try:
                self._limit(conn, deadline)
                conn.execute(f"EXPLAIN {self._callback.query}", dict.fromkeys(PARAMETERS))
            except (TimeoutError, psycopg.Error) as error:
                told = error.diag.message_primary if isinstance(error, psycopg.Error) else None
                return f"its query cannot run: {told or error}"
        return None

    def unable(self) -> str | None:
        """Return why this process can ask about no message of the group, or None: it lacks the database's address."""
        if self._dsn:
            return None
        if self._callback.dsn_env:
            return f"no database for its query: set {self._callback.dsn_env}"
        return f"no login for its query: give the checker --callback-dsn ({DSN}), of a user that may read just that"

    def missing(self, view: MessageView) -> str | None:
        """Return why no listener can be asked about this message, or None."""
        return self.unable()

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Ask about one half message; answer by `deadline` (seconds of `time.monotonic()`). Never raises."""
        try:
            return _answer(self._rows(view, deadline))
        except TimeoutError as error:
            return _failed(f"no answer in time: {error}")
        except psycopg.Error as error:
            return _failed(error_text(error))
        except OperatorError as error:
            return _failed(str(error).partition("\n")[0])
        except OSError as error:
            return _failed(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their question ends."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        self._watchdog.close()
        for _, conn in idle:
            conn.close()

    def _rows(self, view: MessageView, deadline: float) -> list[tuple[Any, ...]]:
        opened, conn = self._take() or (
            time.monotonic(),
            self._opening.call(self._open, deadline, "connecting to the database"),
        )
        watch = Watch(lambda: None)
        try:
            # A server that never answers is left by an end of file on our side; the caller's thread is then free.
            with self._watchdog.until(deadline, lambda: _hang_up(conn)) as watch:
                try:
                    return self._run(conn, view, deadline)
                except psycopg.Error:
                    if watch.fired:
                        raise DeadlineError("time is up while running the query") from None
                    raise
        finally:
            # Cut off just as the answer came: the answer holds, the connection is dead and may not know it yet.
            if watch.fired:
                conn.close()
            self._give_back(opened, conn)

    def _open(self) -> Connection:
        conn = connect_for_queries(self._dsn, application_name="outbox checker query")
        sessions.set_all(conn, _limits(conn))
        conn.read_only = True
        conn.prepare_threshold = None  # what is prepared is forgotten after each question
        return conn

    def _run(self, conn: Connection, view: MessageView, deadline: float) -> list[tuple[Any, ...]]:
        try:
            self._limit(conn, deadline)
            with conn.cursor(CURSOR, row_factory=tuple_row) as cursor:
                cursor.execute(self._callback.query, _parameters(view))
                return cursor.fetchmany(2)
        finally:
            _leave_nothing(conn)

    def _limit(self, conn: Connection, deadline: float) -> None:
        """Bound what follows in this transaction, and take on the query's role."""
        # The server should give up first: it then answers, and the connection stays usable.
        milliseconds = max(int(left(deadline, "running the query") * 900), 1)
        conn.execute(STATEMENTS["limits"], {"milliseconds": str(milliseconds)})
        if self._callback.role is not None:
            conn.execute(STATEMENTS["role"], {"role": self._callback.role})

    def _take(self) -> tuple[float, Connection] | None:
        while True:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            if found is None or time.monotonic() - found[0] < LONGEST_LIFE_S:
                return found
            found[1].close()

    def _give_back(self, opened: float, conn: Connection) -> None:
        with self._lock:
            if not self._closed and not conn.closed and len(self._idle) < self._connections:
                self._idle.append((opened, conn))
                return
        conn.close()


def _limits(conn: Connection) -> str:
    """The statement without which a limit of the role may end the session while it is kept."""
    return sessions.statement(sessions.limits(conn.info.server_version))


def _leave_nothing(conn: Connection) -> None:
    """Roll back, and free the session of what outlives a rollback; a connection that cannot is closed."""
    try:
        conn.execute(f"{STATEMENTS['leave_nothing']}; {_limits(conn)}")
    except psycopg.Error:  # lost; the error told is the first one
        conn.close()


def _parameters(view: MessageView) -> dict[str, Any]:
    return {
        "message_id": view.message_id,
        "topic": view.topic,
        "key": _text(view.key),
        "biz_type": view.biz_type,
        "biz_id": view.biz_id,
        "transaction_id": view.transaction_id,
        "tags": list(view.tags),
    }


def _text(key: bytes | None) -> str | bytes | None:
    """Keys are text nearly always, and then compared with text; others are bound as bytea."""
    if key is None or b"\0" in key:
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _answer(rows: list[tuple[Any, ...]]) -> Answer:
    if not rows:
        return Answer(LocalTransactionState.UNKNOWN, "query: it found no row")
    if len(rows) > 1:
        return _failed("it found more than one row")
    if len(rows[0]) != 1:
        return _failed(f"its row has {len(rows[0])} columns, not one")
    return answer_of(rows[0][0])


def _hang_up(conn: Connection) -> None:
    with contextlib.suppress(OSError, psycopg.Error):
        copy = socket.socket(fileno=os.dup(conn.fileno()))
        with copy:
            copy.shutdown(socket.SHUT_RDWR)


def _failed(why: str) -> Answer:
    return FailedAnswer(LocalTransactionState.UNKNOWN, shortened(f"query: {why}"))
