"""The two ends of a listener's transaction in one round trip each: begin and take; check and commit. Or both in one.

A message costs as many round trips as a loop by hand that begins, writes and commits: the row of the inbox goes with
the `BEGIN`, and the check that the listener has kept its transaction goes with the `COMMIT`. Each is a text of
statements of the simple protocol, which ends at the first one that fails. The row's statement is prepared by name, so
PostgreSQL does not plan it again. The session may lose it while a listener has the connection: psycopg sends
`DEALLOCATE ALL` when a savepoint is rolled back, for example. So the check is never a prepared one, and the row's
statement is prepared again before a listener runs.

When the process dies, or the connection is lost:

- before or during the first text: the row is not committed, as after `plans.take` alone.
- during the second one: the transaction is committed or not, as during a `COMMIT` alone. It is the consumer's commit
  from the moment at which the text is sent. If the listener had ended the transaction by `COMMIT AND CHAIN` before,
  which nothing but the check finds, and the connection is lost before the check has returned, then the message counts
  as done, and no dead letter states that a part of its effect exists.

A thread that has the next message in its hands when it commits sends the row of that message behind a
`COMMIT AND CHAIN`, which begins its transaction (`commit_and_take`). PostgreSQL skips what is behind a statement that
failed, so it takes the next message only if it has committed the one before. It reports the commit before it runs what
is behind it, so a row that another process has locked does not delay the end of the message before. When the process
dies, or the connection is lost:

- until the commit has run: nothing of both messages is committed, or it is as above. The row of the next message was
  not inserted.
- after that: the first message is committed, and comes to its row if its end was not noted. The transaction of the
  next one is rolled back, as after `begin_and_take`.
"""

from __future__ import annotations

import select
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult

from outbox.inbox.messages import Delivery
from outbox.inbox.plans import SQL, Taken

Connection = psycopg.Connection[Any]
_PREPARE_TAKE = f"PREPARE outbox_take AS {SQL['take']}"
_BEGIN_AND_TAKE = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;EXECUTE outbox_take(%d,'%s','%s',%d,%d,%d,E'\\\\x%s',%s,true)"
)
_RESET, _CHECK = SQL["reset_role"], SQL["require_same_transaction"]
_COMMIT_AND_BEGIN = b"COMMIT AND CHAIN"
"""The next transaction has the isolation level of the one before, which `begin_and_take` has begun. Its `now()` is the
time at which PostgreSQL began with this statement."""
_TAKE_FORMATS = (*(Format.TEXT,) * 6, Format.BINARY, Format.BINARY, Format.TEXT)
LONG_WAIT = 1.0
"""Seconds that a transaction may have waited for the commit before it when its listener runs in it."""


def begin_and_take(conn: Connection, group: int, delivery: Delivery) -> Taken:
    """Begin a transaction, and take a message over in it, as `plans.take` does; a listener may run in it then.

    Args:
        conn: a connection outside a transaction.
        group: the number of the group.
        delivery: the message.

    Raises:
        psycopg.Error: as of `plans.take`.
    """
    message, key = delivery.message, delivery.order_key
    text = _BEGIN_AND_TAKE % (
        group,
        message.message_id,
        delivery.born_on,
        delivery.topic_id,
        message.partition,
        message.offset,
        delivery.digest.hex(),
        "NULL" if key is None else f"E'\\\\x{key.hex()}'",
    )
    repeats = 2  # at most: both can happen to one message
    while True:
        try:
            return _taken(_execute(conn, text))
        except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.CheckViolation) as error:
            is_unprepared = isinstance(error, psycopg.errors.InvalidSqlStatementName)
            if not repeats or not (is_unprepared or _met_a_drop(error)):
                raise
            conn.rollback()
            if is_unprepared:
                _execute(conn, _PREPARE_TAKE)
            repeats -= 1


def _met_a_drop(error: psycopg.Error) -> bool:
    """Return whether a row was refused because the partition of its day was dropped at this moment.

    The insert had looked for the partition when it was gone, and read what the default one takes when it was there.
    A statement that begins now sees neither.
    """
    return error.diag.table_name == "inbox_default" and error.diag.constraint_name is None


