"""`publish_after = replicated`: nothing is published before a synchronous standby has it.

The relay's barrier is a flushed commit of its own. Where PostgreSQL names synchronous standbys, that commit waits for
them, and its WAL position is above everything that was read before it; so does what a producer committed with
`synchronous_commit = off` or `local`, which did not wait. Three things let a commit return although no standby has
it, and each makes the barrier count for nothing here:

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

from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import psycopg
from psycopg.errors import Diagnostic

from outbox.statements import Statements
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/publications.sql")

TAKES_XID = "GetNewTransactionId"
"""The server's function that warns when transaction ids run out; its name is not translated."""
SETTLED_S = 5.0
"""So long after a reload commits are taken to wait for the standbys that it names."""

log = Log("relay")


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
        self._wanted = publish_after is PublishAfter.REPLICATED
        self._warning: str | None = None
        self._settings: _Settings | None = None
        self._is_logged = False
        if self._wanted:
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
        if self._wanted and not self._read().has_standbys:
            raise NoStandbyError(
                "--publish-after replicated: PostgreSQL names no synchronous standby, so nothing could be published\n"
                "set synchronous_standby_names on the primary, or run the relay with --publish-after committed"
            )

    @property
    def is_wanted(self) -> bool:
        """Whether messages wait for a standby."""
        return self._wanted

    def has_reached_standby(self) -> bool:
        """Return whether the barrier that was made since the last call counts."""
        if not self._wanted:
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
