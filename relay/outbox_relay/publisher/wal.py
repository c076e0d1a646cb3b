"""What the relay learns of the server's log: whether what was read is flushed, or on a standby, and whether it grew.

**A poll instead of a barrier.** `pg_current_wal_flush_lsn()` is worth a flushed commit only where a commit is durable
once the server's own log is on its disk. Some services keep the log elsewhere, and raise an error, or report another
position. A poll that asks there would be refused, or be wrong: so it is found out when a session begins, and such a
session makes its barriers.

**`publish_after = replicated`: nothing is published before a synchronous standby has it.** The relay's barrier is a
flushed commit of its own. Where PostgreSQL names synchronous standbys, that commit waits for them, and its WAL
position is above everything that was read before it; so does what a producer committed with `synchronous_commit =
off` or `local`, which did not wait. Three things let a commit return although no standby has it, and each makes the
barrier count for nothing here:

- somebody cancels the wait (`pg_cancel_backend`): PostgreSQL commits, and reports success with a warning, in a language
  that the server's settings choose. So every warning during the barrier is taken for that one;
- `synchronous_standby_names` is empty, or is emptied by a reload, which releases all who wait. So the names must be
  there, and the settings must not have been read again since the barrier before, nor within the last seconds: commits
  wait once the checkpointer has read the names, and that is not shown anywhere;
- the session ends while it waits: then the relay's session is over, and the next one reads and waits again.

The schedule: rows are read, the barrier is made, and only then is it asked whether that counts. When it does not,
the rows stay where they are, and the next turn makes another barrier. A promoted standby has all that was published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

import psycopg
from psycopg.errors import Diagnostic

from outbox.statements import Statements
from outbox_relay.publisher.prepared import Call, Numbered, PreparedStatements
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/wal.sql")
_WRITTEN, _SERVER = (Numbered.of(STATEMENTS[name], {}) for name in ("written", "server"))
KNOWN_S = 0.02
"""So old may the answer to another relay of this process be."""
QUIET_S = 1.0
"""A turn is left out no longer than this: the time itself ends leases, and a commit may be seen a moment after it is
flushed."""
TAKES_XID = "GetNewTransactionId"
"""The server's function that warns when transaction ids run out; its name is not translated."""
SETTLED_S = 5.0
"""So long after a reload commits are taken to wait for the standbys that it names."""

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


class PublishAfter(StrEnum):
    """What a message waits for before it is published, besides its commit."""

    COMMITTED = "committed"
    """The primary has flushed the commit; where it has synchronous standbys, a commit of the relay waited for them."""
    REPLICATED = "replicated"
    """A synchronous standby has it, and without one nothing is published."""


class NoStandbyError(OperatorError):
    """Messages shall be replicated before they are published, and PostgreSQL names no synchronous standby."""


class _Settings(NamedTuple):
    """What a session has read of the server's settings."""

    has_standbys: bool
    read_at: datetime
    is_settled: bool


class Replication:
    """Knows whether the last barrier counts; for one connection, whose sessions have `synchronous_commit = on`."""

    def __init__(self, conn: psycopg.Connection[Any], publish_after: PublishAfter) -> None:
        self._conn = conn
        self.is_wanted = publish_after is PublishAfter.REPLICATED
        """Whether messages wait for a standby."""
        self._warning: str | None = None
        self._settings: _Settings | None = None
        self._is_logged = False
        if self.is_wanted:
            conn.add_notice_handler(self._note)

    def _note(self, diagnostic: Diagnostic) -> None:
        # Near the end of the transaction ids every transaction that takes one is warned, standby or not.
        if diagnostic.severity_nonlocalized == "WARNING" and diagnostic.source_function != TAKES_XID:
            self._warning = diagnostic.message_primary or "a warning without a text"

    def require_standby(self) -> None:
        """Refuse to begin where no standby could ever have anything.

        Raises:
            NoStandbyError: `synchronous_standby_names` is empty.
        """
        if self.is_wanted and not self._read().has_standbys:
            raise NoStandbyError(
                "--publish-after replicated: PostgreSQL names no synchronous standby, so nothing could be published\n"
                "set synchronous_standby_names on the primary, or run the relay with --publish-after committed"
            )

    def has_reached_standby(self) -> bool:
        """Return whether the barrier that was made since the last call counts."""
        if not self.is_wanted:
            return True
        before, self._settings = self._settings, self._read()
        warning, self._warning = self._warning, None
        now = self._settings
        counts = (
            now.has_standbys
            and now.is_settled
            and before is not None
            and before.read_at == now.read_at
            and warning is None
        )
        if not counts and not self._is_logged and (warning or not now.has_standbys):
            log.warning(
                "not replicated, so not published",
                warning=warning,
                repair="check pg_stat_replication and synchronous_standby_names on the primary",
            )
            self._is_logged = True
        elif counts and self._is_logged:
            log.info("replicated again")
            self._is_logged = False
        return counts

    def _read(self) -> _Settings:
        values = {"settled": SETTLED_S}
        row = self._conn.execute(STATEMENTS["has_synchronous_standbys"], values, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (a SELECT of one row)
        return _Settings(*row)
