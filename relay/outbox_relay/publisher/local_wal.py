"""Finds out whether a poll may ask how far the server's log is flushed, instead of a barrier.

`pg_current_wal_flush_lsn()` is worth a flushed commit only where a commit is durable once the server's own log is on
its disk. Some services keep the log elsewhere, and raise an error, or report another position. A poll that asks there
would be refused, or be wrong: so it is found out when a session begins, and such a session makes its barriers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from math import inf
from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.publisher.prepared import Call, Numbered, PreparedStatements
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/local_wal.sql")
_WRITTEN, _SERVER = (Numbered.of(STATEMENTS[name], {}) for name in ("written", "server"))
KNOWN_S = 0.02
"""So old may the answer to another relay of this process be."""
QUIET_S = 1.0
"""A turn is left out no longer than this: the time itself ends leases, and a commit may be seen a moment after it is
flushed."""

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


class Positions:
    """Where the logs of servers end, as the relays of one process know it: one question is enough for a server."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[float, bytes | None]] = {}

    def read(self, server: Hashable, ask: Callable[[], bytes | None]) -> bytes | None:
        """Return where a log ends, or ended `KNOWN_S` ago at most; of two threads that ask at a time either counts."""
        now = time.monotonic()
        asked_at, answer = self._known.get(server, (-inf, None))
        if now - asked_at > KNOWN_S:
            answer = ask()
            self._known[server] = now, answer
        return answer


class Quiet:
    """Whether a relay that has been idle may leave a turn out, because nothing was written to its server's log.

    One process may have a relay for each of many databases of a server, and all of them renew their leases at the same
    moments: what they write themselves ends the quiet of all.

    Args:
        statements: of the loop's connection.
        positions: shared by the relays of a process.
    """

    def __init__(self, statements: PreparedStatements, positions: Positions) -> None:
        self._statements, self._positions = statements, positions
        self._server: Hashable = None
        self._seen: bytes | None = None
        self._looks_again = False
        self._until = 0.0

    def lasts(self, now: float, due: float) -> bool:
        """Return whether the log ends where it did before the last turn; if not, take one.

        Args:
            now: monotonic seconds.
            due: when a turn is to be taken in any case.
        """
        if self._server is None:
            self._server = self._ask(_SERVER)
        seen = self._positions.read(self._server, lambda: self._ask(_WRITTEN))
        if seen is not None and seen == self._seen and now < self._until and not self._looks_again:
            return True
        # Twice: what was flushed is seen a moment later.
        self._looks_again = seen != self._seen
        self._seen, self._until = seen, min(now + QUIET_S, due)
        return False

    def _ask(self, statement: Numbered) -> bytes | None:
        return self._statements.run(Call(statement, [])).get_value(0, 0)