def check_and_commit(conn: Connection, xid: str) -> None:
    """Take back a role that the listener has set, and commit the transaction, if it is the one that took the message.

    Raises:
        psycopg.Error: It is another one (its constraint is `listener_keeps_transaction`), and is rolled back by the
            caller; or the commit was refused; or the connection was lost, and nothing is known of a commit.
    """
    check = _CHECK.replace("$1", f"'{int(xid)}'")
    _execute(conn, f"{_RESET};{check};COMMIT")


class SentTake:
    """The row of a message that was sent behind the commit of another one; until `receive`, the connection is busy."""

    def __init__(self, conn: Connection, sent_at: float) -> None:
        self.conn, self._sent_at = conn, sent_at

    def receive(self) -> Taken | None:
        """Return what became of it; the connection is in the transaction of the message then.

        Returns:
            None: it is to be taken again, and nothing of it is left. Its row or its key is locked; or the commit before
                it was so slow that its transaction is too old for a listener; or the listener before it has removed the
                prepared statement.

        Raises:
            psycopg.Error: as of `plans.take`; the connection is to be closed.
        """
        taken = None
        with suppress(psycopg.errors.InvalidSqlStatementName, psycopg.errors.LockNotAvailable):
            taken = _taken(_result(self.conn))
        _end_pipeline(self.conn)
        if taken is None or (taken.is_new and monotonic() - self._sent_at >= LONG_WAIT):
            self.conn.rollback()
            return None
        return taken


def commit_and_take(conn: Connection, xid: str, group: int, following: Delivery) -> SentTake:
    """Do `check_and_commit`, and send `begin_and_take` of another message in the same round trip.

    Args:
        conn: in the transaction that took the message; `begin_and_take` was used on it before.
        xid: of that transaction.
        group: the number of the group.
        following: the other message.

    Returns:
        What the caller has to receive, once it has noted that the first message is committed.

    Raises:
        psycopg.Error: as of `check_and_commit`; the other message was not taken.
    """
    message, pgconn = following.message, conn.pgconn
    row = (message.message_id, following.born_on, following.topic_id, message.partition, message.offset)
    values = [
        *(str(value).encode() for value in (group, *row)),
        following.digest,
        following.order_key,
        b"true",
    ]
    sent_at = monotonic()
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(_RESET.encode(), None)
    pgconn.send_query_params(_CHECK.encode(), [xid.encode()])
    pgconn.send_query_params(_COMMIT_AND_BEGIN, None)
    pgconn.send_flush_request()  # not a sync: PostgreSQL goes on behind an error there
    pgconn.send_query_prepared(b"outbox_take", values, _TAKE_FORMATS)
    pgconn.pipeline_sync()
    try:
        for _ in range(3):
            _result(conn)
    except psycopg.Error as error:
        if error.sqlstate is not None:
            with suppress(psycopg.OperationalError):  # the caller finds the connection lost
                _end_pipeline(conn)
        raise
    return SentTake(conn, sent_at)


def _taken(result: PGresult) -> Taken:
    xid, *flags = (result.get_value(0, column) for column in range(5))
    return Taken((xid or b"").decode(), *(flag == b"t" for flag in flags)).of_group()


def _result(conn: Connection) -> PGresult:
    """Wait for the next result of the pipeline."""
    return _checked(_next(conn))


def _end_pipeline(conn: Connection) -> None:
    """Pass over what is left in the pipeline, and leave it."""
    while _next(conn).status != ExecStatus.PIPELINE_SYNC:
        pass
    conn.pgconn.exit_pipeline_mode()


def _next(conn: Connection) -> PGresult:
    """Wait for a result; between the results of two statements is an empty one."""
    pgconn = conn.pgconn
    while pgconn.status == ConnStatus.OK:
        while (has_more := pgconn.flush()) or pgconn.is_busy():
            ready = select.poll()
            ready.register(pgconn.socket, select.POLLIN | (select.POLLOUT if has_more else 0))
            ready.poll()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None:
            return result
    raise psycopg.OperationalError("the connection was lost")


def _execute(conn: Connection, text: str) -> PGresult:
    return _checked(conn.pgconn.exec_(text.encode()))


def _checked(result: PGresult) -> PGresult:
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        error = error_from_result(result, encoding="utf-8")
        if (
            error.sqlstate is None
        ):  # libpq's own, of a connection that was lost; psycopg's cursors raise this, too
            raise psycopg.OperationalError(str(error))
        raise error
    return result
