"""Finds out whether a poll may ask how far the server's log is flushed, instead of a barrier.

`pg_current_wal_flush_lsn()` is worth a flushed commit only where a commit is durable once the server's own log is on
its disk. Some services keep the log elsewhere, and raise an error, or report another position. A poll that asks there
would be refused, or be wrong: so it is found out when a session begins, and such a session makes its barriers.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/local_wal.sql")

log = Log("relay")


def can_ask_what_is_flushed(conn: psycopg.Connection[Any]) -> bool:
    """Return whether polls may ask what is flushed; log the answer, with the reason.

    Args:
        conn: the loop's connection, in autocommit: each question is a transaction of its own, and may be refused.

    Raises:
        psycopg.OperationalError: the connection is gone.
    """
    why = _reason(conn)
    if why:
        log.info("each batch waits for a commit of the relay", because=why)
    else:
        log.info("a batch that its poll finds flushed waits for no commit of the relay")
    return not why


def _reason(conn: psycopg.Connection[Any]) -> str:
    try:
        if conn.execute(STATEMENTS["positions"]).fetchone() != (True,):
            return "the log is flushed further than it is written, by what the server returns"
        row = conn.execute(STATEMENTS["elsewhere"]).fetchone()
    except psycopg.Error as error:
        if conn.broken:
            raise
        return f"how far the log is flushed cannot be asked: {str(error).splitlines()[0]}"
    if row is not None and row[0]:
        return f"the server may keep its log elsewhere: it has {row[0]}"
    try:
        conn.execute(STATEMENTS["aurora"])
    except psycopg.errors.UndefinedFunction:
        return ""
    except psycopg.Error:
        if conn.broken:
            raise
    return "the server may keep its log elsewhere: it has aurora_version()"
