"""The two ends of a listener's transaction in one round trip each: begin and take; check and commit.

A message costs as many round trips as a loop by hand that begins, writes and commits: the row of the inbox goes with
the `BEGIN`, and the check that the listener has kept its transaction goes with the `COMMIT`. Each is a text of two
statements of the simple protocol, of which the second one is not run if the first one fails. The statements are
prepared by name once in a session, so PostgreSQL does not plan them again.

When the process dies, or the connection is lost:

- before or during the first text: the row is not committed, as after `plans.take` alone.
- during the second one: the transaction is committed or not, as during a `COMMIT` alone. It is the consumer's commit
  from the moment at which the text is sent. If the listener had ended the transaction by `COMMIT AND CHAIN` before,
  which nothing but the check finds, and the connection is lost before the check has returned, then the message counts
  as done, and no dead letter states that a part of its effect exists.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from outbox.inbox.messages import Delivery
from outbox.inbox.plans import SQL, Taken

Connection = psycopg.Connection[Any]
_PREPARED = {"outbox_take": "take", "outbox_same": "require_same_transaction"}
_BEGIN_AND_TAKE = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;EXECUTE outbox_take(%d,'%s','%s',%d,%d,%d,E'\\\\x%s',%s)"
)
_CHECK_AND_COMMIT = "EXECUTE outbox_same('%d');COMMIT"


def begin_and_take(conn: Connection, group: int, delivery: Delivery) -> Taken:
    """Begin a transaction, and take a message over in it, as `plans.take` does.

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
    try:
        result = _execute(conn, text)
    except psycopg.errors.InvalidSqlStatementName:
        conn.rollback()
        _prepare(conn)
        result = _execute(conn, text)
    xid, *flags = (result.get_value(0, column) for column in range(4))
    return Taken((xid or b"").decode(), *(flag == b"t" for flag in flags))


def check_and_commit(conn: Connection, xid: str) -> None:
    """Commit the transaction, if it is still the one that took the message.

    Raises:
        psycopg.Error: It is another one (its constraint is `listener_keeps_transaction`), and is rolled back by the
            caller; or the commit was refused; or the connection was lost, and nothing is known of a commit.
    """
    try:
        _execute(conn, _CHECK_AND_COMMIT % int(xid))
    except psycopg.errors.InvalidSqlStatementName as error:
        raise psycopg.OperationalError(f"the listener removed prepared statements: {error}") from error


def _prepare(conn: Connection) -> None:
    """Prepare the statements, whichever of them the session has."""
    for name, statement in _PREPARED.items():
        try:
            _execute(conn, f"PREPARE {name} AS {SQL[statement]}")
        except psycopg.errors.DuplicatePreparedStatement:
            continue


def _execute(conn: Connection, text: str) -> PGresult:
    result = conn.pgconn.exec_(text.encode())
    if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        error = error_from_result(result, encoding="utf-8")
        if (
            error.sqlstate is None
        ):  # libpq's own, of a connection that was lost; psycopg's cursors raise this, too
            raise psycopg.OperationalError(str(error))
        raise error
    return result
